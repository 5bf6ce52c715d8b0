"""How the steps of several learners weigh in one gradient and in means: all steps alike, or all learners alike."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch

from ddrl.interfaces import Reducer
from ddrl.types import Metrics

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

    def divisor(self, steps: int, all_steps: float | None = None) -> float:
        """Return what sums over this learner's `steps` are divided by, at least 1.

        Every learner must call it, unless those of `all_steps` of all learners are known.
        """
        if self.learners_alike:
            return float(max(1, steps) * self._reducer.size)
        return float(max(1, int(self.total(float(steps)) if all_steps is None else all_steps)))

    def share(self, steps: int, divisor: float) -> float:
        """Return the part of this learner's `steps` in a mean over all learners' steps; these parts add up to 1."""
        return 1.0 / self._reducer.size if self.learners_alike else steps / divisor

    def parts(self, totals: Metrics, divisor: float) -> Metrics:
        """Return this learner's parts of means, which add up to them; `means` at once, or `sums` later."""
        return {name: value / divisor for name, value in totals.items()}

    def sums(self, parts: Metrics) -> Metrics:
        """Return the sums over all learners of several numbers, by one message."""
        if self._reducer.size == 1 or not parts:
            return parts
        of_all = torch.tensor(list(parts.values()), dtype=torch.float64)
        self._reducer.sum_([of_all])
        return dict(zip(parts, of_all.tolist(), strict=True))

    def means(self, totals: Metrics, divisor: float) -> Metrics:
        """Return the mean of each of several numbers, by one message: see `mean`."""
        if self.learners_alike or self._reducer.size == 1:
            return self.sums(self.parts(totals, divisor))
        return self.parts(self.sums(totals), divisor)

    def mean(self, total: float, divisor: float) -> float:
        """Return the mean of which this learner has a `total` over its steps, and a `divisor` from above."""
        return self.means({"": total}, divisor)[""]

    def total(self, value: float) -> float:
        """Return the sum of a number over all learners."""
        return self.sums({"": value})[""]
