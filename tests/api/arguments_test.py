"""What is no argument of a public function is one `UserError` that names it, and NumPy's numbers are numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import ddrl
from ddrl.api import arguments
from tests.api.agents import trained
from tests.runs import BASE

WORDS = ("impala", "toy/catch")
call: Any = ddrl  # without types, as a user's program may be


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> ddrl.Run:
    return trained(tmp_path_factory.mktemp("arguments") / "run")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (lambda: call.train("impala", 3), "ddrl.train: environment must be a name such as 'gymnasium/CartPole-v1'"),
        (lambda: call.train("impala", gymnasium.make("CartPole-v1")), "ddrl.train: environment must be a name"),
        (lambda: call.train(3, "toy/catch"), "ddrl.train: algorithm must be a name such as 'impala' (got 3)"),
        (lambda: call.train(config=5), "ddrl.train: config must be a path of a file, a mapping of keys, or"),
        (lambda: call.train(*WORDS, directory=5), "ddrl.train: directory must be a path (got 5)"),
        (lambda: call.train(*WORDS, directory="a\0b"), "ddrl.train: directory must be a path"),
        (
            lambda: call.train(*WORDS, env_frames=80, overwrite="yes"),
            "ddrl.train: overwrite must be True or False (got 'yes')",
        ),
        (lambda: call.train(*WORDS, env_frames=80, progress=3), "ddrl.train: progress must be True or False (got 3)"),
        (lambda: call.train(*WORDS, hyperparameters=3), "ddrl.train: key 'hyperparameters' must be a mapping"),
        (lambda: call.train(*WORDS, directory="/etc/passwd"), "/etc/passwd: exists, and is no folder"),
        (lambda: call.train(*WORDS, directory="/proc/x"), "/proc/x: no such file or folder"),
        (lambda: call.load_run(3), "ddrl.load_run: directory must be a path of a run's directory, or a run (got 3)"),
        (lambda: call.load_policy(None), "ddrl.load_policy: run must be a path of a run's directory, or a run"),
        (lambda: call.export(3.5), "ddrl.export: run must be a path of a run's directory, or a run (got 3.5)"),
        (lambda: call.compare("runs"), "ddrl.compare: runs must be a list of runs or of their directories (got 'runs'"),
        (lambda: call.compare(3), "ddrl.compare: runs must be a list of runs or of their directories (got 3)"),
        (lambda: call.compare([3]), "ddrl.compare: each of runs must be a path of a run's directory, or a run (got 3)"),
    ],
)
def test_an_argument_of_another_kind_is_one_line_that_names_it(given: Callable[[], Any], says: str) -> None:
    with pytest.raises(ddrl.UserError) as raised:
        given()
    assert str(raised.value).startswith(says)
    assert "\n" not in str(raised.value)
    assert not Path("runs").exists()


def test_an_argument_of_another_kind_beside_a_run_is_one_line(run: ddrl.Run) -> None:
    policy: Any = ddrl.load_policy(run)
    observation = np.zeros(policy.spec.observation_shape, dtype=np.float32)
    refused: list[tuple[Callable[[], Any], str]] = [
        (lambda: call.evaluate(run, episodes="3"), "ddrl.evaluate: episodes must be an integer of at least 1"),
        (lambda: call.evaluate(run, episodes=2.5), "ddrl.evaluate: episodes must be an integer of at least 1"),
        (lambda: call.evaluate(run, seed=None), "ddrl.evaluate: seed must be an integer of at least 0 (got None)"),
        (lambda: call.evaluate(run, greedy="no"), "ddrl.evaluate: greedy must be True or False (got 'no')"),
        (lambda: call.load_policy(run, seed="x"), "ddrl.load_policy: seed must be an integer of at least 0 (got 'x')"),
        (lambda: call.compare(run), "ddrl.compare: runs must be a list of runs or of their directories (got Run("),
        (lambda: call.train(config=run), "ddrl.train: config must be a path of a file, a mapping of keys, or the"),
        (lambda: policy.act((observation, {})), "observation must be numbers or what env.step() returns first"),
        (lambda: policy.act(observation, "x"), "state must be what the last call returned, or None (got 'x')"),
        (lambda: policy.act(observation, greedy=2), "greedy must be True or False (got 2)"),
        (lambda: policy.act(observation, reward="x"), "reward must be numbers (got 'x')"),
        (lambda: policy.act(observation, start="x"), "start must be True or False, for each environment (got 'x')"),
        (lambda: policy.environment("2"), "num_envs must be an integer of at least 1 (got '2')"),
        (lambda: policy.environment(0), "num_envs must be an integer of at least 1 (got 0)"),
        (lambda: policy.environment(seed=1.5), "seed must be an integer of at least 0 (got 1.5)"),
    ]
    for given, says in refused:
        with pytest.raises(ddrl.UserError) as raised:
            given()
        assert str(raised.value).startswith(says)


def test_a_sweep_over_numpys_numbers_is_one_over_pythons(run: ddrl.Run) -> None:
    found = call.train(
        config=BASE | {"seed": np.int32(5)},
        directory="sweep",
        progress=np.bool_(False),
        env_frames=np.arange(80, 200, 80)[0],
        hyperparameters={"entropy_cost": np.logspace(-3, -2, 2)[1]},
        evaluation={"period_frames": None, "final_episodes": np.int64(2)},
        **{"hyperparameters.optimizer.learning_rate": np.float32(0.5)},
    )
    hyperparameters: Any = found.config.hyperparameters
    values = (found.config.seed, found.config.env_frames, hyperparameters.entropy_cost)
    assert values == (5, 80, 0.01)
    assert [type(value) for value in values] == [int, int, float]
    assert hyperparameters.optimizer.learning_rate == 0.5
    assert len(call.evaluate(run, episodes=np.int64(2), seed=np.int64(1)).returns) == 2


def test_plain_values_are_pythons_at_every_depth() -> None:
    given = {"a": (np.int8(1), {"b": np.array([1.5, 2.5])}), "c": np.True_, "d": "text", "e": None}
    assert arguments.plain(given) == {"a": [1, {"b": [1.5, 2.5]}], "c": True, "d": "text", "e": None}
