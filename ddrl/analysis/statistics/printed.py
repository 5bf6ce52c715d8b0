"""Compares our seeds with a printed mean: exact, unless the paper also prints its seeds and their deviation.

With a printed deviation the difference of the two means is Welch's (1947): both spreads count, and the degrees of
freedom are those of Satterthwaite. Without one the printed number counts as exact, which is Student's test.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ddrl.analysis.statistics.significance import Interval, Sample, checked, mean_and_error, t_quantile, t_tail


class PrintedMean(NamedTuple):
    """A printed number with the number of its seeds (None: not printed) and their standard deviation (NaN: as well)."""

    value: float
    seeds: int | None
    deviation: float = math.nan

    @property
    def error(self) -> float:
        """The standard error; 0 if seeds or deviation are not printed, or there is one seed."""
        known = self.seeds is not None and self.seeds > 1 and math.isfinite(self.deviation)
        return self.deviation / math.sqrt(self.seeds) if known and self.seeds else 0.0

    def interval(self, level: float) -> Interval:
        """Return the number with Student's interval; without one if it counts as exact."""
        if self.seeds is None or self.error == 0:
            return Interval(self.value, math.nan, math.nan)
        half = float(t_quantile((1 + level) / 2, self.seeds - 1)) * self.error
        return Interval(self.value, self.value - half, self.value + half)


class Difference(NamedTuple):
    """Our mean minus a printed one, its standard error (NaN for one seed) and degrees of freedom."""

    value: float
    error: float
    freedom: float

    def interval(self, level: float) -> Interval:
        """Return the difference with its interval."""
        half = 0.0 if self.error == 0 else float(t_quantile((1 + level) / 2, self.freedom)) * self.error
        return Interval(self.value, self.value - half, self.value + half)

    def p_of_difference(self) -> float:
        """Return p of the two-sided test that both means are equal. Without any spread: 1 if they are, else 0."""
        if self.error == 0:
            return float(self.value == 0)
        return 2 * float(t_tail(abs(self.value) / self.error, self.freedom))

    def p_of_equivalence(self, margin: float) -> float:
        """Return the larger p of two one-sided tests of |difference| >= margin (Schuirmann 1987).

        At 5 % they ask if the 90 % interval lies inside the margin. Without any spread p is 0 strictly inside, else 1.
        Raise ValueError for a margin that is no number above 0.
        """
        if not (math.isfinite(margin) and margin > 0):
            raise ValueError(f"margin must be a number above 0, not {margin}")
        distance = margin - abs(self.value)
        if self.error == 0:
            return float(distance <= 0)
        return float(t_tail(distance / self.error, self.freedom))


def difference(ours: Sample, printed: PrintedMean) -> Difference:
    """Return our mean [n] minus the printed one. Raise ValueError as `checked`."""
    mean, error = mean_and_error(checked(ours))
    n, own, other = len(ours), error**2, printed.error**2
    if n < 2 or printed.seeds is None or other == 0:
        return Difference(mean - printed.value, error, n - 1)
    total = own + other
    freedom = total**2 / (own**2 / (n - 1) + other**2 / (printed.seeds - 1))
    return Difference(mean - printed.value, math.sqrt(total), freedom)
