"""Shards for tests, which the processes of ray import from here: one that keeps count of itself, one that dies."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from torch import Tensor

from ddrl.runtimes.ray.shard_process import ShardProcess


def counting(folder: Path) -> type[ShardProcess]:
    """As it is; whenever it is saved it writes a line: gradients that it has applied."""

    class ShardProcessThatCounts(ShardProcess):
        _applied = 0

        def apply(self, gradients: list[Tensor], learning_rate: float) -> Any:
            self._applied += 1
            return super().apply(gradients, learning_rate)

        def state_dict(self) -> Any:
            with (folder / f"shard{self._part.start}").open("a") as file:
                file.write(f"{self._applied}\n")
            return super().state_dict()

    return ShardProcessThatCounts


class VanishingShard(ShardProcess):
    """Every process of a shard ends with its first gradient, without a word."""

    def apply(self, gradients: list[Tensor], learning_rate: float) -> Any:
        os._exit(1)
