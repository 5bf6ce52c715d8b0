"""What documents say follows from the code: pages, commands, settings, pseudo-code, the table of the README."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from ddrl import algorithms
from ddrl.cli.arguments import parser
from ddrl.cli.run_settings import run_config
from ddrl.training.config.keys import all_keys
from docs.sitegen import code, commands, evidence, hook, keys, links, pages, pictures, readme

ROOT = Path(__file__).resolve().parents[2]
WRITTEN = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [path.relative_to(ROOT).as_posix() for path in WRITTEN]
BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
STEPS = re.compile(r"^<!-- generated: steps (.+) -->\n((?:\d.*\n)+)", re.MULTILINE)


def blocks(language: str) -> Iterator[tuple[str, str]]:
    """Yield (document, text) of every code block in a language."""
    for name in NAMES:
        found = BLOCK.findall((ROOT / name).read_text(encoding="utf-8"))
        yield from ((name, text) for given, text in found if given == language)


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """Yield (document, words) of every call of `ddrl` in a shell block."""
    for name, text in blocks("sh"):
        for line in text.replace("\\\n", " ").splitlines():
            words = [*shlex.split(line, comments=True), ";"]
            ends = [at for at, word in enumerate(words) if word in ("&&", ";", "|", ">")]
            for start, end in zip([0, *(at + 1 for at in ends)], ends, strict=False):
                if words[start] in ("ddrl", ".venv/bin/ddrl"):
                    yield name, words[start + 1 : end]


def test_every_command_in_a_document_is_one_that_ddrl_takes() -> None:
    found = list(command_lines())
    assert len(found) > 30
    for name, words in found:
        try:
            parsed = parser().parse_args(words)
        except SystemExit:
            pytest.fail(f"{name}: ddrl {' '.join(words)}")
        own = any(word.partition("/")[2].startswith("my_") or word.startswith("my_") for word in words)  # the reader's
        if words[0] == "train" and not words[1].endswith((".yaml", ".json")) and not own:
            assert run_config(parsed.run_words).env_frames > 0


@pytest.mark.parametrize("name", sorted({name for name, _ in blocks("python")}))
def test_python_in_a_document_is_python(name: str) -> None:
    for found, text in blocks("python"):
        if found == name:
            ast.parse(text)


@pytest.mark.parametrize("name", sorted({name for name, _ in blocks("yaml")}))
def test_yaml_in_a_document_is_yaml(name: str) -> None:
    for found, text in blocks("yaml"):
        if found == name:
            yaml.safe_load(text)


@pytest.mark.parametrize("name", algorithms.NAMES)
def test_every_algorithm_has_a_page_with_all_its_settings(name: str) -> None:
    page = (ROOT / "docs" / "algorithms" / f"{name}.md").read_text(encoding="utf-8")
    for title in ("Equations", "Pseudo-code and code", "Settings", "Reference curves", "Deviations", "Known traps"):
        assert f"\n## {title}\n" in page
    assert f"<!-- generated: settings {name} -->" in page
    table = keys.hyperparameters(name)
    for key in all_keys(name):
        if key.name.startswith(keys.HYPERPARAMETERS):
            assert f"| `{key.name.removeprefix(keys.HYPERPARAMETERS)}` |" in table


@pytest.mark.parametrize("name", algorithms.NAMES)
def test_every_numbered_line_of_an_algorithm_stands_beside_its_pseudo_code(name: str) -> None:
    page = (ROOT / "docs" / "algorithms" / f"{name}.md").read_text(encoding="utf-8")
    for paths, text in STEPS.findall(page):
        listed = {number for item in re.findall(r"^(\d+(?:-\d+)?)\.", text, re.MULTILINE) for number in numbers(item)}
        assert listed == set(code.numbered_lines(paths.split())), paths
    own = f"ddrl/algorithms/{name}.py"
    assert any(own in paths.split() for paths, _ in STEPS.findall(page)) or not code.numbered_lines([own])


def numbers(item: str) -> range:
    """Return the numbers of `5-7` or `5`."""
    first, _, last = item.partition("-")
    return range(int(first), int(last or first) + 1)


def test_an_algorithm_without_a_page_gets_one_from_its_module() -> None:
    from docs.sitegen.algorithms import default_page

    page = default_page("impala")
    assert page.startswith("# IMPALA\n") and "<!-- generated: settings impala -->" in page


def test_the_code_beside_a_line_is_the_statement_with_its_number() -> None:
    found = code.numbered_lines(["ddrl/algorithms/impala.py"])
    (path, statement), *_ = found[5]
    assert path == "ddrl/algorithms/impala.py" and statement.startswith("return self.core.update(  # 5")
    assert statement.endswith(")")


@pytest.mark.parametrize("key", evidence.keys_of_papers())
def test_every_paper_has_a_page_with_each_claim_and_deviation(key: str) -> None:
    page = (ROOT / "docs" / "papers" / f"{key}.md").read_text(encoding="utf-8")
    for marker in ("citation", "claims", "figures", "cells", "deviations"):
        assert f"<!-- generated: {marker} {key} -->" in page
    shown = evidence.claims(key)
    assert all(claim.source.split(",")[0] in shown for claim in evidence.paper(key).claims)
    assert shown.count("**") == 2 * len(evidence.paper(key).claims)


def test_every_command_has_a_section() -> None:
    text = commands.all_commands()
    assert re.findall(r"^## ddrl (\w+)$", text, re.MULTILINE) == list(commands.subcommands())
    assert "`--print-config`" in text


def test_every_key_of_a_run_is_in_the_reference() -> None:
    text = keys.run_keys()
    assert [key.name for key in all_keys() if f"`{key.name}`" not in text] == []


@pytest.mark.parametrize("name", NAMES)
def test_every_marker_in_a_document_is_known(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    markers = re.findall(r"<!-- generated: (\S+)", text)
    assert set(markers) <= set(hook.MARKERS)
    assert len(markers) == len(hook.MARKER.findall(text))  # each on a line of its own, or it would stay as it is


def test_every_guide_is_in_the_navigation() -> None:
    listed = str(pages.navigation())
    assert [path.name for path in (ROOT / "docs").rglob("*.md") if f"{path.stem}.md'" not in listed] == []


@pytest.mark.parametrize(
    ("uri", "link", "expected"),
    [
        ("cluster.md", "[why](../DECISIONS.md)", "[why](DECISIONS.md)"),
        ("guide/training.md", "[why](../../DECISIONS.md#3)", "[why](../DECISIONS.md#3)"),
        ("guide/training.md", "[clusters](../cluster.md)", "[clusters](../cluster.md)"),
        ("CHANGELOG.md", "[page](docs/cluster.md)", "[page](cluster.md)"),
        ("CONTRIBUTING.md", "[readme](README.md)", "readme (`README.md`)"),
        ("cluster.md", "[a site](https://example.org)", "[a site](https://example.org)"),
        ("cluster.md", "[nothing](nowhere.md)", "[nothing](nowhere.md)"),
    ],
)
def test_a_link_leads_to_the_page_of_the_site_or_names_the_file(uri: str, link: str, expected: str) -> None:
    assert links.for_site(link, uri) == expected


def test_a_formula_is_drawn_in_the_colour_of_the_text() -> None:
    html = pictures.with_formulas(r'<p><span class="arithmatex">\(\frac{\pi(a|x)}{\mu(a|x)}\)</span></p>')
    assert (
        'fill="currentColor"' in html and r'aria-label="\frac{\pi(a|x)}{\mu(a|x)}"' in html and "arithmatex" not in html
    )


def test_a_diagram_puts_what_is_imported_below() -> None:
    svg = pictures.with_diagrams("```mermaid\nflowchart TD\n    a --> b\n    b --> c\n    a --> c\n```\n")
    heights = {name: float(y) for y, name in re.findall(r'y="([\d.]+)">(\w)</text>', svg)}
    assert heights["a"] < heights["b"] < heights["c"] and "mermaid" not in svg


def test_every_target_of_make_in_a_document_is_one_of_the_makefile() -> None:
    lines = [(name, line) for name, text in blocks("sh") for line in text.splitlines()]
    used = {(name, target) for name, line in lines for target in re.findall(r"(?:^|&& )make (\S+)", line)}
    targets = re.findall(r"^([a-z]+):.* ## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(used) > 10
    assert {(name, target) for name, target in used if target not in targets} == set()


@pytest.mark.parametrize("name", ["README.md", "docs/tutorial.md"])
def test_a_new_reader_makes_the_environment_before_activating_it(name: str) -> None:
    (block,) = (text for found, text in blocks("sh") if found == name and "source .venv/bin/activate" in text)
    assert "make setup" in block.partition("source .venv/bin/activate")[0]


@pytest.mark.parametrize("key", evidence.keys_of_papers())
def test_the_table_of_papers_counts_the_published_numbers_that_have_one_of_ours(key: str) -> None:
    (line,) = (line for line in evidence.table_of_papers("").splitlines() if f"]({key}.md)" in line)
    cells = evidence.rows(key, "cells")
    assert line.endswith(f"| {len([row for row in cells if row['ours']])} of {len(cells)} |")


def test_the_readme_is_short_and_its_table_is_that_of_the_evidence() -> None:
    text = readme.README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 200
    assert readme.with_table(text) == text, "python -m docs.sitegen.readme writes it"
    assert readme.with_table(text.replace(readme.BEGIN, f"{readme.BEGIN}\nold")) == text


@pytest.mark.parametrize("key", evidence.keys_of_papers())
def test_flags_of_numbers_are_spelled_as_reports_spell_them(key: str) -> None:
    flagged = [row for row in evidence.rows(key, "cells") if row["ours"] and "env_version_gap" in row["flags"]]
    assert evidence.cells(key).count("env version gap (") == len(flagged)
