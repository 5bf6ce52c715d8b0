"""Verdicts on claims: one list, which every output follows."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from ddrl.analysis.figures import plots
from ddrl.papers.claim_verdicts import CLAIM_VERDICTS, DECIDED, DISTURBANCES, OBSTACLES, VERDICTS, said
from ddrl.report.figures import VERDICTS as DRAWN

ROOT = Path(__file__).parents[2]
OWN = {ROOT / "ddrl/papers/claim_verdicts.py", ROOT / "ddrl/analysis/verdicts/claim_decisions.py"}
"""The list, and the rule that decides between those that it names."""
HERE = set(CLAIM_VERDICTS) - {"inconclusive", "not_run"}
"""Verdicts that cells do not have as well."""


def listed(path: Path) -> set[str]:
    """The verdicts that the keys of a dictionary, or the items of a list, tuple or set of a file name together."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        parts = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", [])
        names = {part.value for part in parts if isinstance(part, ast.Constant)} & HERE
        if len(names) > 1:
            found |= names
    return found


@pytest.mark.parametrize("folder", ["ddrl", "docs/sitegen", "replications"])
def test_no_other_file_lists_the_verdicts_on_claims(folder: str) -> None:
    second = {str(path): names for path in (ROOT / folder).rglob("*.py") if path not in OWN and (names := listed(path))}
    assert not second


def test_a_second_list_would_be_found(tmp_path: Path) -> None:
    path = tmp_path / "second.py"
    path.write_text('WORDS = {"supported": "yes", "contradicted": "no"}')
    assert listed(path) == {"supported", "contradicted"}


@pytest.mark.parametrize("sheet", ["reports/style.css", "docs/assets/site.css"])
@pytest.mark.parametrize("verdict", [*DECIDED])
def test_every_verdict_that_decides_has_a_colour_of_its_own_on_pages(sheet: str, verdict: str) -> None:
    assert f".{verdict} " in (ROOT / sheet).read_text().replace(",", " ")


@pytest.mark.parametrize("verdict", CLAIM_VERDICTS)
def test_every_verdict_has_a_colour_in_reports_and_figures(verdict: str) -> None:
    assert f"  {verdict}: (rgb(" in (ROOT / "reports/template.typ").read_text()
    assert DRAWN[verdict] == VERDICTS[verdict].colour
    assert VERDICTS["supported"].colour == plots.GREEN


def test_what_is_not_testable_says_what_it_needs() -> None:
    assert said("not_testable", "gpu") == "not testable: needs a GPU"
    assert said("not_testable", "gpu;ceiling") == "not testable: needs a GPU, at the ceiling"
    assert said("contradicted_here", "") == "contradicted here"
    assert not set(OBSTACLES) & set(DISTURBANCES)


def test_no_output_says_that_more_seeds_would_not_help_whom_nobody_has_seen_learn() -> None:
    guide = (ROOT / "docs/guide/reading_reports.md").read_text()
    for text in (VERDICTS["not_testable"].meaning, guide):
        assert "however many seeds" not in text
        assert "not shown to be above random play" in text


def test_the_guide_explains_every_verdict() -> None:
    guide = (ROOT / "docs/guide/reading_reports.md").read_text()
    for verdict in VERDICTS.values():
        assert f"| `{verdict.name}` | " in guide
