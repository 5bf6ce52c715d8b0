"""The report: the same tables give the same bytes, and numbers read as a reader expects."""

import json
import os
import shutil

import pytest

from ddrl.report import main
from ddrl.report_data import report_data
from ddrl.report_text import counted, duration, frames, interval, listed, number, ratio


def build(root, folder):
    """The report of `root` once more, in `folder`."""
    results = root / "results/smoke/impala_2018"
    provenance = json.loads((results / "report.json").read_text())["provenance"]
    options = {
        "--results": results.relative_to(root),
        "--data": f"{folder}/report.json",
        "--pdf": f"{folder}/report.pdf",
        "--command": next(fact["value"] for fact in provenance if fact["label"] == "Command"),
    }
    assert main([str(text) for option in options.items() for text in option]) == 0
    return (root / folder / "report.pdf").read_bytes()


@pytest.mark.slow
def test_the_same_results_give_the_same_bytes(made, monkeypatch):
    monkeypatch.chdir(made.root)
    first = build(made.root, "first")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert build(made.root, "second") == first
    assert first == (made.root / "reports/impala_2018.pdf").read_bytes()


@pytest.mark.slow
def test_the_report_is_tagged_and_its_figures_have_alternative_texts(made):
    pdf = (made.root / "reports/impala_2018.pdf").read_bytes()
    assert b"/StructTreeRoot" in pdf
    data = json.loads((made.root / "results/smoke/impala_2018/report.json").read_text())
    assert all(figure["alt"] for figure in data["figures"])
    assert data["figures"]


@pytest.mark.slow
def test_the_first_page_says_what_ran_where_how_long_and_at_what_budget(made):
    data = json.loads((made.root / "results/smoke/impala_2018/report.json").read_text())
    assert [fact["label"] for fact in data["facts"]] == ["What ran", "Where", "How long", "Budget"]
    assert data["facts"][0]["value"].startswith("4 training runs on Catch")
    command = next(fact["value"] for fact in data["provenance"] if fact["label"] == "Command")
    assert command.startswith("snakemake --cores impala_2018 --config ")
    assert "'seeds=[1,2]'" in command
    assert sum(int(count["n"]) for count in data["claim_counts"]) == len(data["claims"])


@pytest.mark.slow
def test_a_report_without_tables_ends_with_one_line(made, tmp_path, capsys):
    shutil.copytree(made.root / "reports", tmp_path / "reports")
    os.makedirs(tmp_path / "results/tables")
    code = main(["--results", str(tmp_path / "results"), "--data", str(tmp_path / "d"), "--pdf", str(tmp_path / "p")])
    assert code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_report_on_no_run_is_refused(tmp_path):
    with pytest.raises(Exception, match="no finished run"):
        report_data({"runs": []}, {}, tmp_path)


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
