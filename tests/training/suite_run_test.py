"""Runs on a suite: one agent, several tasks, each recorded and evaluated by itself."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ddrl import cli
from ddrl.api.launch import train
from ddrl.cli.inspection import problems
from ddrl.environments.base import registry
from ddrl.errors import UserError
from ddrl.training.records import task_scores
from ddrl.training.records.recorder import TIMING_METRICS
from ddrl.training.records.task_scores import CAPPED_SCORE, Reference, TaskScores, references
from ddrl.training.run import Run
from ddrl.types import Episode
from tests.runs import config, curves

TASKS = ("minigrid/Empty-Random-5x5-v0", "minigrid/DoorKey-5x5-v0")
SUITE = {"name": "minigrid/Empty-Random-5x5-v0+DoorKey-5x5-v0", "max_steps": 15}


def suite(**changes: Any) -> Any:
    return config(environment=SUITE, **changes)


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reference scores of the two tasks."""
    known = {TASKS[0]: Reference(0.0, 0.5), TASKS[1]: Reference(-1.0, 1.0)}
    monkeypatch.setattr(task_scores, "references", lambda tasks: {name: known[name] for name in tasks})


def metric(table: pd.DataFrame, name: str) -> list[float]:
    return table[table.metric == name].value.tolist()


@pytest.mark.parametrize(
    "topology",
    [
        {"runtime": "serial"},
        {"runtime": "threads"},
        {"runtime": "threads", "inference": "central", "central": {"worker_processes": True}},
    ],
    ids=["serial", "threads", "worker processes"],
)
def test_each_task_is_trained_recorded_and_evaluated(tmp_path: Path, topology: dict[str, Any], scored: None) -> None:
    train(suite(topology=topology), tmp_path, quiet=True)
    table = curves(tmp_path)
    for task in TASKS:
        assert metric(table, f"episode_return/{task}")
        assert len(metric(table[table.env_frames == table.env_frames.max()], f"evaluation_return/{task}")) == 5
    assert not metric(table, "evaluation_return")
    assert np.isfinite(metric(table, CAPPED_SCORE)).all()
    assert max(metric(table, CAPPED_SCORE)) <= 1.0
    assert list(problems(tmp_path)) == []


def test_a_serial_run_on_a_suite_continues_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scored: None
) -> None:
    train(suite(), tmp_path / "straight", quiet=True)
    learn = Run._learn

    def cut(run: Run) -> None:
        learn(run)
        if run.learner.core.updates == 23:
            raise KeyboardInterrupt

    monkeypatch.setattr(Run, "_learn", cut)
    with pytest.raises(KeyboardInterrupt):
        train(suite(), tmp_path / "cut", quiet=True)
    monkeypatch.setattr(Run, "_learn", learn)
    train(suite(), tmp_path / "cut", quiet=True)
    pd.testing.assert_frame_equal(curves(tmp_path / "straight"), curves(tmp_path / "cut"))


def test_another_suite_may_be_evaluated_than_is_trained_on(tmp_path: Path) -> None:
    other = "minigrid/Empty-Random-6x6-v0"
    train(suite(evaluation={"environment": {"name": other}}), tmp_path, quiet=True)
    assert len(metric(curves(tmp_path), "evaluation_return")) >= 5
    assert cli.main(["evaluate", str(tmp_path), "--episodes", "2"]) == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"topology": {"envs_per_actor": 3, "num_actors": 1}}, "must be a multiple of the 2 tasks of .* (got 1 x 3)"),
        ({"evaluation": {"environment": {"name": "toy/catch"}}}, "unknown option of toy/catch 'max_steps'"),
        ({"evaluation": {"environment": {"view_size": 5}}}, "alike, but here is observation_shape .980,."),
        (
            {"evaluation": {"environment": {"name": "minigrid/Empty"}}},
            "evaluation.environment.name: unknown task of minigrid 'Empty'",
        ),
        ({"evaluation": {"environment": {"view_size": 4.5}}}, "^evaluation.environment.view_size: 4.5 is not allowed"),
        ({"evaluation": {"environment": {"wiew": 5}}}, "^evaluation.environment: unknown option of minigrid/.* 'wiew'"),
    ],
)
def test_a_suite_that_a_run_cannot_have_is_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words.replace("(", r"\(").replace(")", r"\)")):
        train(suite(**changes), tmp_path, quiet=True)


def test_evaluation_goes_on_where_a_task_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = registry.make

    def failing(name: str, *arguments: Any, **keywords: Any) -> Any:
        if name == TASKS[1]:
            raise OSError("no screen")
        return make(name, *arguments, **keywords)

    monkeypatch.setattr(registry, "make", failing)
    train(suite(), tmp_path, quiet=True)
    table = curves(tmp_path)
    assert metric(table, f"evaluation_return/{TASKS[0]}")
    assert not metric(table, f"evaluation_return/{TASKS[1]}")
    assert any(f"0 final episodes (evaluation_return/{TASKS[1]})" in line for line in problems(tmp_path))


def test_the_score_is_the_mean_of_capped_scores_of_each_tasks_newest_returns(scored: None) -> None:
    scores = TaskScores(TASKS)
    first = [Episode(TASKS[0], 0.25, 9), Episode(TASKS[0], 0.75, 9), Episode(TASKS[0], 9.0, 9, abandoned=True)]
    metrics = scores.take(first)
    assert CAPPED_SCORE not in metrics  # nothing is known of the second task
    assert metrics[f"abandoned_episodes/{TASKS[0]}"] == 1.0
    assert metrics[f"episode_return/{TASKS[0]}"] == 0.5
    assert scores.take([Episode(TASKS[1], 0.0, 4)])[CAPPED_SCORE] == (1.0 + 0.5) / 2
    restored = TaskScores(TASKS)
    restored.load_state_dict(scores.state_dict())
    assert restored.take([])[CAPPED_SCORE] == (1.0 + 0.5) / 2
    assert restored.take([Episode(TASKS[0], 3.0, 4)])[CAPPED_SCORE] == (1.0 + 0.5) / 2  # 6 times a human is capped


def test_one_task_alone_is_recorded_as_ever() -> None:
    assert TaskScores(["toy/catch"]).take([Episode("toy/catch", 1.0, 9)]) == {}


def test_references_are_those_of_the_suite_where_both_scores_are_known() -> None:
    found = references(["atari/pong", "toy/catch", "dmlab/rooms_watermaze", "nothing/here"])
    assert found == {"atari/pong": Reference(-20.7, 14.6), "dmlab/rooms_watermaze": Reference(4.1, 54.0)}


def test_what_differs_between_equal_runs_is_time_alone() -> None:
    assert CAPPED_SCORE not in TIMING_METRICS
