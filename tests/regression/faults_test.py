"""Each planted fault turns at least one check of `make regression` red, and no fault turns none red; a few minutes.

The matrix of what finds what is printed at the end.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from ddrl.papers.experiments import ROOT as REPLICATIONS
from ddrl.regression import evidence, golden, run_all, throughput
from ddrl.regression.checks import CheckOutcome
from ddrl.regression.convergence import verify_against
from ddrl.report.suite import SUITE
from tests.regression import planted, planted_evidence

pytestmark = pytest.mark.regression

ROOT = Path(__file__).parents[2]
PAPER = "impala_2018"
GROUP = f"{PAPER}/off_policy_correction/v_trace/toy-catch"
SEEDS, BUDGET = (101, 102), 120_000
"""Two seeds for so long that a healthy run has reached the threshold well before the end."""
CHECKS = ("golden", "convergence", "throughput", "evidence")
WORDS = {True: "green", False: "RED", None: "not told"}
NOTHING = "nothing"
OF_V_TRACE = planted.OF_LEARNING["v_trace"]

found: dict[tuple[str, str], list[str]] = {}


def note(fault: str, check: str, passed: bool | None) -> None:
    """For the matrix; a check that is made several times stands there with every outcome it had."""
    found.setdefault((fault, check), []).append(WORDS[passed])


def cell(fault: str, check: str) -> str:
    return "/".join(dict.fromkeys(found.get((fault, check), ["-"])))


@pytest.fixture(scope="module", autouse=True)
def matrix(request: pytest.FixtureRequest) -> Iterator[None]:
    """Prints what was found by what, after the last test."""
    yield
    capture = request.config.pluginmanager.get_plugin("capturemanager")
    assert capture is not None
    with capture.global_and_fixture_disabled():
        print(f"\n\n{'planted fault':24}" + "".join(f"{check:>13}" for check in CHECKS))
        for fault in dict.fromkeys(fault for fault, _ in found):
            print(f"{fault:24}" + "".join(f"{cell(fault, check):>13}" for check in CHECKS))


@pytest.mark.parametrize("machine", ["this", "another"])
@pytest.mark.parametrize(
    ("curve", "fault"),
    [(curve, fault) for curve, faults in planted.OF_LEARNING.items() for fault in (NOTHING, *faults)],
)
def test_golden_curves_find_every_fault_of_learning(tmp_path: Path, curve: str, fault: str, machine: str) -> None:
    """Exactly where they were recorded, and to the tolerance elsewhere."""
    path = ROOT / golden.FOLDER / f"{curve}.json"
    if machine == "another":
        recorded = golden.read(path) | {"machine": {}}
        path = tmp_path / path.name
        path.write_text(json.dumps(recorded))
    with nullcontext() if fault == NOTHING else planted.OF_LEARNING[curve][fault].planted():
        outcome = golden.check(path)
    note(fault, "golden", outcome.passed)
    assert outcome.passed is (fault == NOTHING), outcome.line


@pytest.mark.parametrize(
    ("fault", "passes"),
    [
        (NOTHING, True),
        ("wrong sign in V-trace", False),
        ("halved learning rate", False),
        # An unroll of 20 steps is two episodes of Catch, and its last step the dead one between episodes.
        ("dropped last step", True),
    ],
)
def test_convergence_finds_what_slows_learning(tmp_path: Path, fault: str, passes: bool) -> None:
    with nullcontext() if fault == NOTHING else OF_V_TRACE[fault].planted():
        run_all.train_seeds(ROOT / run_all.REFERENCE / GROUP, tmp_path / GROUP, SEEDS, env_frames=BUDGET)
    checks = verify_against(tmp_path, ROOT / run_all.REFERENCE, replications=ROOT / REPLICATIONS)
    frames = next((check for check in checks if "frames to" in check.name), None)
    assert frames, checks
    note(fault, "convergence", frames.passed)
    assert frames.passed is passes, frames.line


def test_the_throughput_guard_finds_a_slowed_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput, "REPEATS", 1)
    with planted.slowed_queue().planted():
        outcome = throughput.check(ROOT)
    note("slowed queue", "throughput", outcome.passed)
    if outcome.passed is None:
        pytest.skip(outcome.line)
    assert outcome.passed is False, outcome.line
    assert "of the sum-of-parts bound" in outcome.line


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what reports are made from, its present evidence accepted."""
    root = tmp_path_factory.mktemp("project")
    for name in ("replications", "reports"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__", "*.pdf", "*.html"))
    shutil.copytree(ROOT / run_all.REFERENCE, root / run_all.REFERENCE, ignore=shutil.ignore_patterns("evidence"))
    shutil.copy(ROOT / "CHANGELOG.md", root)
    papers = sorted(
        path.name for path in (root / run_all.REFERENCE).iterdir() if (root / REPLICATIONS / path.name).exists()
    )
    assert PAPER in papers
    accepted = [f"{name}: accepted for the first time" for name in (*papers, SUITE)]
    assert sorted(evidence.accept([], root)) == sorted(accepted)
    return root


@pytest.fixture
def tables(project: Path) -> Iterator[dict[str, Path]]:
    """The folder of the tables of each paper and of the suite; they are as they were afterwards."""
    evidence_of = project / evidence.OUTPUT / "evidence" / "reference"
    folders = {name: evidence_of / name / "tables" for name in evidence.names(project)}
    for name, folder in folders.items():
        shutil.copytree(folder, evidence_of / name / "whole")
    yield folders
    for name, folder in folders.items():
        shutil.rmtree(folder)
        (evidence_of / name / "whole").rename(folder)


@pytest.mark.parametrize("fault", planted_evidence.OF_EVIDENCE)
def test_the_evidence_check_finds_notes_and_numbers_that_were_taken_out_or_put_in(
    project: Path, tables: dict[str, Path], fault: str
) -> None:
    changed = {name for name, folder in tables.items() if planted_evidence.OF_EVIDENCE[fault](folder)}
    assert changed > {SUITE}, "the fault finds nothing to take out"
    red = {name for name in tables if evidence.check(name, project).passed is False}
    note(fault, "evidence", not red)
    assert red == changed


@pytest.mark.parametrize("paper", ["a3c_2016", SUITE])
def test_another_word_in_any_section_of_a_report_is_found(project: Path, paper: str) -> None:
    page = project / evidence.OUTPUT / f"{paper}.html"
    whole = page.read_text()
    sections = [part.partition('"')[0] for part in whole.split('<section id="')[1:]]
    assert len(sections) > 5
    for section in sections:
        before, mark, after = whole.partition(f'<section id="{section}"')
        after = after.replace("</h2>", " not</h2>", 1).replace("</summary>", " not</summary>", 1)
        page.write_text(before + mark + after)
        outcome = evidence.check(paper, project)
        assert outcome.passed is False and outcome.line.startswith(f"report_page: {section} 1: text "), outcome.line
    page.write_text(whole)
    assert evidence.check(paper, project).passed


@pytest.mark.parametrize("paper", ["a3c_2016", SUITE])
def test_one_other_cell_in_any_column_of_any_table_is_found(project: Path, tables: dict[str, Path], paper: str) -> None:
    unseen = []
    for path in sorted(tables[paper].glob("*.csv")):
        whole = path.read_bytes()
        for column, row in planted_evidence.every_cell_kind(path):
            planted_evidence.with_other_cell(path, column, row)
            if evidence.check(paper, project).passed is not False:
                unseen.append(f"{path.stem}.{column}")
            path.write_bytes(whole)
    assert unseen == []


def test_a_changed_verdict_needs_a_line_in_the_changelog(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert judged(project).passed, "the same files give the same evidence"
    planted_evidence.turn_over_returns((project / run_all.REFERENCE / GROUP).parent)

    outcome = judged(project)
    note("changed verdict", "evidence", outcome.passed)
    assert outcome.passed is False
    assert "verdict supported -> contradicted" in outcome.line
    assert "CHANGELOG.md" in outcome.line

    monkeypatch.setattr(evidence, "rebuild", lambda root: CheckOutcome(True, "as it stands"))
    with pytest.raises(evidence.UserError, match="no new entry"):
        list(evidence.accept([PAPER], project))
    with (project / "CHANGELOG.md").open("a") as file:
        file.write("- *changes results* V-trace on Catch became worse,\n  on purpose.\n")
    explained = evidence.check(PAPER, project)
    assert explained.passed is False, "not before it is accepted"
    assert "became worse, on purpose" in explained.line
    assert len(list(evidence.accept([PAPER], project))) == 1
    assert "as accepted" in evidence.check(PAPER, project).line


def judged(project: Path) -> CheckOutcome:
    evidence.rebuild(project)
    return evidence.check(PAPER, project)


def test_make_regression_runs_the_checks_and_these_tests() -> None:
    """A target that ran nothing would be green."""
    lines = (ROOT / "Makefile").read_text().splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("regression:"))
    target = "\n".join(lines[start : lines.index("", start)])
    assert "-m ddrl.regression check" in target
    assert "-m regression" in target
    assert not os.path.lexists(ROOT / "tests" / "learning" / "regression_test.py")
