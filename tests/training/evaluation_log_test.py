"""A final evaluation goes on after a kill with the same bits, and shows how far it is."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ddrl.training import evaluation
from ddrl.training.config.run_config import RunConfig
from ddrl.training.evaluation import FINAL
from ddrl.training.records import progress
from tests.runs import config, curves, local_run

SUITE = {"environment": {"name": "minigrid/Empty-Random-5x5-v0+DoorKey-5x5-v0", "max_steps": 15}}
LONG = {"evaluation": {"period_frames": None, "final_episodes": 70, "final_versions": 2}, "env_frames": 1200}


def killed(settings: RunConfig, directory: Path, when: str, after: int) -> None:
    """Trains in a process that is killed after so many calls of a method of the evaluation's log."""
    child = os.fork()
    if child == 0:
        own, calls = getattr(evaluation.EvaluationLog, when), [0]

        def counting(*arguments: Any, **keywords: Any) -> None:
            own(*arguments, **keywords)
            calls[0] += 1
            if calls[0] == after:
                os.kill(os.getpid(), signal.SIGKILL)

        evaluation.SAVE_SECONDS = 0.0
        setattr(evaluation.EvaluationLog, when, counting)
        with suppress(BaseException):
            local_run(settings, directory, quiet=True).train()
        os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


@pytest.mark.parametrize("overrides", [{}, SUITE], ids=["task", "two tasks"])
@pytest.mark.parametrize(
    ("when", "after"), [*(("note_progress", after) for after in (1, 2, 3, 4, 5)), ("end_share", 1), ("end_task", 1)]
)
def test_a_killed_evaluation_goes_on_where_it_was_and_has_the_same_episodes(
    overrides: dict[str, Any], when: str, after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config(**LONG, **overrides)
    straight, cut = tmp_path / "straight", tmp_path / "cut"
    local_run(settings, straight, quiet=True).train()
    killed(settings, cut, when, after)
    assert (cut / FINAL).is_dir() and not (cut / "run.json").exists()
    steps: list[int] = []
    own = evaluation.Games.step
    monkeypatch.setattr(evaluation.Games, "step", lambda self: steps.append(1) or own(self))
    again = local_run(settings, cut, quiet=True)
    assert again.resume() is not None
    assert again.train() == "budget_reached"
    assert not (cut / FINAL).exists()
    assert curves(cut).equals(curves(straight))
    resumed = len(steps)
    steps.clear()
    local_run(settings, tmp_path / "again", quiet=True).train()
    assert 0 < resumed < len(steps)


def test_what_was_played_with_other_parameters_or_another_number_of_episodes_is_not_continued(tmp_path: Path) -> None:
    log = evaluation.EvaluationLog(tmp_path / FINAL)
    log.begin("0 24 1", 24)
    log.enter(0)
    log.enter_share(0)
    log.end_share([evaluation.Episode("toy/catch", 1.0, 9)] * 12, 7)
    log.end_task()
    for name, kept in (("0 24 1", 12), ("0 24 2", 0), ("1 24 1", 0), ("0 25 1", 0)):
        other = evaluation.EvaluationLog(tmp_path / FINAL)
        other.begin(name, 24)
        assert len(other.played) == kept
        assert other.task == (1 if kept else 0)


def test_a_task_that_fails_is_forgotten_and_those_before_it_stay(tmp_path: Path) -> None:
    log = evaluation.EvaluationLog(tmp_path / FINAL)
    log.begin("0 2 1", 4)
    log.enter(0)
    log.end_share([evaluation.Episode("toy/catch", 1.0, 9)] * 2, 7)
    log.enter(1)
    log.end_share([evaluation.Episode("toy/chain", 1.0, 9)], 6)
    log.leave_out()
    assert [episode.task for episode, _ in log.played] == ["toy/catch"] * 2


def test_progress_shows_episodes_their_mean_return_and_the_time_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    local_run(config(**LONG), tmp_path).train()
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("final evaluation: ")]
    assert lines
    assert lines[-1].startswith("final evaluation: 70 / 70 episodes | return ")
    assert all("s left" in line for line in lines[1:])
