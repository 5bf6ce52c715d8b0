"""Tests, intervals and power for a handful of seeds; a seed is the unit of replication.

A `Sample` is a float64 array [n] of one finite value per seed; anything else raises ValueError. A statistic that needs
a spread is missing (NaN) for a single seed.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import special

Sample = np.ndarray[Any, np.dtype[np.float64]]

MAX_SEEDS = 1000
"""A comparison that needs more seeds than this counts as undecidable."""
EQUAL_BUDGET = 0.01
"""Groups whose env_frames differ by more than this fraction are not compared."""
POWER = 0.8
"""Power of the tests for which numbers of seeds are given."""


@dataclass(frozen=True)
class Interval:
    """An estimate with its interval; `low` and `high` are NaN if there is none (one seed)."""

    value: float
    low: float
    high: float


def checked(values: object, name: str = "values") -> Sample:
    """Return `values` if it is a sample. Raise ValueError otherwise."""
    if not isinstance(values, np.ndarray) or values.ndim != 1 or values.dtype != np.float64:
        found = f"an array of {values.dtype} {list(values.shape)}" if isinstance(values, np.ndarray) else type(values)
        raise ValueError(f"{name} must be a float64 array [n] with one value per seed, not {found}")
    if not len(values) or not np.isfinite(values).all():
        raise ValueError(f"{name} must hold at least one value, all of them finite")
    return values


def t_quantile(p: Any, freedom: Any) -> Any:
    """Return the quantile p of Student's distribution: `stats.t.ppf`, but scipy.stats takes a second to import."""
    return special.stdtrit(freedom, p)


def t_tail(value: Any, freedom: Any) -> Any:
    """Return the chance of more than `value` under Student's distribution: `stats.t.sf`."""
    return special.stdtr(freedom, -value)


def mean_and_error(values: Sample) -> tuple[float, float]:
    """Return mean and its standard error: missing for one seed, exactly 0 if all seeds agree."""
    if len(values) < 2:
        return float(values[0]), math.nan
    if np.ptp(values) == 0:
        return float(values[0]), 0.0
    return float(values.mean()), float(values.std(ddof=1)) / math.sqrt(len(values))


def t_interval(values: Sample, level: float) -> Interval:
    """Return the mean of independent seeds [n] with Student's interval."""
    _check_probability("level", level)
    mean, error = mean_and_error(checked(values))
    half = float(t_quantile((1 + level) / 2, len(values) - 1)) * error if len(values) > 1 else math.nan
    return Interval(mean, mean - half, mean + half)


def geometric_mean(ratios: Sample, level: float) -> Interval:
    """Return the geometric mean of positive ratios [n], with the interval of their logarithms from three on."""
    if not len(ratios):
        return Interval(math.nan, math.nan, math.nan)
    found = t_interval(np.log(ratios), level)
    low, high = (found.low, found.high) if len(ratios) >= 3 else (math.nan, math.nan)
    return Interval(math.exp(found.value), math.exp(low), math.exp(high))


def prediction_interval(values: Sample, level: float, others: int) -> tuple[float, float]:
    """Return where the mean of `others` further seeds would fall: mean +- t s sqrt(1/n + 1/m)."""
    _check_probability("level", level)
    if others < 1:
        raise ValueError(f"others must be at least 1, not {others}")
    n = len(checked(values))
    if n < 2:
        return math.nan, math.nan
    mean, error = mean_and_error(values)
    half = float(t_quantile((1 + level) / 2, n - 1)) * error * math.sqrt(1 + n / others)
    return mean - half, mean + half


def hedges_g(a: Sample, b: Sample) -> float:
    """Return (mean(a) - mean(b)) / pooled deviation, with Hedges' (1981) correction 1 - 3 / (4 df - 1) for few seeds.

    Missing if neither group has a spread, or there are fewer than 3 seeds in all.
    """
    free = len(checked(a, "a")) + len(checked(b, "b")) - 2
    if free < 1:
        return math.nan
    spread = [group for group in (a, b) if np.ptp(group)]  # a mean of equal numbers may be rounded
    if not spread:
        return math.nan
    squares = sum(float(((group - group.mean()) ** 2).sum()) for group in spread)
    return float((a.mean() - b.mean()) / math.sqrt(squares / free) * (1 - 3 / (4 * free - 1)))


def holm(table: pd.DataFrame, p: str = "p", family: Sequence[str] = ()) -> pd.Series:
    """Return p values adjusted by Holm's (1979) step-down method, within each family: the rows equal in these columns.

    The index is the table's. A missing p stays missing and does not count. No columns: one family. Raise ValueError
    for a column that is not there or a p outside [0, 1].
    """
    for name in (p, *family):
        if name not in table.columns:
            raise ValueError(f"no column '{name}'; there are: {', '.join(map(str, table.columns))}")
    values = table[p].to_numpy(dtype=np.float64, na_value=np.nan)
    if ((values < 0) | (values > 1)).any():
        raise ValueError(f"column '{p}' holds a value outside [0, 1]")
    groups = (
        table.groupby(list(family), dropna=False, sort=False).ngroup() if family else pd.Series(0, index=table.index)
    )
    adjusted = np.full(len(table), np.nan)
    for group in range(int(groups.max()) + 1 if len(groups) else 0):
        rows = np.flatnonzero((groups.to_numpy() == group) & ~np.isnan(values))
        ordered = rows[np.argsort(values[rows], kind="stable")]
        steps = values[ordered] * np.arange(len(ordered), 0, -1)
        adjusted[ordered] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return pd.Series(adjusted, index=table.index, name=p)


def equivalence_power(n: int, deviation: float, margin: float, *, bias: float = 0.0) -> float:
    """Return the chance that n seeds show equivalence with a number at 5 %, if their true mean is `bias` off it.

    The test is `ddrl.analysis.statistics.printed.Difference.p_of_equivalence`.

    Exact: Owen's Q (Owen 1965; Julious 2004, section 5), an integral over the sample deviation s of the chance that
    the mean falls between -margin + t s / sqrt(n) and margin - t s / sqrt(n).
    """
    from scipy import integrate  # takes long to import

    free, root = n - 1, math.sqrt(n)
    quantile = float(t_quantile(1 - 0.05, free))
    upper, lower = root * (margin - bias) / deviation, -root * (margin + bias) / deviation
    # `stats.chi.pdf` is the same density, but takes 150 microseconds per number.
    log_scale = math.log(2) + free / 2 * math.log(free / 2) - math.lgamma(free / 2)

    def integrand(ratio: float) -> float:
        """Return, for ratio = s / sigma, the chance to pass given s, times the density of s."""
        passed = float(special.ndtr(upper - quantile * ratio) - special.ndtr(lower + quantile * ratio))
        return passed * math.exp(log_scale + (free - 1) * math.log(ratio) - free * ratio**2 / 2)

    # The density is negligible beyond its quantiles, and outside them quad could miss a narrow peak.
    ends = np.sqrt(2 * special.gammaincinv(0.5 * free, [1e-13, 1 - 1e-13])) / math.sqrt(free)
    end = min(float(ends[1]), root * margin / (quantile * deviation))
    return float(integrate.quad(integrand, float(ends[0]), end, limit=200)[0]) if end > ends[0] else 0.0


def difference_power(n: int, deviation_a: float, deviation_b: float, effect: float, *, alpha: float = 0.05) -> float:
    """Return the chance that Welch's test of two groups of n seeds has p <= alpha and the sign of the true `effect`.

    Exact: the test's degrees of freedom depend on the share of one group in the sum of squares, which is beta
    distributed and independent of that sum. Given the share, the statistic is a multiple of a noncentral t with 2 (n -
    1) degrees of freedom. (One noncentral t at fixed degrees of freedom, as in Julious 2004, section 3, would promise
    three seeds a tenth more power than they have.)
    """
    from scipy import stats  # takes long to import

    scale = max(deviation_a, deviation_b)
    free, a, b = n - 1, (deviation_a / scale) ** 2, (deviation_b / scale) ** 2
    nodes, weights = np.polynomial.legendre.leggauss(64)
    share = stats.beta.ppf((nodes + 1) / 2, free / 2, free / 2)
    # Squared standard errors of both groups, as parts of their true sum and of the sum of squares.
    part_a, part_b = share * a / (a + b), (1 - share) * b / (a + b)
    freedom = free * (part_a + part_b) ** 2 / (part_a**2 + part_b**2)
    bound = t_quantile(1 - alpha / 2, freedom) * np.sqrt(2 * (part_a + part_b))
    # Power is 1 long before scipy's noncentral t gives up.
    noncentrality = min(abs(effect) / scale / math.sqrt((a + b) / n), 1e6)
    return float(weights @ stats.nct.sf(bound, 2 * free, noncentrality) / 2)


def no_difference_power(n: int, deviation_a: float, deviation_b: float, margin: float, *, alpha: float = 0.05) -> float:
    """Return the chance that Welch's interval of two groups of n seeds lies within +-margin, if they are equal.

    The level of the interval is 1 - alpha: two one-sided tests (Schuirmann 1987) at alpha / 2 each. Exact up to the
    integration over the share of one group in the sum of squares (`difference_power`), and over that sum.
    """
    scale = max(deviation_a, deviation_b)
    free, a, b = n - 1, (deviation_a / scale) ** 2, (deviation_b / scale) ** 2
    nodes, weights = np.polynomial.legendre.leggauss(64)
    chances = (nodes + 1) / 2
    share = special.betaincinv(free / 2, free / 2, chances)
    part_a, part_b = share * a / (a + b), (1 - share) * b / (a + b)
    freedom = free * (part_a + part_b) ** 2 / (part_a**2 + part_b**2)
    # The estimated standard error in parts of the true one, for each share (rows) and sum of squares (columns).
    total = special.gammaincinv(free, chances) / free
    error = np.sqrt(2 * (part_a + part_b)[:, None] * total[None, :])
    room = margin / scale / math.sqrt((a + b) / n) - t_quantile(1 - alpha / 2, freedom)[:, None] * error
    return float(weights @ np.maximum(2 * special.ndtr(room) - 1, 0.0) @ weights / 4)


def seeds_for_equivalence(deviation: float, margin: float, *, power: float = POWER, bias: float = 0.0) -> int | None:
    """Return the fewest seeds whose equivalence test has this power, if the true mean is `bias` off the target.

    None: more than 1000, or never, since the bias is not inside the margin.
    """
    _check_power(power, deviation)
    if not (math.isfinite(margin) and margin > 0 and math.isfinite(bias)):
        raise ValueError(f"margin must be a number above 0 and bias a number, not {margin} and {bias}")
    if abs(bias) >= margin:
        return None
    return _fewest(lambda n: deviation == 0 or equivalence_power(n, deviation, margin, bias=bias) >= power)


def seeds_for_difference(
    deviation_a: float, deviation_b: float, effect: float, *, power: float = POWER, alpha: float = 0.05
) -> int | None:
    """Return the fewest seeds per group with which Welch's test has this power; None: over 1000, or effect 0."""
    _check_probability("alpha", alpha)
    _check_power(power, deviation_a, deviation_b)
    if not math.isfinite(effect):
        raise ValueError(f"effect must be a number, not {effect}")
    if effect == 0:
        return None
    spread = max(deviation_a, deviation_b) > 0
    return _fewest(lambda n: not spread or difference_power(n, deviation_a, deviation_b, effect, alpha=alpha) >= power)


def seeds_for_no_difference(
    deviation_a: float, deviation_b: float, margin: float, *, power: float = POWER, alpha: float = 0.05
) -> int | None:
    """Return the fewest seeds per group of `no_difference_power` >= power; None: over 1000, or margin 0."""
    _check_probability("alpha", alpha)
    _check_power(power, deviation_a, deviation_b)
    if not (math.isfinite(margin) and margin >= 0):
        raise ValueError(f"margin must be a number of at least 0, not {margin}")
    if margin == 0:
        return None
    spread = max(deviation_a, deviation_b) > 0
    return _fewest(
        lambda n: not spread or no_difference_power(n, deviation_a, deviation_b, margin, alpha=alpha) >= power
    )


def _fewest(enough: Callable[[int], bool]) -> int | None:
    """Return the least n from 2 to `MAX_SEEDS` with enough(n), which grows with n; None if there is none."""
    counts = range(2, MAX_SEEDS + 1)
    place = bisect_left(counts, True, key=enough)
    return counts[place] if place < len(counts) else None


def _check_probability(name: str, value: float) -> None:
    if not 0.0 < value < 1.0:
        raise ValueError(f"{name} must lie between 0 and 1, not {value}")


def _check_power(power: float, *deviations: float) -> None:
    _check_probability("power", power)
    for deviation in deviations:
        if not (math.isfinite(deviation) and deviation >= 0):
            raise ValueError(f"a deviation must be a number of at least 0, not {deviation}")
