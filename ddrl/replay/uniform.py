"""The replay of IMPALA's Table 2: past unrolls, first in first out, sampled uniformly (section 5.2.2: 10,000)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ddrl.system.seeding import generator_state, set_generator_state
from ddrl.types import Unroll, concatenate


class UniformReplay:
    """A ring of single columns; sampling is with replacement and does not remove."""

    def __init__(self, capacity: int, generator: np.random.Generator) -> None:
        self._capacity = capacity
        self._generator = generator
        self._columns: list[Unroll] = []
        self._oldest = 0

    def __len__(self) -> int:
        return len(self._columns)

    def insert(self, unroll: Unroll) -> None:
        """Copy each column in; overwrite the oldest where it is full."""
        for column in range(unroll.batch_size):
            copy = unroll.columns(column, column + 1).clone()
            if len(self._columns) < self._capacity:
                self._columns.append(copy)
            else:
                self._columns[self._oldest] = copy
                self._oldest = (self._oldest + 1) % self._capacity

    def sample(self, columns: int) -> Unroll:
        """Draw `columns` columns uniformly with replacement. The replay must not be empty."""
        chosen = self._generator.integers(len(self._columns), size=columns)
        return concatenate([self._columns[i] for i in chosen])

    def state_dict(self) -> dict[str, Any]:
        """Return contents, write position and generator."""
        columns = concatenate(self._columns).as_dict() if self._columns else None
        return {"columns": columns, "oldest": self._oldest, "generator": generator_state(self._generator)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken."""
        joined = Unroll(**state["columns"]) if state["columns"] else None
        self._columns = [joined.columns(i, i + 1).clone() for i in range(joined.batch_size)] if joined else []
        self._oldest = state["oldest"]
        set_generator_state(self._generator, state["generator"])
