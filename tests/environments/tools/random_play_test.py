"""Random play is measured fairly, and the committed scores are those of this version."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from ddrl.environments.base import registry
from ddrl.environments.tools import random_play

SCORES = Path(__file__).parents[3] / "replications" / "references" / "mujoco.csv"


@pytest.mark.parametrize(("task", "expected"), [("catch", -0.6), ("chain", 1.25), ("track", 25 / 3)])
def test_it_finds_what_is_known(task: str, expected: float) -> None:
    returns = random_play.random_returns(f"toy/{task}", 2000, 3)
    assert len(returns) == 2000
    assert abs(returns.mean() - expected) <= 4 * returns.std() / len(returns) ** 0.5


def test_every_environment_plays_as_many_episodes() -> None:
    assert len(random_play.random_returns("toy/catch", 11, 0)) == 20


def test_the_rows_have_the_columns_of_the_references_and_repeat(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["toy/catch", "toy/track", "--episodes", "40", "--seed", "1"]
    assert random_play.main(command) == 0
    printed = capsys.readouterr().out
    assert random_play.main(command) == 0
    assert capsys.readouterr().out == printed
    catch, track = csv.DictReader(io.StringIO(printed))
    assert tuple(catch) == random_play.COLUMNS
    assert (catch["task"], track["task"], track["human"]) == ("catch", "track", "")
    assert catch["source"].endswith("random_play toy/catch --episodes 40 --seed 1")


def test_options_of_the_environment_can_be_set_and_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["pointnav/small", "--episodes", "20", "--set", "reward=metric", "--set", "max_steps=30"]
    assert random_play.main(command) == 0
    (found,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert found["source"].endswith("--seed 0 --set reward=metric --set max_steps=30")
    assert "metric;cap30" in found["notes"]
    assert 0.0 <= float(found["random"]) < 0.1


def test_an_unknown_name_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert random_play.main(["toy/catsh"]) == 2
    assert "did you mean 'catch'?" in capsys.readouterr().err


def test_the_committed_scores_are_of_this_protocol() -> None:
    rows = list(csv.DictReader(SCORES.open(newline="")))
    assert [row["task"] for row in rows] == ["Ant-v5", "HalfCheetah-v5", "Hopper-v5", "Humanoid-v5", "Walker2d-v5"]
    for row in rows:
        assert row["notes"].endswith(registry.spec_for(f"mujoco/{row['task']}").protocol)


@pytest.mark.parametrize("task", ["Hopper-v5", "Humanoid-v5", "Walker2d-v5"])
def test_the_committed_scores_come_out_again(task: str) -> None:
    (row,) = [row for row in csv.DictReader(SCORES.open(newline="")) if row["task"] == task]
    error = float(row["notes"].split(";")[0].removeprefix("standard error "))
    returns = random_play.random_returns(f"mujoco/{task}", 50, 7)
    assert abs(returns.mean() - float(row["random"])) <= 4 * 5**0.5 * error  # a quarter of the episodes, and both vary
