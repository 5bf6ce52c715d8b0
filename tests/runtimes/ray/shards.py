"""Shards for tests, which the processes of ray import from here: one that keeps count of itself, one that dies."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from torch import Tensor

from ddrl.runtimes.ray.shard_and_replay import ShardSide
from ddrl.training.config.run_config import RunConfig


def counting(folder: Path, config: RunConfig, part: slice) -> ShardSide:
    """As it is; whenever it is saved it writes a line: gradients that it has applied."""
    side, applied = ShardSide(config, part), 0
    apply, state_dict = side.apply, side.state_dict

    def counted(gradients: list[Tensor], learning_rate: float) -> None:
        nonlocal applied
        applied += 1
        apply(gradients, learning_rate)

    def saved() -> dict[str, Any]:
        with (folder / f"shard{part.start}").open("a") as file:
            file.write(f"{applied}\n")
        return state_dict()

    side.apply, side.state_dict = counted, saved
    return side


def vanishing(config: RunConfig, part: slice) -> ShardSide:
    """Every process of a shard ends with its first gradient, without a word."""
    side = ShardSide(config, part)
    side.apply = lambda *_: os._exit(1)
    return side
