"""The report on a paper: the same tables give the same bytes, in PDF and HTML; numbers read as a reader expects."""

import json
import os
import re
import shutil
import xml.etree.ElementTree as ET

import pytest

from ddrl.errors import UserError
from ddrl.report import pdf_bytes, rebuild
from ddrl.report.__main__ import main
from ddrl.report.build import body_pages
from ddrl.report.html import html_text
from ddrl.report.paper import report_data
from ddrl.report.sections.cells import cells
from ddrl.report.sections.document import Origin, Table
from ddrl.report.sections.games import PROFILE_STEPS, over_games
from ddrl.report.sections.numbers import (
    duration,
    equals,
    frames,
    interval,
    number,
    percent,
    probability,
    ratio,
    span,
    with_unit,
)
from ddrl.report.sections.text import counted, listed, sentence, unbroken

PAPER = "impala_2018"
MOST_BODY_PAGES = 12


def data_of(made, name=PAPER):
    return json.loads((made.root / f"results/smoke/{name}/report.json").read_text())


def texts(part):
    """Every text that a report's data hold, except file names and keys of the layout."""
    if isinstance(part, dict):
        layout = {"style", "kind", "width", "align", "type", "id", "path", "source", "finished"}
        return [text for key, value in part.items() if key not in layout for text in texts(value)]
    if isinstance(part, list):
        return [text for value in part for text in texts(value)]
    return [part] if isinstance(part, str) and part else []


def words_of(html):
    """What a reader of the HTML sees, and the alternative texts; raises ParseError where it is not well formed."""
    tree = ET.fromstring(html)
    return "".join(tree.itertext()) + "\n".join(part.get("aria-label", "") for part in tree.iter())


def build(root, folder, name=PAPER):
    """The report of `root` once more, in `folder` beside its reports: PDF and HTML."""
    results = root / f"results/smoke/{name}"
    provenance = json.loads((results / "report.json").read_text())["origin"]
    options = {
        "--results": results.relative_to(root),
        "--data": f"{folder}/report.json",
        "--pdf": f"{folder}/report.pdf",
        "--command": provenance["command"],
    }
    assert main([str(text) for option in options.items() for text in option]) == 0
    return [(root / folder / f"report.{kind}").read_bytes() for kind in ("pdf", "html")]


@pytest.mark.system
@pytest.mark.parametrize("name", [PAPER, "suite"])
def test_the_same_results_give_the_same_bytes(made, monkeypatch, name):
    monkeypatch.chdir(made.root)
    first = build(made.root, "first", name)
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert build(made.root, "second", name) == first
    assert first == [(made.root / f"reports/{name}.{kind}").read_bytes() for kind in ("pdf", "html")]


@pytest.mark.slow
@pytest.mark.parametrize("name", [PAPER, "suite"])
def test_the_html_twin_holds_every_text_of_the_report_and_loads_nothing(made, name):
    data = data_of(made, name)
    html = (made.root / f"reports/{name}.html").read_text()
    seen = words_of(html)
    missing = [text for text in texts({key: data[key] for key in ("facts", "tallies", "sections")}) if text not in seen]
    assert not missing
    assert data["verdict"] in seen
    tree = ET.fromstring(html)
    links = {link.get("href") for link in tree.iter("a")} - {"https://arxiv.org/abs/1802.01561", "index.html"}
    files = [link for link in links if link[0] != "#"]
    assert {f"../results/smoke/{name}/tables/claims.csv"} <= set(files)
    assert [link for link in files if not (made.root / "reports" / link).exists()] == []
    loaded = [part.get("src") or part.get("href") for part in tree.iter() if part.tag in ("script", "link")]
    assert loaded == [f"assets/{file}" for file in ("datatables.css", "datatables.js", "report.js")]
    assert all((made.root / "reports" / file).stat().st_size > 1000 for file in loaded)
    assert not {"img", "iframe", "object"} & {element.tag for element in tree.iter()}
    assert "@import" not in html


def test_no_path_of_this_machine_enters_a_page_outside_of_the_project(made, tmp_path):
    results = made.root / "results/smoke" / PAPER
    page = html_text(data_of(made), results, made.root, tmp_path)
    assert made.root.name not in page
    assert "<code>tables/claims.csv</code>" in page


@pytest.mark.slow
@pytest.mark.parametrize("name", [PAPER, "suite"])
def test_tables_have_captions_and_scoped_headers_and_state_their_file(made, name):
    tree = ET.fromstring((made.root / f"reports/{name}.html").read_text())
    stated = [block for part in data_of(made, name)["sections"] for block in part["blocks"] if block["type"] == "table"]
    tables = [table for table in tree.iter("table") if "data" in table.get("class").split()]
    assert len(tables) == len(stated) > 5
    for table, block in zip(tables, stated, strict=True):
        caption = "".join(table.find("caption").itertext())
        assert caption.startswith(f"Table {block['number']}. {block['caption']}")
        assert all(f"{file}" in caption for file in block["source"].split(", "))
        assert all((made.root / f"results/smoke/{name}" / file).exists() for file in block["source"].split(", "))
        assert all(header.get("scope") for header in table.iter("th"))


@pytest.mark.slow
@pytest.mark.parametrize("name", [PAPER, "suite"])
def test_the_report_is_tagged_and_its_figures_have_alternative_texts(made, name):
    pdf = (made.root / f"reports/{name}.pdf").read_bytes()
    assert b"/StructTreeRoot" in pdf
    assert b"<pdfuaid:part>1</pdfuaid:part>" in pdf
    blocks = [block for section in data_of(made, name)["sections"] for block in section["blocks"]]
    figures = [block for block in blocks if block["type"] == "figure"]
    assert figures
    assert all(figure["alt"] for figure in figures)


@pytest.mark.slow
def test_a_figure_without_an_alternative_text_is_refused(made):
    data = data_of(made, "suite")
    figures = [block for section in data["sections"] for block in section["blocks"] if block["type"] == "figure"]
    figures[0]["alt"] = None
    with pytest.raises(UserError, match="alt"):
        pdf_bytes(data, made.root / "results/smoke/suite", made.root)


@pytest.mark.slow
def test_what_a_table_says_is_text_and_never_markup(made):
    data = data_of(made)
    sly = '<script>alert(1)</script> & "#panic()" $x$ *a*'
    table = next(block for part in data["sections"] for block in part["blocks"] if block["type"] == "table")
    table["groups"][0]["rows"][0][0]["spans"] = [{"text": sly, "style": "", "kind": ""}]
    html = html_text(data, made.root / "results/smoke" / PAPER, made.root, made.root / "reports")
    assert sly in words_of(html)
    assert "<script>" not in html
    assert pdf_bytes(data, made.root / "results/smoke" / PAPER, made.root).startswith(b"%PDF")


@pytest.mark.slow
@pytest.mark.parametrize("name", [PAPER, "suite"])
def test_the_body_has_few_pages_and_the_appendix_comes_after_it(made, name):
    assert body_pages(data_of(made, name), made.root / f"results/smoke/{name}", made.root) <= MOST_BODY_PAGES


@pytest.mark.slow
def test_a_body_with_too_much_in_it_has_too_many_pages(made):
    data = data_of(made)
    claims = next(part for part in data["sections"] if part["id"] == "claims")
    claims["blocks"] *= 200
    assert body_pages(data, made.root / "results/smoke" / PAPER, made.root) > MOST_BODY_PAGES


@pytest.mark.slow
def test_facts_that_need_several_pages_get_them(made):
    data = data_of(made)

    def pages():
        pdf = pdf_bytes(data, made.root / "results/smoke" / PAPER, made.root)
        return max(int(count) for count in re.findall(rb"/Count (\d+)", pdf))

    before = pages()
    facts, *_ = (block for part in data["sections"] for block in part["blocks"] if block["type"] == "facts")
    facts["rows"][-1]["value"] = "\n".join(f"line {number}" for number in range(400))
    assert pages() >= before + 4  # none has room for 100 lines


@pytest.mark.slow
def test_the_first_page_says_what_ran_where_how_long_and_at_what_budget(made):
    data = data_of(made)
    assert [fact["label"] for fact in data["facts"]] == ["What ran", "Where", "How long", "Budget"]
    assert data["facts"][0]["value"].startswith("4 training runs on Catch")
    assert data["origin"]["results"] == f"results/smoke/{PAPER}"
    assert len(data["origin"]["digest"]) == 16
    assert data["origin"]["command"].startswith("snakemake --cores impala_2018 --config ")
    assert "'seeds=[11,12]'" in data["origin"]["command"]


def reference_results(made, folder):
    """The made runs as committed reference runs."""
    shutil.copytree(
        made.root / "results/smoke" / PAPER / "off_policy_correction",
        folder / "reference" / PAPER / "off_policy_correction",
        ignore=shutil.ignore_patterns("checkpoints", "log.txt"),
    )
    return folder


@pytest.mark.slow
def test_reports_of_the_reference_runs_alone_are_rebuilt_anywhere(made, tmp_path):
    results = reference_results(made, tmp_path / "results")
    before = sorted((results / "reference").rglob("*"))
    written = rebuild(None, "reference", results=results, output=tmp_path / "out", root=made.root)
    assert [path.name for path in written] == [f"{PAPER}.pdf", f"{PAPER}.html", "suite.pdf", "suite.html", "index.html"]
    assert sorted((results / "reference").rglob("*")) == before
    assert {path.name for path in results.iterdir()} == {"reference", ".cache"}
    data = json.loads((tmp_path / f"out/evidence/reference/{PAPER}/report.json").read_text())
    assert data["facts"][0]["value"].startswith("4 committed reference runs on Catch")
    assert data["origin"]["command"] == f"ddrl report {PAPER} --scale reference"
    for path in written:
        assert path.stat().st_size > 5_000
        assert str(tmp_path).encode() not in path.read_bytes()
    other = rebuild(None, "reference", results=results, output=tmp_path / "other", root=made.root)
    assert [path.read_bytes() for path in other] == [path.read_bytes() for path in written]


@pytest.mark.slow
def test_what_is_missing_or_damaged_is_named_and_the_rest_is_reported(made, tmp_path):
    results = reference_results(made, tmp_path / "results")
    shutil.copytree(results / "reference", results / "smoke")
    runs = sorted((results / "smoke").rglob("run.json"))
    (runs[0].parent / "curves.parquet").write_bytes(b"PAR1 no more")
    shutil.rmtree(runs[1].parent)
    rebuild([PAPER], "smoke", results=results, output=tmp_path / "out", root=made.root)
    data = json.loads((tmp_path / f"out/evidence/smoke/{PAPER}/report.json").read_text())
    holes = next(section for section in data["sections"] if section["id"] == "holes")
    named = " ".join(texts(holes))
    assert f"{runs[0].parent.relative_to(tmp_path)}/curves.parquet" in named
    assert f"/{runs[1].parent.parent.name}/" in named
    assert data["facts"][0]["value"].startswith("2 training runs")
    label, value = data["facts"][-1]["label"], data["facts"][-1]["value"]
    assert label == "Holes"
    assert (
        int(value.split()[0])
        == len((tmp_path / f"out/evidence/smoke/{PAPER}/tables/problems.csv").read_text().splitlines()) - 1
    )


def test_a_wrong_paper_is_refused_in_one_line_before_anything_is_written(tmp_path):
    with pytest.raises(UserError, match="did you mean 'impala_2018'"):
        rebuild(["impala_2019"], "smoke", results=tmp_path, output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_report_without_tables_ends_with_one_line(made, tmp_path, capsys):
    os.makedirs(tmp_path / "results/tables")
    code = main(["--results", str(tmp_path / "results"), "--data", str(tmp_path / "d"), "--pdf", str(tmp_path / "p")])
    assert code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_report_on_no_run_is_refused():
    with pytest.raises(UserError, match="no finished run"):
        report_data({"runs": []}, {"scale": "smoke"}, Origin("results", "0", ""))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("", ""),
        (0, "0"),
        ("-20.7", "−20.7"),
        (43595.78, "43\u202f596"),
        (0.00331, "0.0033"),
        (0.5, "0.50"),
        ("5.0", "5"),
        (-1.5e30, "−1.5e+30"),
    ],
)
def test_numbers_carry_about_four_digits_and_a_real_minus(value, text):
    assert number(value) == text


def test_counts_times_and_shares_read_as_words():
    assert frames(400_000) == "400\u202fk"
    assert frames("200000000") == "200\u202fM"
    assert frames(11.4e9) == "11.4\u202fG"
    assert ratio(0.002) == "0.2\u202f%"
    assert interval("-1.2", "4") == "[−1.20, 4]"
    assert [duration(s) for s in (42, 754, 12_000, 201_600)] == ["42 s", "13 min", "3 h 20 min", "2 d 8 h"]
    assert counted(1, "seed") == "1 seed"
    assert counted(3, "seed") == "3 seeds"
    assert listed(["a", "b", "c"]) == "a, b and c"
    assert listed([]) == ""
    assert span(["3", "", 1], number) == "1 to 3"
    assert span([2], number) == "2"
    assert sentence("it is so") == "It is so."
    assert unbroken("Table 2") == "Table\u00a02"
    assert percent(0.408) == "41\u202f%"
    assert with_unit(957.6, "percent") == "957.6\u202f%"


def test_a_p_value_is_never_printed_as_zero():
    assert [probability(p) for p in ("", "0.04123", 0.0034, "1e-9", 1.0)] == [
        "",
        "0.04",
        "0.003",
        "<\u202f0.001",
        "1.00",
    ]
    assert equals("p", probability(1e-9)) == "p\u00a0<\u202f0.001"
    assert equals("p", "") == ""


def game_row(**columns):
    return {"origin": "run", "experiment": "atari", "variant": "deep", "ci95_low": "0.25", "ci95_high": "0.5"} | columns


def test_profiles_and_improvement_need_several_seeds_and_games():
    experiments = {"atari": {"title": "Atari"}}
    taus = [str(index / 20) for index in range(101)]
    aggregate = game_row(metric="human_normalised_score", statistic="iqm", value="0.4", environments="4", seeds="3")
    tables = {
        "runs": [game_row(variant_label="Deep")],
        "aggregates": [aggregate, aggregate | {"environments": "1"}],
        "profiles": [game_row(tau=tau, fraction=str(1 - float(tau) / 5)) for tau in taus],
        "improvement": [
            game_row(better="deep", worse="shallow", value="0.8", environments="4", seeds="3"),
            game_row(better="shallow", worse="deep", value="0.2", environments="4", seeds="3"),
        ],
    }
    aggregates, profile, improvement = over_games(tables, experiments)
    assert [len(table.groups[0].rows) for table in (aggregates, profile, improvement)] == [1, 1, 1]
    assert [column.title for column in profile.columns[2:]] == [percent(step) for step in PROFILE_STEPS]
    said = ["".join(span.text for span in cell.spans) for cell in profile.groups[0].rows[0]]
    assert said[:3] == ["Deep", "this run", f"{percent(0.98)}[{percent(0.25)}, {percent(0.5)}]"]
    assert improvement.groups[0].rows[0][0].spans[0].text == "Deep over shallow"
    tables["aggregates"] = [aggregate | {"seeds": "1"}]
    tables["improvement"] = [row | {"environments": "1"} for row in tables["improvement"]]
    assert over_games(tables, experiments)[1:] == ()


def test_holms_correction_stands_behind_the_p_that_was_corrected():
    names = ("item", "system", "published_variant", "metric", "unit", "task", "flags", "published_statistic")
    empty = ("published_seeds", "published_frames", "seeds_needed")
    row = dict.fromkeys(names, "a") | dict.fromkeys(empty, "") | {"origin": "run", "verdict": "below"}
    numbers = {"published": "9", "ours": "3", "ci90_low": "2", "ci90_high": "4", "seeds": "5", "env_frames": "100"}
    tests = {"p_equivalence": "0.5", "p_difference": "0.01", "p_holm": "0.03"}
    _, table = cells([row | numbers | tests], "run")
    assert isinstance(table, Table)
    assert "Below: our interval lies under the margin." in table.note and "Equivalent:" not in table.note
    said = "".join(span.text for span in table.groups[0].rows[0][6].spans).replace("\u00a0", " ")
    assert "equivalence p = 0.50; difference p = 0.01 (Holm 0.03)" in said


def test_the_interval_of_a_printed_mean_stands_behind_it():
    names = ("item", "system", "published_variant", "metric", "unit", "task", "flags", "published_statistic")
    empty = ("published_frames", "seeds_needed", "ci90_low")
    row = dict.fromkeys(names, "a") | dict.fromkeys(empty, "") | {"origin": "run", "verdict": "not_comparable"}
    numbers = {"published": "413", "published_seeds": "6", "ours": "3", "seeds": "5", "env_frames": "100"}
    _, table = cells([row | numbers | {"published_ci95_low": "377", "published_ci95_high": "449"}], "run")
    assert isinstance(table, Table)
    assert "".join(span.text for span in table.groups[0].rows[0][1].spans) == "413 [377, 449]"
    assert "its 95\u00a0% interval" in table.note
