"""`ddrl discard` and `ddrl keep`: each reference run that goes has a row in the ledger."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml

from ddrl.cli import main
from ddrl.cli.discarding import from_history
from ddrl.papers.discarded import counts, read_ledger, write_ledger
from ddrl.report.sections.chosen import discarded

ROOT = Path(__file__).parents[2]
PLACE = "impala_2018/atari/shallow/atari-pong/seed3"


def write_run(results: Path, scale: str, started: str = "2026-01-01T00:00:00+00:00", **facts: object) -> Path:
    """A run that has finished, as far as these commands look."""
    folder = results / scale / PLACE
    folder.mkdir(parents=True)
    config = {"algorithm": "impala", "seed": 3, "env_frames": 100, "recording": {"period_frames": 10}}
    manifest = {"config": config, "env_frames": 104, "exit_reason": "budget_reached", "started": started, **facts}
    (folder / "run.json").write_text(json.dumps(manifest))
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "curves.parquet").write_bytes(b"curves")
    (folder / "log.txt").write_text("no part of the evidence")
    return folder


def typed(command: str, run: Path, results: Path, *more: str) -> int:
    return main([command, str(run), "--results", str(results), *more])


def test_a_run_that_is_discarded_moves_out_and_leaves_a_row(tmp_path: Path) -> None:
    run = write_run(tmp_path, "reference")
    assert typed("discard", run, tmp_path, "--reason", "learning rate of another paper") == 0
    assert not run.exists()
    (row,) = read_ledger(tmp_path)
    assert row.place == ("impala_2018", "atari", "shallow", "atari/pong", "3")
    assert (row.frames, row.end, row.reason) == ("104", "finished", "learning rate of another paper")
    assert (row.replaced_by, row.commit) == ("", "")
    assert [path.name for path in (tmp_path / "discarded" / PLACE).glob("*/run.json")] == ["run.json"]


def test_without_a_reason_or_for_another_folder_nothing_moves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, other = write_run(tmp_path, "reference"), write_run(tmp_path, "workstation")
    assert typed("discard", run, tmp_path, "--reason", " ") == 2
    assert main(["discard", str(run), str(other), "--results", str(tmp_path), "--reason", "x"]) == 2
    assert f"{other}: is no run below {tmp_path / 'reference'}" in capsys.readouterr().err
    assert run.exists() and other.exists() and read_ledger(tmp_path) == []


@pytest.mark.parametrize("fault", ["no mapping", "no JSON", "a folder too deep", "ledger without a column"])
def test_what_is_damaged_is_refused_before_anything_is_written_or_moved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    run = write_run(tmp_path, "reference")
    bad = run.with_name("seed4")
    bad.mkdir()
    (bad / "run.json").write_text({"no mapping": "[]", "no JSON": "{"}.get(fault, "{}"))
    if fault == "a folder too deep":
        (tmp_path / "reference" / "more").mkdir()
        (tmp_path / "reference" / "impala_2018").rename(tmp_path / "reference/more/impala_2018")
        run, bad = (tmp_path / "reference/more" / one.relative_to(tmp_path / "reference") for one in (run, bad))
    ledger = tmp_path / "reference" / "discarded.csv"
    if fault == "ledger without a column":
        ledger.write_text("paper,experiment\na3c_2016,atari\n")
    before = ledger.read_text() if ledger.exists() else None
    assert main(["discard", str(run), str(bad), "--results", str(tmp_path), "--reason", "x"]) == 2
    said = capsys.readouterr().err
    assert (
        str(ledger) if "ledger" in fault else str(run if "deep" in fault else bad)
    ) in said and "Traceback" not in said
    assert run.exists() and bad.exists() and (ledger.read_text() if ledger.exists() else None) == before


def test_a_run_that_is_kept_replaces_one_only_with_a_reason_and_a_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path, "workstation")
    assert typed("keep", run, tmp_path) == 0
    target = tmp_path / "reference" / PLACE
    assert sorted(path.name for path in target.iterdir()) == ["config.json", "curves.parquet", "run.json"]
    assert read_ledger(tmp_path) == []
    (run / "run.json").write_text((run / "run.json").read_text().replace("2026-01-01", "2026-02-02"))
    assert typed("keep", run, tmp_path) == 2
    assert "exists; allowed with --reason" in capsys.readouterr().err
    assert typed("keep", run, tmp_path, "--reason", "a later version") == 0
    (row,) = read_ledger(tmp_path)
    assert row.started.startswith("2026-01-01")
    assert row.replaced_by == "atari/shallow/atari-pong/seed3"
    assert "2026-02-02" in (target / "run.json").read_text()


def test_runs_of_an_unclean_checkout_or_without_curves_are_not_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path, "workstation", git_dirty=True)
    assert typed("keep", run, tmp_path) == 2
    assert "with uncommitted changes; allowed: runs of a clean checkout" in capsys.readouterr().err
    (run / "curves.parquet").unlink()
    assert typed("keep", run, tmp_path) == 2
    assert "has no curves.parquet" in capsys.readouterr().err


def git(*arguments: str) -> None:
    names = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    subprocess.run(["git", *arguments], env={**os.environ, **names}, check=True)


def test_history_tells_runs_that_were_replaced_or_dropped_from_those_that_moved_or_were_edited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    git("init", "--quiet")

    def commit(message: str) -> None:
        git("add", "--all")
        git("commit", "--quiet", "--message", message)

    run = write_run(Path("results"), "reference")
    commit("first")
    manifest = run / "run.json"
    manifest.write_text(manifest.read_text().replace("104", "105"))
    commit("the manifest alone is edited")
    manifest.write_text(manifest.read_text().replace("2026-01-01", "2026-02-02"))
    commit("made again")
    moved = run.parent / "seed5"
    run.rename(moved)
    commit("moved")
    (moved.parent / "seed6").mkdir()
    (moved.parent / "seed6/run.json").write_text('{"started": "2026-03-03"}')
    (moved / "run.json").unlink()
    commit("another seed than that of commit 5")
    assert main(["discard", "--check"]) == 1
    said = capsys.readouterr().out.splitlines()
    assert [line.partition(",")[0] for line in said] == [
        f"impala_2018/atari/shallow/atari/pong/{seed}" for seed in (3, 5)
    ]
    again, dropped = from_history(Path("results"))
    write_ledger(Path("results"), [again, dropped])
    assert main(["discard", "--check"]) == 0
    assert (again.reason, again.seed, again.replaced_by) == ("made again", "3", "atari/shallow/atari-pong/seed3")
    assert (dropped.reason, dropped.seed, dropped.replaced_by) == (
        "another seed than that of commit 5",
        "5",
        "atari/shallow/atari-pong/seed6",
    )
    assert again.settings == dropped.settings and again.started < dropped.started
    invented = dataclasses.replace(again, seed="4")
    capsys.readouterr()
    for surplus in (again, invented):  # a row that stands twice, and one of a run that never was
        write_ledger(Path("results"), [again, dropped, surplus])
        assert main(["discard", "--check"]) == 1
        (line,) = capsys.readouterr().out.splitlines()
        assert line.startswith(f"impala_2018/atari/shallow/atari/pong/{surplus.seed}, begun 2026-01-01")
        assert line.endswith("has more rows in the ledger than runs that were discarded")
    write_ledger(Path("results"), [again, dropped])
    newest = write_run(Path("results"), "reference", "2026-04-04T00:00:00+00:00")
    assert typed("discard", newest, Path("results"), "--reason", "not committed yet") == 0
    assert main(["discard", "--check"]) == 0, "its run is in results/discarded"
    write_ledger(Path("results"), [again, dropped])
    monkeypatch.chdir("/")
    assert from_history(tmp_path / "results") == [again, dropped], "wherever the command is typed"
    assert main(["discard", "--check", "--results", str(tmp_path / "results")]) == 0


def test_a_run_that_a_merge_itself_removes_is_lost_and_one_that_a_side_removed_is_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    git("init", "--quiet", "--initial-branch", "main")

    def commit(message: str) -> None:
        git("add", "--all")
        git("commit", "--quiet", "--allow-empty", "--message", message)

    first = write_run(Path("results"), "reference", "2026-01-01T00:00:00+00:00")
    second = first.parent / "seed7"
    second.mkdir()
    (second / "run.json").write_text('{"started": "2026-05-05T00:00:00+00:00"}')
    commit("two runs")
    git("checkout", "--quiet", "-b", "side")
    (second / "run.json").unlink()
    commit("a side removes one")
    git("checkout", "--quiet", "main")
    (tmp_path / "other").write_text("")
    commit("something else")
    git("merge", "--quiet", "--no-commit", "--no-ff", "side")
    (first / "run.json").unlink()
    commit("a merge, which removes the other")
    assert [(row.seed, row.reason) for row in from_history(Path("results"))] == [
        ("7", "a side removes one"),
        ("3", "a merge, which removes the other"),
    ]
    write_ledger(Path("results"), from_history(Path("results")))
    assert main(["discard", "--check"]) == 0
    assert "every discarded run" in capsys.readouterr().out


def test_a_discarded_run_that_came_back_is_told_from_one_that_was_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    git("init", "--quiet", "--initial-branch", "main")
    run = write_run(Path("results"), "reference")
    git("add", "--all")
    git("commit", "--quiet", "--message", "one run")
    assert typed("discard", run, Path("results"), "--reason", "a fault") == 0
    write_run(Path("results"), "reference", "2026-02-02T00:00:00+00:00")
    assert main(["discard", "--check"]) == 0
    git("checkout", "--quiet", "--", "results/reference/impala_2018")
    capsys.readouterr()
    assert main(["discard", "--check"]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.endswith("begun 2026-01-01T00:00:00+00:00: is in the ledger, and is a reference run again")


def test_a_history_that_is_cut_off_shows_no_lost_run_and_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = tmp_path / "whole"
    run = write_run(whole / "results", "reference")
    git("-C", str(whole), "init", "--quiet")
    for message in ("first", "lost"):
        git("-C", str(whole), "add", "--all")
        git("-C", str(whole), "commit", "--quiet", "--message", message)
        (run / "run.json").unlink(missing_ok=True)
        (whole / "results" / "notes").write_text("kept")
    git("clone", "--quiet", "--depth", "1", f"file://{whole}", str(tmp_path / "cut"))
    assert main(["discard", "--check", "--results", str(whole / "results")]) == 1
    assert main(["discard", "--check", "--results", str(tmp_path / "cut" / "results")]) == 2
    assert "cut off (shallow)" in capsys.readouterr().err
    assert main(["discard", "--check", "--results", str(tmp_path)]) == 2
    assert f"{tmp_path}: is in no repository of git" in capsys.readouterr().err


def test_a_run_that_is_given_twice_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, other = write_run(tmp_path, "reference"), write_run(tmp_path, "workstation")
    twice = [str(run), f"{run.parent}/../{run.parent.name}/{run.name}"]
    assert main(["discard", *twice, "--results", str(tmp_path), "--reason", "x"]) == 2
    assert f"{PLACE}: is given 2 times" in capsys.readouterr().err
    assert run.exists() and read_ledger(tmp_path) == []
    again = write_run(tmp_path / "another", "workstation")
    run.rename(tmp_path / "seed3")
    assert main(["keep", str(other), str(again), "--results", str(tmp_path)]) == 2
    assert f"{PLACE}: is given 2 times" in capsys.readouterr().err
    assert not run.exists()


def test_the_ledger_has_every_reference_run_that_the_history_of_git_has_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    asked = ["git", "rev-parse", "--is-shallow-repository"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    if done.stdout.strip() != "false":
        pytest.skip("no repository with its history")
    assert main(["discard", "--check"]) == 0


def test_continuous_integration_has_the_history_without_which_tests_are_skipped() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    first = jobs["check"]["steps"][0]
    assert first["uses"].startswith("actions/checkout@")
    assert first["with"]["fetch-depth"] == 0


def test_the_committed_ledger_has_the_runs_that_were_replaced_before_there_was_one() -> None:
    rows = read_ledger(ROOT / "results")
    assert len(rows) >= 108
    seeds = {row.seed for row in rows if row.experiment == "dmlab30_subset"}
    assert {"71", "72", "73", "93", "94"} <= seeds
    assert all(row.reason and row.when and row.end for row in rows)


def test_a_report_says_how_many_runs_were_discarded() -> None:
    found = counts(read_ledger(ROOT / "results"), "impact_2020")
    assert found == {"continuous": 6}
    titles = {"continuous": {"title": "Continuous control"}}
    said = discarded(found, titles).value
    assert said.startswith(
        "6 reference runs dropped or replaced, each with its reason in results/reference/discarded.csv"
    )
    assert said.endswith("6 of “Continuous control”")
    assert discarded({}, titles).value == "no reference run of this paper was ever dropped or replaced"
