"""Small trained agents for tests of the Python interface."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ddrl
from tests.runs import BASE, merged, small, task_of

QUICK: dict[str, Any] = {"env_frames": 320, "evaluation": {"period_frames": None, "final_episodes": 2}}
RECURRENT: dict[str, Any] = {"hyperparameters": {"lstm_size": 8, "feed_last_action_and_reward": True}}
CONTINUOUS: dict[str, Any] = {
    "environment": {"name": "gymnasium/Pendulum-v1", "max_steps": 20},
    "hyperparameters": {"network": "tanh_mlp", "observation_normalisation": True},
}


def trained(directory: Path, **overrides: Any) -> ddrl.Run:
    """A short run with a checkpoint: IMPALA on toy/catch, unless `overrides` say otherwise."""
    values = merged(merged(BASE, QUICK), overrides)
    return ddrl.train(config=values, directory=directory, progress=False)


def of_algorithm(directory: Path, algorithm: str, **overrides: Any) -> ddrl.Run:
    """A short run of an algorithm with small hyperparameters."""
    values = {key: value for key, value in merged(BASE, QUICK).items() if key != "hyperparameters"}
    values |= {"algorithm": algorithm, "hyperparameters": small(algorithm), "environment": {"name": task_of(algorithm)}}
    return ddrl.train(config=merged(values, overrides), directory=directory, progress=False)
