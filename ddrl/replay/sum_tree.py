"""A sum tree: draws indices with probability proportional to their weights, and changes many weights at once.

Level 0 holds the weights; each number of a level above is the sum of a block of `FAN_OUT` numbers below it. With wide
blocks a million weights take four levels instead of twenty, and NumPy is called so much less often.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from ddrl.types import Array

FAN_OUT = 32


class SumTree:
    """A tree of `capacity` weights, all 0 at first. Sums are always computed anew from below, so they never drift."""

    def __init__(self, capacity: int) -> None:
        sizes = [capacity]
        while sizes[-1] > 1:
            sizes.append(-(-sizes[-1] // FAN_OUT))
        # Padded to whole blocks: what is beyond the end weighs nothing.
        self._levels: list[Array] = [np.zeros(-(-size // FAN_OUT) * FAN_OUT) for size in sizes]
        self.capacity = capacity

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return float(self._levels[-1][0])

    @property
    def nbytes(self) -> int:
        return sum(level.nbytes for level in self._levels)

    def __getitem__(self, indices: Array) -> Array:
        """Return the weights [N] of indices [N]."""
        weights: Array = self._levels[0][indices]
        return weights

    def set(self, indices: Array, weights: Array) -> None:
        """Set the weights [N] >= 0 of indices [N] int64; where an index comes twice, the last one counts."""
        self._levels[0][indices] = weights
        below = indices
        for level, above in pairwise(self._levels):
            below = np.unique(below // FAN_OUT) if len(below) > 1 else below // FAN_OUT
            above[below] = level.reshape(-1, FAN_OUT)[below].sum(axis=1)

    def find(self, points: Array) -> Array:
        """Return for each point [N] in [0, total) the index [N] of the weight that it falls on, if all lie in a row."""
        rest = np.array(points, dtype=np.float64)
        index = np.zeros(len(rest), dtype=np.int64)
        for level in reversed(self._levels[:-1]):
            block = level.reshape(-1, FAN_OUT)[index]
            ends = np.cumsum(block, axis=1)
            child = (ends <= rest[:, None]).sum(axis=1)
            # Rounding may carry a point past the end of a block: it belongs to the last weight that is not 0.
            last = FAN_OUT - 1 - np.argmax(block[:, ::-1] > 0, axis=1)
            child = np.minimum(child, last)
            before = np.take_along_axis(ends, child[:, None], axis=1)[:, 0] - block[np.arange(len(block)), child]
            rest = np.maximum(rest - before, 0.0)
            index = index * FAN_OUT + child
        return index

    def sample(self, count: int, generator: np.random.Generator) -> Array:
        """Draw `count` indices independently, with replacement. Raise ValueError where all weights are 0."""
        if not self.total > 0:
            raise ValueError("no weight is above 0")
        return self.find(generator.random(count) * self.total)
