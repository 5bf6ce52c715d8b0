"""What counts as a difference in tables and figures, and what a changelog must say about it."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from ddrl.errors import UserError
from ddrl.papers.experiments import load_experiments, papers
from ddrl.regression import evidence
from ddrl.regression.checks import CheckOutcome, timed
from ddrl.regression.evidence import results_changes
from ddrl.report.suite import SUITE
from tests.regression import planted_evidence

ROOT = Path(__file__).parents[2]
PAPER = "paper_2018"
CLAIMS = """\
claim,text,origin,verdict,effect,comparisons,detail
speed,It is fast,reference,supported,1.25,"A against B: 1.25 [1.1, 1.4]",The interval is above. Written after the runs.
depth,Deep is better,reference,inconclusive,,,Not run.
"""
SCORES = """\
origin,experiment,variant,environment,seed,final_return
reference,atari,deep,atari/pong,1,18.88
reference,atari,deep,atari/pong,2,19.5
"""
CURVES = """\
origin,experiment,variant,environment,seed,env_frames,episode_return
reference,atari,deep,atari/pong,1,1000,-20.123456789
reference,atari,deep,atari/pong,1,2000,-19.5
reference,atari,deep,atari/pong,2,1000,-20.25
"""
SVG = "<svg><metadata>Matplotlib v3</metadata><path d='M 0 0'/></svg>"
CHANGELOG = """\
# Changelog

- *changes results* First version,
  with replay.
- *does not change results* Typing.
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one paper, whose reports "build" to the files that are there."""
    run = tmp_path / "results/reference" / PAPER / "atari/deep/atari-pong/seed1/run.json"
    run.parent.mkdir(parents=True)
    run.write_text("{}")
    (tmp_path / "replications" / PAPER).mkdir(parents=True)
    (tmp_path / "replications" / PAPER / "paper.yaml").write_text("key: paper_2018")
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    for name, text in {"tables/claims.csv": CLAIMS, "tables/scores.csv": SCORES, "tables/curves.csv": CURVES}.items():
        write(tmp_path, name, text)
    write(tmp_path, "tables/summary.json", '{"runs": 2, "paper": {"authors": ["A", "B"]}}')
    write(tmp_path, "figures/curves.svg", SVG)
    (made(tmp_path).with_name(SUITE) / "tables").mkdir(parents=True)
    (made(tmp_path).with_name(SUITE) / "tables/claims.csv").write_text(f"paper,{CLAIMS}".replace("\n", "\nx,", 2))
    monkeypatch.setattr(evidence, "rebuild", lambda root: CheckOutcome(True, "as it stands"))
    return tmp_path


def made(root: Path) -> Path:
    return root / evidence.OUTPUT / "evidence" / "reference" / PAPER


def write(root: Path, name: str, text: str) -> None:
    path = made(root) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def edit(root: Path, name: str, before: str, after: str) -> None:
    text = (made(root) / name).read_text()
    assert before in text
    write(root, name, text.replace(before, after))


def say(root: Path, entry: str) -> None:
    with (root / "CHANGELOG.md").open("a") as file:
        file.write(f"{entry}\n")


def accept(root: Path) -> Sequence[str]:
    return list(evidence.accept([], root))


def test_what_was_accepted_passes_and_nothing_else_was_accepted_before(project: Path) -> None:
    assert evidence.check(PAPER, project).passed is False
    assert accept(project) == [f"{name}: accepted for the first time" for name in (PAPER, SUITE)]
    outcome = evidence.check(PAPER, project)
    assert outcome.passed, outcome.line
    assert outcome.line == "7 rows with 19 cells and 3 digests as accepted"
    assert evidence.check(SUITE, project).passed
    unchanged = [f"{name}: accepted (0 differences)" for name in (PAPER, SUITE)]
    assert accept(project) == unchanged, "nothing differs: no entry is needed"


@pytest.mark.parametrize(
    ("name", "before", "after", "says"),
    [
        ("tables/claims.csv", "supported", "contradicted", "claims: speed: verdict supported -> contradicted"),
        ("tables/claims.csv", "supported,1.25", "supported,1.26", "claims: speed: effect 1.25 -> 1.26"),
        ("tables/claims.csv", "supported,1.25", "supported,", "claims: speed: effect 1.25 -> none"),
        ("tables/claims.csv", ",effect", ",size", "claims: speed: column effect is gone"),
        ("tables/claims.csv", "It is fast", "It is swift", "claims: speed: text It is fast -> It is swift"),
        ("tables/claims.csv", "1.4]", "1.41]", "claims: speed: comparisons A against B: 1.25 [1.1, 1.4] -> "),
        ("tables/claims.csv", " Written after the runs.", "", "claims: speed: detail The interval is above. Written"),
        ("tables/summary.json", '"B"', '"C"', "summary: paper.authors.1: value B -> C"),
        ("tables/scores.csv", "18.88", "18.8801", "scores: atari deep atari/pong 1: final_return 18.88 -> 18.8801"),
        ("tables/scores.csv", "pong,2,", "pong,3,", "scores: atari deep atari/pong 2: the row is gone"),
        ("tables/curves.csv", "-19.5", "-19.4", "curves atari deep atari/pong 1: digest "),
        ("tables/curves.csv", "pong,2,", "pong,3,", "curves atari deep atari/pong 2: is gone"),
        ("figures/curves.svg", "M 0 0", "M 0 1", "figure curves: digest "),
    ],
)
def test_a_change_is_named_and_fails_without_a_new_changelog_entry(
    project: Path, name: str, before: str, after: str, says: str
) -> None:
    accept(project)
    edit(project, name, before, after)
    outcome = evidence.check(PAPER, project)
    assert outcome.passed is False
    assert outcome.line.startswith(says)
    with pytest.raises(UserError, match="no new entry"):
        accept(project)
    say(project, "- *does not change results* Nothing to see.")
    assert evidence.check(PAPER, project).passed is False
    say(project, "- *changes results* All of it\n  was wrong.")
    explained = evidence.check(PAPER, project)
    assert explained.passed is False, "what the changelog explains is guarded only once it is accepted"
    assert "'- *changes results* All of it was wrong.': run" in explained.line
    accept(project)
    assert "as accepted" in evidence.check(PAPER, project).line


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("tables/claims.csv", "supported,1.25", "supported,1.2500000001"),
        ("tables/claims.csv", "B: 1.25", "B: 1.25000001"),
        ("tables/curves.csv", "-20.123456789", "-20.123456788"),
        ("figures/curves.svg", "Matplotlib v3", "Matplotlib v4"),
    ],
)
def test_rounding_and_metadata_are_no_change(project: Path, name: str, before: str, after: str) -> None:
    accept(project)
    edit(project, name, before, after)
    assert evidence.check(PAPER, project).passed


def test_a_new_column_table_or_figure_must_be_accepted_but_needs_no_changelog_entry(project: Path) -> None:
    accept(project)
    write(project, "figures/lag.svg", SVG)
    write(project, "tables/aggregates.csv", "origin,experiment,variant,value\nreference,atari,deep,1\n")
    write(project, "tables/scores.csv", SCORES.replace("\n", ",1\n").replace("final_return,1", "final_return,episodes"))
    outcome = evidence.check(PAPER, project)
    assert outcome.passed is False, "nothing guards what was not accepted"
    assert outcome.line.startswith("aggregates: the table is new; 3 differences, nothing else: run")
    assert outcome.details == ("scores: column episodes is new", "figure lag: is new")
    accept(project)
    assert evidence.check(PAPER, project).passed


def test_an_addition_beside_a_change_does_not_hide_it(project: Path) -> None:
    accept(project)
    write(project, "figures/lag.svg", SVG)
    edit(project, "tables/claims.csv", "supported,1.25", "supported,1.5")
    outcome = evidence.check(PAPER, project)
    assert "and no new *changes results* line" in outcome.line
    with pytest.raises(UserError, match="no new entry"):
        accept(project)


@pytest.mark.parametrize("table", ["claims", "scores", "curves"])
def test_one_other_cell_in_any_column_of_any_table_is_a_difference(project: Path, table: str) -> None:
    accept(project)
    path = made(project) / "tables" / f"{table}.csv"
    whole = path.read_text()
    places = list(planted_evidence.every_cell_kind(path))
    assert len(places) >= len(whole.splitlines()[0].split(",")), "every column is filled"
    for column, row in places:
        planted_evidence.with_other_cell(path, column, row)
        assert evidence.check(PAPER, project).passed is False, column
        path.write_text(whole)
    assert evidence.check(PAPER, project).passed


def test_the_tables_of_the_suite_are_compared_too(project: Path) -> None:
    accept(project)
    path = made(project).with_name(SUITE) / "tables" / "claims.csv"
    path.write_text(path.read_text().replace("Deep is better", "Deep is worse"))
    assert evidence.check(PAPER, project).passed
    assert evidence.check(SUITE, project).passed is False


def test_accepted_evidence_without_its_runs_is_no_evidence(project: Path) -> None:
    accept(project)
    (project / "results/reference" / PAPER / "atari/deep/atari-pong/seed1/run.json").unlink()
    assert evidence.names(project) == [PAPER, SUITE]
    with pytest.raises(UserError, match=f"{PAPER}/evidence: its reference runs are gone; restore them, or remove"):
        evidence.check(PAPER, project)
    assert timed(PAPER, lambda: evidence.check(PAPER, project)).passed is False


def test_verdicts_are_named_first(project: Path) -> None:
    accept(project)
    edit(project, "tables/claims.csv", "supported,1.25", "supported,1.5")
    edit(project, "tables/claims.csv", "reference,inconclusive", "reference,supported")
    edit(project, "figures/curves.svg", "M 0 0", "M 0 1")
    outcome = evidence.check(PAPER, project)
    assert outcome.line.startswith("claims: depth: verdict inconclusive -> supported; 3 differences")


def test_changelog_entries_are_told_apart_by_their_words_and_not_by_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "CHANGELOG.md"
    path.write_text(CHANGELOG)
    before = results_changes(path)
    assert list(before.values()) == ["- *changes results* First version, with replay."]
    path.write_text(CHANGELOG.replace("version,\n  with", "version, with"))
    assert results_changes(path) == before


@pytest.mark.parametrize("content", ["{", "{}", '{"tables": ["gone"], "changes": [], "digests": {}, "packages": {}}'])
def test_a_damaged_baseline_is_named(project: Path, content: str) -> None:
    accept(project)
    (evidence.folder(PAPER, project) / "evidence.json").write_text(content)
    with pytest.raises(UserError, match=r"evidence\.json: damaged"):
        evidence.check(PAPER, project)


def test_git_keeps_the_reference_runs_of_every_paper_and_nothing_else_of_them() -> None:
    """A folder may be called like a seed's: the paper seed_rl_2020, its variant `seed`."""
    inside = subprocess.run(["git", "rev-parse", "--is-inside-work-tree"], cwd=ROOT, capture_output=True, check=False)
    if inside.returncode:
        pytest.skip("not a git checkout")
    for paper in papers(ROOT / "replications"):
        for name, experiment in load_experiments(ROOT / "replications" / paper).items():
            for variant in experiment.variants:
                folder = f"results/reference/{paper}/{name}/{variant}/toy-catch/seed1"
                kept = [f"{folder}/{file}" for file in ("run.json", "curves.parquet", "config.json")]
                command = ["git", "check-ignore", *kept, f"{folder}/log.txt", f"{folder}/checkpoints/1.pt"]
                ignored = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
                assert ignored == command[-2:]
