"""A3C, A2C, GA3C and GORILA learn small tasks to their optimum. `make learn`; minutes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ddrl.api.launch import train
from ddrl.training.config.run_config import parse_run_config
from tests.runs import curves, merged

pytestmark = pytest.mark.learning

BASE: dict[str, Any] = {
    "environment": {"name": "toy/catch"},
    "seed": 1,
    "env_frames": 60_000,
    "evaluation": {"final_episodes": 100},
    "recording": {"period_frames": 5_000, "tensorboard": False},
    "device": "cpu",
}
OPTIMIZER = {"epsilon": 0.1, "epsilon_inside_sqrt": True, "decay_frames": None}
A3C: dict[str, Any] = {
    "algorithm": "a3c",
    "env_frames": 40_000,
    "hyperparameters": {"network": "mlp", "optimizer": OPTIMIZER | {"learning_rate": 0.01}},
    "topology": {"runtime": "serial", "num_actors": 4, "envs_per_actor": 1},
}
A2C: dict[str, Any] = {
    "algorithm": "a2c",
    "env_frames": 100_000,
    "hyperparameters": {
        "network": "mlp",
        "optimizer": {
            "learning_rate": 0.005,
            "epsilon": 0.01,
            "epsilon_inside_sqrt": False,
            "initial_mean_square": 0.0,
            "decay_frames": None,
        },
    },
    "topology": {"runtime": "threads", "schedule": "synchronous"},
}
GA3C: dict[str, Any] = {
    "algorithm": "ga3c",
    "hyperparameters": {"network": "mlp", "batch_size": 4, "optimizer": OPTIMIZER | {"learning_rate": 0.005}},
    "topology": {
        "runtime": "threads",
        "inference": "central",
        "central": {"num_threads": 2},
        "num_trainers": 2,
        "num_actors": 8,
        "envs_per_actor": 2,
        "queue_capacity": 8,
    },
}


GORILA: dict[str, Any] = {
    "algorithm": "gorila",
    "env_frames": 120_000,
    "hyperparameters": {
        "network": "mlp",
        "head_size": 64,
        "target_update_period": 200,
        "exploration_steps": 8000,
        "evaluation_epsilon": 0.0,
        "replay_capacity": 5000,
        "min_replay_size": 200,
        "optimizer": {
            "learning_rate": 0.005,
            "decay": 0.95,
            "epsilon": 0.01,
            "epsilon_inside_sqrt": True,
            "centered": True,
            "decay_frames": None,
        },
    },
    "topology": {"runtime": "serial", "num_actors": 4, "envs_per_actor": 4, "parameter_shards": 3},
}


def final_return(directory: Path, *parts: dict[str, Any]) -> float:
    """Mean return of the final evaluation."""
    values = BASE
    for part in parts:
        values = merged(values, part)
    train(parse_run_config(values), directory, quiet=True)
    frames = json.loads((directory / "run.json").read_text())["env_frames"]
    table = curves(directory)
    return float(table[(table.metric == "evaluation_return") & (table.env_frames == frames)].value.mean())


@pytest.mark.parametrize("runtime", ["serial", "threads"])
@pytest.mark.parametrize("seed", [1, 2])
def test_a3c_learns_to_catch(tmp_path: Path, runtime: str, seed: int) -> None:
    assert final_return(tmp_path, A3C, {"topology": {"runtime": runtime}, "seed": seed}) > 0.9


def test_its_lstm_remembers_what_a_feed_forward_agent_cannot(tmp_path: Path) -> None:
    memory = {"environment": {"name": "toy/memory"}, "hyperparameters": {"unroll_length": 10}}
    recurrent = {"hyperparameters": {"lstm_size": 32, "feed_last_action_and_reward": True}}
    assert final_return(tmp_path / "lstm", A3C, memory, recurrent) > 0.9
    assert abs(final_return(tmp_path / "feed-forward", A3C, memory)) < 0.4


@pytest.mark.parametrize(
    "form",
    [
        {"num_actors": 1, "envs_per_actor": 16},
        {"num_actors": 4, "envs_per_actor": 4},
        {"num_actors": 4, "envs_per_actor": 4, "inference": "central"},
    ],
    ids=["synchronous steps", "synchronous trajectories", "dynamic batching"],
)
def test_a2c_learns_to_catch_in_every_form(tmp_path: Path, form: dict[str, Any]) -> None:
    assert final_return(tmp_path, A2C, {"topology": form}) > 0.9


@pytest.mark.parametrize("adjustment", [None, {"initial_wait_s": 0.0, "step_wait_s": 0.5}])
def test_ga3c_learns_to_catch_with_fixed_and_with_adjusted_numbers(tmp_path: Path, adjustment: Any) -> None:
    assert final_return(tmp_path, GA3C, {"topology": {"adjustment": adjustment}}) > 0.9


def test_gorila_learns_to_catch(tmp_path: Path) -> None:
    assert final_return(tmp_path, GORILA) > 0.9
