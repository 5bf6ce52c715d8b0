"""A population learns more than the same members alone. `make learn`; minutes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddrl.api.launch import train
from ddrl.training.config.run_config import parse_run_config
from tests.learning.impala_test import BASE
from tests.runs import merged

pytestmark = pytest.mark.learning

POPULATION: dict[str, Any] = {
    "size": 4,
    "burn_in_frames": 10_000,
    "period_frames": 5_000,
    "margin": 0.1,
    "fitness": "episode_return",
    "tuned": {
        "entropy_cost": {"low": 1e-3, "high": 1e-1},
        "optimizer.learning_rate": {"low": 1e-5, "high": 1e-2},
    },
}


def final_fitness(directory: Path, seed: int, **population: Any) -> list[float]:
    """Of every member."""
    values = merged(BASE, {"seed": seed, "env_frames": 60_000, "recording": {"period_frames": 1000}})
    train(parse_run_config(values | {"population": POPULATION | population}), directory, quiet=True)
    fitness: list[float] = json.loads((directory / "run.json").read_text())["population"]["final_fitness"]
    return fitness


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_it_raises_the_mean_fitness_over_the_same_members_alone(tmp_path: Path, seed: int) -> None:
    """Alone: the same seeds and first hyperparameters, with a margin that nothing exceeds and nothing perturbed."""
    alone = final_fitness(tmp_path / "alone", seed, margin=10.0, perturb_probability=0.0)
    together = final_fitness(tmp_path / "together", seed)
    assert np.mean(together) > np.mean(alone) + 0.2, (alone, together)
