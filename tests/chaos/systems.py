"""Which runs are disturbed, and what two of them must have in common."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from ddrl import algorithms
from ddrl.training.records import checkpoint
from ddrl.training.records.recorder import TIMING_METRICS
from tests.runs import BASE, SMALL, merged, small

FRAMES = 4000
ALLOWED = {"config.json", "curves.jsonl", "curves.parquet", "run.json", "lock", "learner.lock", "checkpoints"}
ALLOWED |= {"lineage.jsonl", "lineage.parquet", "members", "tensorboard"}
SET_ASIDE = ("checkpoints-", "curves", "lineage")
"""What the names begin with of that which is not continued and yet kept."""
CLOCKS = ("seconds", "cpu_seconds", "last")
"""Of a recorder's state: what a clock decides."""


@dataclass(frozen=True)
class System:
    """A runtime, an algorithm and a task."""

    name: str
    config: dict[str, Any]

    @property
    def runtime(self) -> str:
        """serial, threads or ray."""
        return str(self.config["topology"]["runtime"])

    @property
    def repeats(self) -> bool:
        """Whether it has the same bits every time."""
        return self.runtime == "serial"

    @property
    def checkpoint_frames(self) -> int:
        """Between two checkpoints."""
        return int(self.config["checkpoint"]["period_frames"])

    def write(self, path: Path) -> Path:
        """Write the configuration; return where."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.config))
        return path


def all_systems() -> list[System]:
    """Return every algorithm serially and in threads, other tasks, a population, central inference, and Ray."""
    return [*_serial(), *_threads(), *_ray()]


def _small(algorithm: str, **changes: Any) -> dict[str, Any]:
    base = {name: value for name, value in BASE.items() if name not in ("algorithm", "hyperparameters")}
    made = merged(base, {"algorithm": algorithm, "env_frames": FRAMES, "checkpoint": {"period_frames": 500}})
    made["hyperparameters"] = small(algorithm)
    if "asynchronous" not in algorithms.load(algorithm).SYSTEM.schedules:
        made["topology"]["schedule"] = "synchronous"
    return merged(made, changes)


def _serial() -> Iterator[System]:
    for algorithm in sorted(SMALL):
        yield System(f"serial {algorithm} toy/catch", _small(algorithm))
    yield System("serial r2d2 toy/memory", _small("r2d2", environment={"name": "toy/memory"}))
    yield System("serial impala toy/memory", _small("impala", environment={"name": "toy/memory"}))
    yield System("serial ppo mujoco/Hopper-v5", _small("ppo", environment={"name": "mujoco/Hopper-v5"}))
    pong = {"environment": {"name": "atari/pong"}, "hyperparameters": {"network": "shallow"}}
    evaluation = {"period_frames": None, "final_episodes": 1}
    yield System("serial impala atari/pong", _small("impala", **pong, env_frames=8000, evaluation=evaluation))
    yield System("serial impala tensorboard", _small("impala", recording={"tensorboard": True}))
    members = {"size": 2, "burn_in_frames": 1000, "period_frames": 1000, "fitness": "episode_return"}
    yield System("serial population of impala", _small("impala", population=members, evaluation=evaluation))


def _threads() -> Iterator[System]:
    for algorithm in sorted(SMALL):
        yield System(f"threads {algorithm} toy/catch", _small(algorithm, topology={"runtime": "threads"}))
    central = {"runtime": "threads", "inference": "central"}
    yield System("threads impala central", _small("impala", topology=central))
    workers = central | {"central": {"worker_processes": True}}
    yield System("threads impala workers", _small("impala", topology=workers))


def _ray() -> Iterator[System]:
    for algorithm in ("impala", "apex_dqn"):
        yield System(f"ray {algorithm} toy/catch", _small(algorithm, topology={"runtime": "ray"}))


def difference(straight: Path, disturbed: Path) -> str:
    """Return where two finished serial runs differ, in records or in any state; empty: nowhere."""
    try:
        one, other = (_records(run) for run in (straight, disturbed))
    except (OSError, ValueError) as error:
        return f"curves cannot be read: {error}"
    if not one.equals(other):
        return f"curves differ: {len(one)} and {len(other)} rows"
    folders = [path.relative_to(straight) for path in sorted(straight.rglob("checkpoints"))]
    for folder in folders:
        states = [checkpoint.load_newest(run / folder)[0] for run in (straight, disturbed)]
        if states[0] is None or states[1] is None:
            return f"{folder} holds no valid checkpoint"
        if place := unequal(_compared(states[0]), _compared(states[1])):
            return f"{folder}: state differs at {place}"
    return ""


def _records(run: Path) -> pd.DataFrame:
    table = pd.read_parquet(run / "curves.parquet").drop(columns="seconds")
    return table[~table.metric.isin(TIMING_METRICS)].reset_index(drop=True)


def _compared(state: dict[str, Any]) -> dict[str, Any]:
    """Without the history of starts, offsets in files, and what a clock decides."""
    kept = {name: value for name, value in state.items() if name not in ("history", "actor_restarts")}
    kept["recorder"] = {name: value for name, value in state["recorder"].items() if name not in (*CLOCKS, "offset")}
    kept["recorder"]["updates"] = [
        {name: value for name, value in update.items() if name not in TIMING_METRICS}
        for update in kept["recorder"]["updates"]
    ]
    return kept


def unequal(one: Any, other: Any, place: str = "state") -> str:
    """Return where two states differ; empty: nowhere. Numbers and tensors are compared bit for bit."""
    if type(one) is not type(other):
        return f"{place} ({type(one).__name__} and {type(other).__name__})"
    if isinstance(one, dict):
        if one.keys() != other.keys():
            return f"{place} (keys)"
        return next(filter(None, (unequal(one[key], other[key], f"{place}.{key}") for key in one)), "")
    if isinstance(one, list | tuple):
        if len(one) != len(other):
            return f"{place} ({len(one)} and {len(other)} entries)"
        pairs = enumerate(zip(one, other, strict=True))
        return next(filter(None, (unequal(a, b, f"{place}[{index}]") for index, (a, b) in pairs)), "")
    if isinstance(one, torch.Tensor):
        same = one.dtype == other.dtype and one.shape == other.shape
        return "" if same and _bits(one) == _bits(other) else place
    if isinstance(one, np.ndarray):
        same = one.dtype == other.dtype and one.shape == other.shape
        return "" if same and one.tobytes() == other.tobytes() else place
    if isinstance(one, float):
        return "" if struct.pack("d", one) == struct.pack("d", other) else place
    return "" if one == other else place


def _bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def leftovers(run: Path) -> list[str]:
    """Return what a finished run should not have left in its directory."""
    found = [path for path in run.rglob("*") if path.name.endswith(".tmp")]
    found += [path for path in run.iterdir() if path.name not in ALLOWED and not path.name.startswith(SET_ASIDE)]
    return [str(path.relative_to(run)) for path in dict.fromkeys(found)]
