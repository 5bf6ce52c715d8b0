"""Each planted fault turns at least one check of `make regression` red, and no fault turns none red; about a minute.

The matrix of what finds what is printed at the end.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from ddrl.analysis.experiments import ROOT as REPLICATIONS
from ddrl.regression import evidence, golden, suite, throughput
from ddrl.regression.checks import Outcome
from ddrl.regression.convergence import verify_against
from tests.regression import planted

pytestmark = pytest.mark.regression

ROOT = Path(__file__).parents[2]
GROUP = "impala_2018/off_policy_correction/v_trace/toy-catch"
SEEDS, BUDGET = (101, 102), 120_000
"""Two seeds for so long that a healthy run has reached the threshold well before the end."""
CHECKS = ("golden", "convergence", "throughput", "evidence")
WORDS = {True: "green", False: "RED", None: "not told"}

found: dict[tuple[str, str], str] = {}


@pytest.fixture(scope="module", autouse=True)
def matrix(request: pytest.FixtureRequest) -> Iterator[None]:
    """Prints what was found by what, after the last test."""
    yield
    capture = request.config.pluginmanager.get_plugin("capturemanager")
    assert capture is not None
    with capture.global_and_fixture_disabled():
        print(f"\n\n{'planted fault':24}" + "".join(f"{check:>13}" for check in CHECKS))
        for fault in dict.fromkeys(fault for fault, _ in found):
            print(f"{fault:24}" + "".join(f"{found.get((fault, check), '-'):>13}" for check in CHECKS))


@pytest.mark.parametrize("machine", ["this", "another"])
@pytest.mark.parametrize("fault", planted.OF_LEARNING)
def test_golden_curves_find_every_fault_of_learning(tmp_path: Path, fault: str, machine: str) -> None:
    """Exactly where they were recorded, and to the tolerance elsewhere."""
    path = ROOT / golden.FOLDER / "v_trace.json"
    if machine == "another":
        recorded = golden.read(path) | {"machine": {}}
        path = tmp_path / path.name
        path.write_text(json.dumps(recorded))
    with planted.OF_LEARNING[fault]():
        outcome = golden.check(path)
    found[fault, "golden"] = WORDS[outcome.passed]
    assert outcome.passed is (fault == "nothing"), outcome.line


@pytest.mark.parametrize(
    ("fault", "passes"),
    [
        ("nothing", True),
        ("wrong sign in V-trace", False),
        ("halved learning rate", False),
        # An unroll of 20 steps is two episodes of Catch, and its last step the dead one between episodes.
        ("dropped last step", True),
    ],
)
def test_convergence_finds_what_slows_learning(tmp_path: Path, fault: str, passes: bool) -> None:
    with planted.OF_LEARNING[fault]():
        suite.train_seeds(ROOT / suite.REFERENCE / GROUP, tmp_path / GROUP, SEEDS, env_frames=BUDGET)
    checks = verify_against(tmp_path, ROOT / suite.REFERENCE, replications=ROOT / REPLICATIONS)
    frames = next(check for check in checks if "frames to" in check.name)
    found[fault, "convergence"] = WORDS[frames.passed]
    assert frames.passed is passes, frames.line


def test_the_throughput_guard_finds_a_slowed_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput, "REPEATS", 1)
    with planted.slowed_queue():
        outcome = throughput.check(ROOT)
    found["slowed queue", "throughput"] = WORDS[outcome.passed]
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
    shutil.copytree(ROOT / suite.REFERENCE, root / suite.REFERENCE, ignore=shutil.ignore_patterns("evidence"))
    shutil.copy(ROOT / "CHANGELOG.md", root)
    assert list(evidence.accept([], root)) == ["impala_2018: accepted for the first time"]
    return root


def test_a_changed_verdict_needs_a_line_in_the_changelog(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paper = "impala_2018"
    assert judged(project).passed, "the same files give the same evidence"
    make_worse(project / suite.REFERENCE / paper / "off_policy_correction" / "v_trace")

    outcome = judged(project)
    found["changed verdict", "evidence"] = WORDS[outcome.passed]
    assert outcome.passed is False
    assert "verdict supported -> contradicted" in outcome.line
    assert "CHANGELOG.md" in outcome.line

    monkeypatch.setattr(evidence, "rebuild", lambda root: Outcome(True, "as it stands"))
    with pytest.raises(evidence.UserError, match="no new entry"):
        list(evidence.accept([paper], project))
    with (project / "CHANGELOG.md").open("a") as file:
        file.write("- *changes results* V-trace on Catch became worse,\n  on purpose.\n")
    explained = evidence.check(paper, project)
    assert explained.passed
    assert "became worse, on purpose" in explained.line
    assert len(list(evidence.accept([paper], project))) == 1
    assert "as accepted" in evidence.check(paper, project).line


def judged(project: Path) -> Outcome:
    evidence.rebuild(project)
    return evidence.check("impala_2018", project)


def make_worse(variant: Path) -> None:
    """Every return of a variant, turned upside down."""
    for path in variant.glob("*/seed*/curves.parquet"):
        table = pd.read_parquet(path)
        returns = table["metric"].isin(["episode_return", "evaluation_return"])
        table.loc[returns, "value"] *= -1
        table.to_parquet(path, index=False)


def test_make_regression_runs_the_checks_and_these_tests() -> None:
    """A target that ran nothing would be green."""
    lines = (ROOT / "Makefile").read_text().splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("regression:"))
    target = "\n".join(lines[start : lines.index("", start)])
    assert "-m ddrl.regression check" in target
    assert "-m regression" in target
    assert not os.path.lexists(ROOT / "tests" / "learning" / "regression_test.py")
