"""Progress off a terminal is plain lines: frames, frames/s, return, lag, time left."""

import time
from pathlib import Path

import pytest

from ddrl.training.records import progress
from ddrl.training.records.progress import Progress
from ddrl.training.records.recorder import Counts
from tests.runs import config, local_run


def test_a_line_says_frames_speed_return_lag_and_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    shown = Progress(1000)
    latest = {"episode_return": 1.5, "policy_lag_mean": 2.0, "evaluation_return": 3.0}
    shown.show(Counts(0, 0, 0), latest)
    time.sleep(0.01)
    shown.show(Counts(400, 100, 1), latest)
    shown.done(Counts(1000, 250, 2), latest)
    lines = capsys.readouterr().err.splitlines()
    assert lines[-2].startswith("400 / 1,000 frames | ")
    for word in ("frames/s", "return 1.50", "evaluation 3.00", "lag 2.0", "s left"):
        assert word in lines[-2]
    assert lines[-1].startswith("done: 1,000 frames | ")


def test_a_run_resumed_at_its_budget_names_no_speed(capsys: pytest.CaptureFixture[str]) -> None:
    Progress(1000).done(Counts(1000, 250, 2), {})
    assert capsys.readouterr().err == "done: 1,000 frames\n"


def test_quiet_prints_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    shown = Progress(1000, quiet=True)
    for updates in range(3):
        shown.show(Counts(updates, updates, updates), {})
    shown.done(Counts(1000, 250, 2), {})
    assert capsys.readouterr().err == ""


def test_a_run_without_a_frame_yet_and_one_that_went_back_to_a_checkpoint_are_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    shown = Progress(1000)
    for frames in (400, 400, 300, 300):
        shown.show(Counts(frames, 0, 0), {})
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["400 / 1,000 frames | 0 frames/s", "300 / 1,000 frames | 0 frames/s"]


def test_a_run_past_its_budget_has_no_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last batch may go beyond the budget."""
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    shown = Progress(1000)
    for frames in (0, 1400):
        shown.show(Counts(frames, 0, 0), {})
    assert capsys.readouterr().err.splitlines()[-1].endswith(" | 0 s left")


def test_the_first_return_is_a_line_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    shown = Progress(1000)
    shown.show(Counts(0, 0, 0), {})
    for updates in range(1, 4):
        shown.show(
            Counts(40 * updates, 10 * updates, updates), {"episode_return": float(updates)} if updates > 1 else {}
        )
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("80 / 1,000 frames | ") and "return 2.00" in line


def test_a_run_without_a_record_shows_its_first_return(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = local_run(config(env_frames=400, recording={"period_frames": 10**9}), tmp_path)
    run.run_roles()
    run.close()
    assert (tmp_path / "curves.jsonl").read_text().count("episode_return") == 0
    assert " | return " in capsys.readouterr().err.splitlines()[0]
