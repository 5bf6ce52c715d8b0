"""Small real runs for tests: toy/catch with a small network, unless a test says otherwise."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pandas as pd

from ddrl import algorithms
from ddrl.errors import UserError
from ddrl.runtimes.local import local_runtime
from ddrl.training.config.run_config import RunConfig, parse_run_config
from ddrl.training.records.progress import Progress
from ddrl.training.records.recorder import TIMING_METRICS
from ddrl.training.run import Run
from ddrl.types import EnvSpec

BASE: dict[str, Any] = {
    "algorithm": "impala",
    "environment": {"name": "toy/catch"},
    "seed": 3,
    "env_frames": 2000,
    "hyperparameters": {
        "network": "mlp",
        "unroll_length": 5,
        "batch_size": 8,
        "optimizer": {"learning_rate": 1e-3, "decay_frames": None},
    },
    "topology": {"runtime": "serial", "num_actors": 2, "envs_per_actor": 4, "queue_capacity": 4},
    "evaluation": {"period_frames": 700, "episodes": 3, "final_episodes": 5},
    "recording": {"period_frames": 200, "tensorboard": False},
    "checkpoint": {"period_frames": 300},
    "device": "cpu",
}


REPLAY: dict[str, Any] = {
    "actor_update_period": 5,
    "replay_capacity": 800,
    "min_replay_size": 16,
    "samples_per_insert": 1.0,
    "error_buffer": 8.0,
    "head_size": 16,
    "target_update_period": 5,
    "optimizer": {"name": "adam", "learning_rate": 1e-3},
}
SMALL: dict[str, dict[str, Any]] = {
    "ppo": {"num_epochs": 2, "num_minibatches": 2},
    "impact": {"num_slots": 2, "num_traversals": 2},
    "appo": {"num_epochs": 2, "num_minibatches": 2},
    "gorila": {
        "replay_capacity": 800,
        "min_replay_size": 16,
        "exploration_steps": 400,
        "target_update_period": 10,
        "head_size": 16,
        "batch_size": 8,
    },
    "apex_dqn": REPLAY,
    "d4pg": {
        **{key: value for key, value in REPLAY.items() if key not in ("head_size", "optimizer")},
        "policy_layers": [16, 16],
        "critic_layers": [16, 16],
        "v_min": 0.0,
        "v_max": 25.0,
        "optimizer": {"learning_rate": 1e-3},
        "policy_optimizer": {"learning_rate": 1e-3},
    },
    "r2d2": REPLAY | {"sequence_length": 6, "sequence_period": 3, "burn_in": 3, "n_step": 2, "lstm_size": 8},
}
"""Algorithm -> what else makes it small, where the keys of `small` do not."""
_SYSTEMS = {name: algorithms.load(name).SYSTEM for name in algorithms.NAMES}
REPLAYING = tuple(name for name, system in _SYSTEMS.items() if system.store == "prioritized")
"""Those that draw from a prioritized replay."""
GRADIENTS = tuple(name for name, system in _SYSTEMS.items() if system.moves == "gradients")
"""Those whose actors send gradients."""
BATCHED = tuple(sorted(set(algorithms.NAMES) - set(REPLAYING) - set(GRADIENTS)))
"""Those that learn from batches of fresh unrolls."""
SHARED = tuple(name for name, system in _SYSTEMS.items() if system.parameters != "versions")
"""Those whose parameters are shared and have no versions."""
VERSIONED = tuple(name for name in BATCHED if name not in SHARED)
"""Those that learn from batches and publish versions: with any schedule of theirs, and with several learners."""
_CONTINUOUS = EnvSpec("test/continuous", (4,), "float32", 0, 1, "test", action_size=2)
_DISCRETE = EnvSpec("test/discrete", (4,), "float32", 3, 1, "test")


def _learns(algorithm: str, spec: EnvSpec) -> bool:
    """Ask the algorithm's own check."""
    module = algorithms.load(algorithm)
    try:
        module.check(module.Config(), spec, 1)
    except UserError:
        return False
    return True


CONTINUOUS = tuple(name for name in algorithms.NAMES if _learns(name, _CONTINUOUS))
"""Those that learn tasks with continuous actions."""
DISCRETE = tuple(name for name in algorithms.NAMES if _learns(name, _DISCRETE))
"""Those that learn tasks with discrete actions."""


def task_of(algorithm: str) -> str:
    """A toy task that the algorithm learns: catch, or with continuous actions alone track."""
    return "toy/catch" if algorithm in DISCRETE else "toy/track"


def base_of(algorithm: str) -> dict[str, Any]:
    """The base configuration of an algorithm on a task that it learns, with its own small hyperparameters."""
    values = merged(BASE, {"algorithm": algorithm, "environment": {"name": task_of(algorithm)}})
    return values | {"hyperparameters": small(algorithm)}


def small(algorithm: str) -> dict[str, Any]:
    """Small hyperparameters of an algorithm."""
    batch = {} if algorithm in GRADIENTS else {"batch_size": 8}
    return {"network": "mlp", "unroll_length": 5} | batch | SMALL.get(algorithm, {})


def merged(base: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """`base` with `overrides`, key by key."""
    result = copy.deepcopy(base)
    for key, value in overrides.items():
        result[key] = merged(result[key], value) if isinstance(value, dict) and key in result else value
    return result


def config(**overrides: Any) -> RunConfig:
    """The base configuration with departures."""
    return parse_run_config(merged(BASE, overrides))


def curves(directory: Path) -> pd.DataFrame:
    """The curves of a finished run, without what only a clock decides."""
    table = pd.read_parquet(directory / "curves.parquet").drop(columns="seconds")
    return table[~table.metric.isin(TIMING_METRICS)].reset_index(drop=True)


def local_run(config: RunConfig, directory: Path, *, quiet: bool = False, **options: Any) -> Run:
    """A run in this process, which nobody has begun."""
    display = None if quiet else Progress(config.env_frames)
    return Run(config, directory, make_runtime=local_runtime(config), display=display, **options)
