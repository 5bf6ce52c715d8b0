"""`ddrl.evaluate` plays what `ddrl evaluate` plays, and `ddrl.compare` puts groups of seeds side by side."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

import ddrl
from ddrl import cli
from tests.api.agents import trained


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[ddrl.Run]:
    """Three seeds of one setting."""
    folder = tmp_path_factory.mktemp("runs")
    return [trained(folder / str(seed), seed=seed) for seed in (1, 2, 3)]


@pytest.mark.parametrize("greedy", [False, True])
def test_an_evaluation_is_that_of_the_command_line(
    greedy: bool, runs: list[ddrl.Run], capsys: pytest.CaptureFixture[str]
) -> None:
    found = ddrl.evaluate(runs[0], episodes=5, greedy=greedy, seed=4)
    words = ["evaluate", str(runs[0].directory), "--episodes", "5", "--seed", "4", "--json"]
    assert cli.main([*words, *(["--greedy"] if greedy else [])]) == 0
    (printed,) = json.loads(capsys.readouterr().out)
    assert (found.returns, found.lengths) == (printed["returns"], printed["lengths"])
    assert found.mean_return == sum(found.returns) / 5
    assert "5 episodes" in repr(found)


def test_the_environment_may_differ_from_the_one_of_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(tmp_path / "run", environment={"name": "pointnav/small", "max_steps": 30})
    changes = {"max_steps": 7, "sensors": "blind"}
    found = ddrl.evaluate(run, episodes=3, environment=changes)
    assert max(found.lengths) <= 7 < max(ddrl.evaluate(run, episodes=3).lengths)
    words = ["evaluate", str(run.directory), "--episodes", "3"]
    assert cli.main([*words, "--environment", "max_steps=7", "--environment", "sensors=blind", "--json"]) == 0
    (printed,) = json.loads(capsys.readouterr().out)
    assert (found.returns, found.lengths, changes) == tuple(
        printed[key] for key in ("returns", "lengths", "environment")
    )
    assert cli.main([*words, "--environment", "max_steps=7"]) == 0
    assert "3 episodes, max_steps=7, after" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["stepz=7"], "--environment: unknown option of toy/catch 'stepz'"),
        (["rows=x"], "--environment.rows: 'x' is not allowed for toy/catch"),
        (["rows=12"], "environment '--environment': what one agent plays must be alike"),
        (["name=toy/nothing"], "--environment.name: unknown task of toy 'nothing'"),
        (["rows"], "--environment 'rows' is not allowed; allowed: key=value"),
    ],
)
def test_an_environment_that_the_agent_cannot_be_tested_in_is_one_line(
    words: list[str], says: str, runs: list[ddrl.Run], capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("evaluate", "watch"):
        assert cli.main([command, str(runs[0].directory), "--environment", *words]) == 2
        assert says in capsys.readouterr().err


def test_no_episode_is_no_evaluation(runs: list[ddrl.Run]) -> None:
    with pytest.raises(ddrl.UserError, match=r"episodes must be an integer of at least 1 \(got 0\)"):
        ddrl.evaluate(runs[0], episodes=0)


def test_a_suite_is_evaluated_on_each_of_its_tasks(tmp_path: Path) -> None:
    tasks = ["minigrid/Empty-Random-5x5-v0", "minigrid/DoorKey-5x5-v0"]
    run = trained(tmp_path / "suite", environment={"name": f"{tasks[0]}+DoorKey-5x5-v0", "max_steps": 15})
    found = ddrl.evaluate(run, episodes=2)
    assert [task.task for task in found.tasks] == tasks
    assert len(found.returns) == 4
    assert list(run.final_returns) == tasks
    assert run.final_return == sum(run.final_returns.values()) / 2


def test_runs_that_differ_only_in_their_seed_are_one_group(runs: list[ddrl.Run], tmp_path: Path) -> None:
    table = ddrl.compare(runs)
    assert list(table.columns) == [*("algorithm", "environment", "env_frames", "runs", "iqm", "low", "high", "spread")]
    (row,) = table.to_dict("records")
    scores = sorted(run.final_return for run in runs)
    assert (row["algorithm"], row["environment"], row["env_frames"], row["runs"]) == ("impala", "toy/catch", 320, 3)
    assert row["low"] <= scores[0] <= row["iqm"] <= scores[2] <= row["high"]
    assert row["spread"] == "interval"
    (two,) = ddrl.compare(runs[:2]).to_dict("records")
    assert (two["low"], two["high"]) == tuple(sorted(run.final_return for run in runs[:2]))
    assert two["spread"] == "range"
    recorded = trained(tmp_path / "recorded", seed=4, recording={"period_frames": 100})
    assert ddrl.compare([*runs, recorded])["runs"].tolist() == [4]  # how it is recorded makes no other training


def test_groups_are_named_by_what_differs(runs: list[ddrl.Run], tmp_path: Path) -> None:
    other = trained(tmp_path / "other", hyperparameters={"entropy_cost": 0.5})
    table = ddrl.compare([*(str(run.directory) for run in runs), other])
    assert sorted(table["settings"]) == ["entropy_cost=0.01", "entropy_cost=0.5"]
    single = table[table["runs"] == 1].iloc[0]
    assert single["iqm"] == other.final_return
    assert math.isnan(single["low"]) and math.isnan(single["high"])


def test_a_group_needs_each_seed_once_and_runs_that_have_finished(runs: list[ddrl.Run], tmp_path: Path) -> None:
    with pytest.raises(ddrl.UserError, match="seed 1 is given twice"):
        ddrl.compare([runs[0], runs[0]])
    with pytest.raises(ddrl.UserError, match="there are no runs to compare"):
        ddrl.compare([])
    unfinished = trained(tmp_path / "unfinished")
    (unfinished.directory / "run.json").unlink()
    with pytest.raises(ddrl.UserError, match="the run has not finished"):
        ddrl.compare([unfinished])
