"""How the steps of several learners weigh in one gradient and in means: all steps alike, or all learners alike."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch

from ddrl.interfaces import Reducer

Weighting: TypeAlias = Literal["samples", "learners"]
"""A configuration key.

- `samples`: the mean over the steps of all learners, as one learner with the whole batch would have it;
- `learners`: the mean over learners of each one's own mean, as Wijmans et al. 2020 (their code averages gradients by
  PyTorch's DistributedDataParallel), so that the steps of a preempted learner weigh more.
"""


class Weights:
    """Divides sums over the steps of a learner such that they add up to a mean over those of all learners."""

    def __init__(self, reducer: Reducer, weighting: Weighting = "samples") -> None:
        self._reducer = reducer
        self.learners_alike = weighting == "learners"

    def divisor(self, steps: int) -> float:
        """Return what sums over this learner's `steps` are divided by, at least 1; every learner must call it."""
        if self.learners_alike:
            return float(max(1, steps) * self._reducer.size)
        return float(max(1, int(self.total(float(steps)))))

    def share(self, steps: int, divisor: float) -> float:
        """Return the part of this learner's `steps` in a mean over all learners' steps; these parts add up to 1."""
        return 1.0 / self._reducer.size if self.learners_alike else steps / divisor

    def mean(self, total: float, divisor: float) -> float:
        """Return the mean of which this learner has a `total` over its steps, and a `divisor` from above."""
        return self.total(total / divisor) if self.learners_alike else self.total(total) / divisor

    def total(self, value: float) -> float:
        """Return the sum of a number over all learners."""
        if self._reducer.size == 1:
            return value
        tensor = torch.tensor([value], dtype=torch.float64)
        self._reducer.sum_([tensor])
        return float(tensor)
