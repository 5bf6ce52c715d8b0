"""A serial run that is interrupted before or right after its actors have acted goes on to the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from ddrl import algorithms
from ddrl.api.launch import train
from ddrl.environments.base import registry
from ddrl.training.builder import Builder
from ddrl.training.config.run_config import RunConfig, parse_run_config
from ddrl.training.evaluation import Evaluations
from tests.runs import BASE, GRADIENTS, curves, merged, small, task_of
from tests.training.turns import interrupted_after

TINY = merged(BASE, {"env_frames": 80, "recording": {"period_frames": 40}, "checkpoint": {"period_frames": 1000}})
QUICK: dict[str, dict[str, Any]] = {
    "atari/pong": {"image_size": 42},
    "dm_control/cheetah-run": {},
    "minigrid/MemoryS7-v0": {},
    "mujoco/Hopper-v5": {},
}
"""Of these adapters, what is quick among their examples, and how; of others, the first example."""


def of(algorithm: str) -> RunConfig:
    """A run of an algorithm that ends after some dozens of turns."""
    values: dict[str, Any] = {"algorithm": algorithm, "topology": {"envs_per_actor": 2}}
    if algorithm in GRADIENTS:
        values["topology"]["envs_per_actor"] = 1
    if algorithm == "ga3c":
        values["topology"]["inference"] = "central"
    if "synchronous" in algorithms.load(algorithm).SYSTEM.schedules:
        values["topology"]["schedule"] = "synchronous"
    batch = {} if algorithm in GRADIENTS else {"batch_size": 4}
    values["environment"] = {"name": task_of(algorithm)}
    return parse_run_config(merged(TINY, values) | {"hyperparameters": small(algorithm) | batch})


@pytest.fixture(autouse=True)
def unevaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole episodes would take most of the time."""
    monkeypatch.setattr(Evaluations, "_play", lambda *_: True)


def cut_and_whole(config: RunConfig, directory: Path, turns: tuple[int, ...]) -> None:
    """Interrupts a run after so many turns of each start, and holds its curves against those of an undisturbed one."""
    train(config, directory / "whole", quiet=True)
    for number in turns:
        with interrupted_after(number):
            assert train(config, directory / "cut", quiet=True) == "interrupted"
    assert train(config, directory / "cut", quiet=True) == "budget_reached"
    pd.testing.assert_frame_equal(curves(directory / "whole"), curves(directory / "cut"))


@pytest.mark.parametrize("algorithm", algorithms.NAMES)
def test_a_run_interrupted_at_its_first_turns_goes_on_to_the_same_bits(tmp_path: Path, algorithm: str) -> None:
    """Before anybody has acted, when one actor has, when both may have, and in what follows."""
    cut_and_whole(of(algorithm), tmp_path, (0, 1, 2))


def example(prefix: str) -> str:
    """A quick one of an adapter."""
    names = [name for name in registry.examples() if name.startswith(f"{prefix}/")]
    return next((name for name in names if name in QUICK), names[0])


@pytest.mark.parametrize("prefix", sorted({name.partition("/")[0] for name in registry.examples()}))
@pytest.mark.parametrize("unrolls", [0, 1])
def test_what_a_collector_saves_changes_nothing_and_is_all_there_is(prefix: str, unrolls: int) -> None:
    """Also before its environments were reset: in every kind of environment."""
    name = example(prefix)
    environment = {"name": name} | registry.examples()[name] | QUICK.get(name, {})
    network = "shallow" if len(registry.spec_for(**environment).observation_shape) == 3 else "mlp"
    values = merged(TINY, {"hyperparameters": {"network": network, "batch_size": 4}, "topology": {"envs_per_actor": 1}})
    builder = Builder(parse_run_config(values | {"environment": environment}), torch.device("cpu"))
    saved, continued = (builder.collector(0, lambda _: None) for _ in range(2))
    for _ in range(unrolls):
        saved.collect(3)
    state = saved.state_dict()
    continued.load_state_dict(state)
    expected, found = (collector.collect(3).as_dict() for collector in (saved, continued))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    for collector in (saved, continued):
        collector.env.close()
