"""IMPALA learns small tasks to a threshold, from several seeds. `make learn`; minutes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddrl.api.launch import train
from ddrl.training.config.run_config import parse_run_config
from tests.runs import curves, merged

pytestmark = pytest.mark.learning

BASE: dict[str, Any] = {
    "algorithm": "impala",
    "environment": {"name": "toy/catch"},
    "seed": 1,
    "env_frames": 150_000,
    "hyperparameters": {
        "network": "mlp",
        "unroll_length": 20,
        "batch_size": 16,
        "optimizer": {"learning_rate": 0.002, "decay_frames": None},
    },
    "topology": {"runtime": "serial", "num_actors": 2, "envs_per_actor": 8, "queue_capacity": 4},
    "evaluation": {"final_episodes": 100},
    "recording": {"period_frames": 10_000, "tensorboard": False},
    "device": "cpu",
}


def final_return(directory: Path, **overrides: Any) -> float:
    """Mean return of the final evaluation."""
    train(parse_run_config(merged(BASE, overrides)), directory, quiet=True)
    frames = json.loads((directory / "run.json").read_text())["env_frames"]
    table = curves(directory)
    return float(table[(table.metric == "evaluation_return") & (table.env_frames == frames)].value.mean())


@pytest.mark.parametrize(("runtime", "inference"), [("serial", "local"), ("threads", "local"), ("threads", "central")])
@pytest.mark.parametrize("seed", [1, 2])
def test_it_learns_to_catch(tmp_path: Path, runtime: str, inference: str, seed: int) -> None:
    assert final_return(tmp_path, seed=seed, topology={"runtime": runtime, "inference": inference}) > 0.9


def test_its_lstm_remembers_what_a_feed_forward_agent_cannot(tmp_path: Path) -> None:
    memory = {"environment": {"name": "toy/memory"}}
    recurrent = {"lstm_size": 32, "feed_last_action_and_reward": True}
    assert final_return(tmp_path / "lstm", **memory, hyperparameters=recurrent) > 0.9
    assert abs(final_return(tmp_path / "feed-forward", **memory)) < 0.4


def test_a_time_limit_is_not_taken_for_an_end(tmp_path: Path) -> None:
    """On the chain, which never terminates, the optimum needs bootstrapping through truncations."""
    assert final_return(tmp_path, environment={"name": "toy/chain"}, env_frames=100_000) > 2.3


def test_bfloat16_learns_as_float32_does(tmp_path: Path) -> None:
    """Final returns of five seeds each: the means differ by less than the task's resolution."""
    returns = {
        precision: [
            final_return(tmp_path / precision / str(seed), precision=precision, seed=seed) for seed in range(1, 6)
        ]
        for precision in ("float32", "bfloat16")
    }
    means = {precision: np.mean(values) for precision, values in returns.items()}
    assert abs(means["bfloat16"] - means["float32"]) < 0.05, returns
    assert means["bfloat16"] > 0.9


def test_replaying_half_of_every_batch_learns_too(tmp_path: Path) -> None:
    replay = {"replay_fraction": 0.5, "replay_capacity": 1000}
    assert final_return(tmp_path, hyperparameters=replay, topology={"envs_per_actor": 4}) > 0.9
