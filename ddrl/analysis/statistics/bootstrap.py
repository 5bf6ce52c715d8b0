"""Statistics of a suite of environments (Agarwal et al. 2021) with intervals that a handful of seeds can bear.

The percentile bootstrap is too narrow for few seeds: of three seeds of one environment its 95 % intervals hold the mean
in 72 % of all cases. Here an interval is studentised: value +- t s, where s is the larger of two standard errors and t
is Student's with Satterthwaite's degrees of freedom, from the jackknife's variances of the environments.

jackknife   leaves out one seed of one environment at a time (Efron and Stein 1981). Exact for means; it misjudges
            statistics with corners, such as the median of few environments.
bootstrap   draws n - 1 of the n seeds of each environment, with replacement: the variance of a mean is then unbiased,
            which it is not with n of n (McCarthy and Snowden 1985; Rao and Wu 1988).

For the mean of one environment both are Student's interval. Shares of runs have Wilson's (1927) interval, chances of
improvement Newcombe's (2006, method 5): both hold where all runs agree, and a bootstrap has no width.
With fewer than `MIN_SEEDS` seeds in an environment there is no interval but a range (`Estimate.spread`).
`tests/analysis/statistics/coverage.py` measures how often intervals hold the truth, and says what it found.

A seed is the unit. A table has one row per run with its environment, seed and score. A bare array, a missing column, an
(environment, seed) pair given twice or a score that is not a number raises ValueError. Environments may have different
numbers of seeds: each environment counts the same, each of its n seeds as 1/n of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from scipy import special

from ddrl.analysis.statistics.score_error import at_least
from ddrl.analysis.statistics.significance import t_quantile

Floats = np.ndarray[Any, np.dtype[np.float64]]
Integers = np.ndarray[Any, np.dtype[np.int64]]
LEVEL = 0.95
"""The level of all intervals and bands."""
MIN_SEEDS = 3
"""The fewest seeds of each environment for an interval: that of two is 18 times their deviation wide."""
INTERVAL, RANGE = "interval", "range"
"""What `low` and `high` of an `Estimate` are."""


@dataclass(frozen=True)
class Estimate:
    """A value with its spread: an interval, or the range of the seeds where they are too few for one."""

    value: float
    low: float
    """NaN, as `high`, if there is neither: one seed."""
    high: float
    spread: str
    """`INTERVAL`; `RANGE`: the values of the lowest and of the highest seed of every environment; "": one seed."""


@dataclass(frozen=True)
class Draws:
    """R versions of a suite of G environments with at most S seeds each.

    scores [R, G, S], weights [R, G, S] (0 past an environment's seeds); the weights of an environment add up to
    `unit`.
    """

    scores: Floats
    weights: Integers
    unit: int

    def mean_of(self, values: Floats) -> Floats:
        """Return the mean of values [R, G, S] over runs, every environment weighted the same: [R]."""
        total: Floats = (values * self.weights).sum(axis=(1, 2)) / (self.unit * values.shape[1])
        return total


Statistic = Callable[[Draws], Floats]


@dataclass(frozen=True)
class Suite:
    """The checked scores of one table, and the number of seeds [G] of each environment."""

    environments: tuple[str, ...]
    seeds: Integers
    given: Draws
    """The suite itself, as its only version: R = 1."""

    @property
    def spread(self) -> str:
        """Return what the seeds of this suite allow: `Estimate.spread`."""
        fewest = int(self.seeds.min())
        return INTERVAL if fewest >= MIN_SEEDS else RANGE if fewest > 1 else ""

    def drawn(self, generator: np.random.Generator, resamples: int) -> Draws:
        """Return `resamples` versions of n - 1 seeds of each environment's n, drawn with replacement; n must be > 1."""
        count, most = len(self.seeds), int(self.seeds.max()) - 1
        # Columns past an environment's number of draws hold arbitrary seeds with weight 0.
        columns = generator.integers(self.seeds[:, None], size=(resamples, count, most))
        scores = self.given.scores[0, np.arange(count)[:, None], columns]
        weights, unit = _weights(self.seeds - 1)
        return Draws(scores, np.tile(weights, (resamples, 1, 1)), unit)

    def without_each(self) -> tuple[Draws, Integers]:
        """Return one version per seed, without it, and the number [R] of its environment; n must be > 1."""
        games = np.repeat(np.arange(len(self.seeds)), self.seeds)
        place = np.arange(len(games)) - np.repeat(np.cumsum(self.seeds) - self.seeds, self.seeds)
        unit = math.lcm(*self.seeds.tolist(), *(self.seeds - 1).tolist())
        whole = self.given.weights[0] * unit // self.given.unit
        weights = np.tile(whole, (len(games), 1, 1))
        rows = np.arange(len(games))
        weights[rows, games] = (whole[games] > 0) * (unit // (self.seeds[games] - 1))[:, None]
        weights[rows, games, place] = 0
        return Draws(np.tile(self.given.scores, (len(games), 1, 1)), weights, unit), games

    def at_least(self, errors: Floats) -> Suite:
        """Return the suite whose seeds deviate at least by their standard errors [G, S], environment by environment."""
        scores = self.given.scores.copy()
        for row, own, count in zip(scores[0], errors, self.seeds, strict=True):
            row[:count] = at_least(row[:count], own[:count])
        return replace(self, given=replace(self.given, scores=scores))

    def extreme(self, *, highest: bool) -> Draws:
        """Return the suite with nothing but the lowest (or the highest) seed of each environment."""
        outside = np.where(self.given.weights[0] > 0, self.given.scores[0], -math.inf if highest else math.inf)
        found = outside.max(axis=1) if highest else outside.min(axis=1)
        return Draws(found[None, :, None], np.ones((1, len(found), 1), dtype=np.int64), 1)


def _weights(seeds: Integers) -> tuple[Integers, int]:
    """Return weights [1, G, S] that count every environment the same, and what those of one add up to.

    They are whole numbers, so that quartiles fall exactly where they should.
    """
    unit = math.lcm(*seeds.tolist())
    return np.where(np.arange(seeds.max()) < seeds[:, None], unit // seeds[:, None], 0)[None], unit


def suite(table: pd.DataFrame, metric: str) -> Suite:
    """Return the scores `metric` of a table, checked as the module's docstring says. Raise ValueError."""
    if not isinstance(table, pd.DataFrame):
        raise ValueError(f"a table with the columns environment, seed and {metric} is needed, not {type(table)}")
    for name in ("environment", "seed", metric):
        if list(table.columns).count(name) != 1:
            raise ValueError(f"one column '{name}' is needed; there are: {', '.join(map(str, table.columns))}")
    if table.empty:
        raise ValueError("the table has no rows")
    if not pd.api.types.is_numeric_dtype(table[metric]) or pd.api.types.is_bool_dtype(table[metric]):
        raise ValueError(f"column '{metric}' holds {table[metric].dtype}, not numbers")
    values = table[metric].to_numpy(dtype=np.float64, na_value=math.nan)
    known = table["environment"].notna().to_numpy() & table["seed"].notna().to_numpy() & np.isfinite(values)
    if not known.all():
        first = table[~known].iloc[0]
        raise ValueError(f"column '{metric}' is not a finite number for {first['environment']}, seed {first['seed']}")
    twice = table.duplicated(["environment", "seed"])
    if twice.any():
        first = table[twice].iloc[0]
        raise ValueError(f"{first['environment']}, seed {first['seed']} is given twice; a table holds one variant")
    games, environments = pd.factorize(table["environment"], sort=True)
    order = np.lexsort((table["seed"].to_numpy(), games))
    seeds = np.bincount(games).astype(np.int64)
    scores = np.zeros((len(seeds), int(seeds.max())))
    scores[np.arange(seeds.max()) < seeds[:, None]] = values[order]
    weights, unit = _weights(seeds)
    return Suite(tuple(map(str, environments)), seeds, Draws(scores[None], weights, unit))


def _mean(draws: Draws) -> Floats:
    return draws.mean_of(draws.scores)


def _median(draws: Draws) -> Floats:
    means: Floats = (draws.scores * draws.weights).sum(axis=2) / draws.unit
    return np.median(means, axis=1)


def _iqm(draws: Draws) -> Floats:
    versions, total = len(draws.scores), draws.unit * draws.scores.shape[1]
    scores = draws.scores.reshape(versions, -1)
    order = np.argsort(scores, axis=1, kind="stable")
    weights = draws.weights.reshape(versions, -1)
    upper = 4 * np.cumsum(np.take_along_axis(weights, order, axis=1), axis=1)
    lower = np.concatenate([np.zeros((versions, 1), dtype=upper.dtype), upper[:, :-1]], axis=1)
    inside = np.clip(np.minimum(upper, 3 * total) - np.maximum(lower, total), 0, None)
    middle: Floats = (inside * np.take_along_axis(scores, order, axis=1)).sum(axis=1) / (2 * total)
    return middle


def _capped_mean(draws: Draws) -> Floats:
    return draws.mean_of(np.minimum(draws.scores, 1.0))


def _optimality_gap(draws: Draws) -> Floats:
    return 1.0 - _capped_mean(draws)


STATISTICS: Mapping[str, Statistic] = {
    "mean": _mean,
    "median": _median,
    "iqm": _iqm,
    "optimality_gap": _optimality_gap,
    "capped_mean": _capped_mean,
}
"""Statistics of normalised scores: mean and median of the environments' means over seeds; interquartile mean of all
runs, outer ones counted in part; how far runs are short of 1 on average; mean of all runs, those above 1 counted as 1
(DMLab-30's measure: Espeholt et al. 2018, Table 3)."""

_POSSIBLE: Mapping[str, tuple[float, float]] = {"optimality_gap": (0.0, math.inf), "capped_mean": (-math.inf, 1.0)}
"""The least and the largest value of a statistic, where it has any."""


def value_of(table: pd.DataFrame, metric: str, statistic: str) -> float:
    """Return one of `STATISTICS` of a table."""
    return float(STATISTICS[statistic](suite(table, metric).given)[0])


def bootstrap(
    table: pd.DataFrame,
    metric: str,
    statistic: str,
    *,
    generator: np.random.Generator,
    resamples: int,
    errors: str | None = None,
) -> Estimate:
    """Return one of `STATISTICS` with its 95 % interval, or its range, by the rules of this module.

    The interval says how the value would change with other seeds on the same environments. `errors` is a column of the
    scores' standard errors (missing: unknown): the seeds of an environment then count as deviating by that at least.
    """
    if statistic not in STATISTICS:
        raise ValueError(f"no statistic '{statistic}'; allowed: {', '.join(STATISTICS)}")
    own = suite(table, metric)
    known = None if errors is None else suite(table.fillna({errors: 0.0}), errors).given.scores[0]
    return estimate(statistic, own, generator, resamples, errors=known)


def bootstrap_curve(values: Floats, statistic: str, *, seed: int, resamples: int) -> list[Estimate]:
    """Return one of `STATISTICS` at every point of the curves [S, P] of S seeds on one environment, as `bootstrap`.

    All points share the same draws of seeds, made from `seed`.
    """
    count = len(values)
    weights = np.ones((1, 1, count), dtype=np.int64)
    suites = (Suite(("",), np.array([count]), Draws(point[None, None], weights, count)) for point in values.T)
    return [estimate(statistic, one, np.random.default_rng(seed), resamples) for one in suites]


def estimate(
    name: str, own: Suite, generator: np.random.Generator, resamples: int, *, errors: Floats | None = None
) -> Estimate:
    """Return one of `STATISTICS` of a suite, as `bootstrap`; `errors` [G, S]."""
    statistic = STATISTICS[name]
    value = float(statistic(own.given)[0])
    if own.spread != INTERVAL:
        return _ranged(value, [float(statistic(own.extreme(highest=side))[0]) for side in (False, True)], own.spread)
    apart = own if errors is None else own.at_least(errors)
    return studentised(name, own, *standard_error(name, apart, generator, resamples))


def standard_error(name: str, own: Suite, generator: np.random.Generator, resamples: int) -> tuple[float, float]:
    """Return the larger standard error of one of `STATISTICS`, and its degrees of freedom; n must be > 1."""
    error, freedom = _jackknife(STATISTICS[name], own)
    return max(error, float(STATISTICS[name](own.drawn(generator, resamples)).std())), freedom


def studentised(name: str, own: Suite, error: float, freedom: float) -> Estimate:
    """Return one of `STATISTICS` with Student's interval, cut where no value is possible."""
    value = float(STATISTICS[name](own.given)[0])
    half = float(t_quantile((1 + LEVEL) / 2, freedom)) * error
    least, largest = _POSSIBLE.get(name, (-math.inf, math.inf))
    return Estimate(value, max(value - half, least), min(value + half, largest), INTERVAL)


def _ranged(value: float, ends: Sequence[float], spread: str) -> Estimate:
    """Return a value with its range; with neither range nor interval for one seed."""
    return Estimate(value, min(ends), max(ends), spread) if spread else Estimate(value, math.nan, math.nan, "")


def _jackknife(statistic: Statistic, own: Suite) -> tuple[float, float]:
    """Return the jackknife's standard error and Satterthwaite's degrees of freedom, of a suite with n > 1."""
    versions, games = own.without_each()
    values = statistic(versions)
    means = np.bincount(games, values) / own.seeds
    squares = np.bincount(games, (values - means[games]) ** 2)
    variances = squares * (own.seeds - 1) / own.seeds
    total = float(variances.sum())
    if total == 0:
        return 0.0, float(own.seeds.min() - 1)
    return math.sqrt(total), total**2 / float((variances**2 / (own.seeds - 1)).sum())


def performance_profile(table: pd.DataFrame, metric: str, taus: Sequence[float]) -> pd.DataFrame:
    """Return the fraction of the runs with a score above tau: tau, fraction, low, high, spread by tau.

    The band is pointwise: Wilson's interval, as if all environments had the same fraction, which makes it wider.
    """
    own = suite(table, metric)
    found = [share_of(own, tau) for tau in taus]
    rows = [(float(tau), one.value, one.low, one.high, one.spread) for tau, one in zip(taus, found, strict=True)]
    profile = pd.DataFrame(rows, columns=["tau", "fraction", "low", "high", "spread"])
    return profile.astype(dict.fromkeys(("tau", "fraction", "low", "high"), "float64"))


def share_of(own: Suite, tau: float) -> Estimate:
    """Return the fraction of a suite's runs with a score above tau, as `performance_profile`."""
    value = float(_fraction_above(tau, own.given)[0])
    if own.spread != INTERVAL:
        ends = [float(_fraction_above(tau, own.extreme(highest=side))[0]) for side in (False, True)]
        return _ranged(value, ends, own.spread)
    return Estimate(value, *_wilson(value, len(own.seeds) ** 2 / float((1 / own.seeds).sum())), INTERVAL)


def _wilson(share: float, runs: float) -> tuple[float, float]:
    """Return Wilson's (1927) score interval of a share of independent runs."""
    square = float(special.ndtri((1 + LEVEL) / 2)) ** 2
    middle = (share + square / (2 * runs)) / (1 + square / runs)
    half = math.sqrt(square * (share * (1 - share) / runs + square / (4 * runs**2))) / (1 + square / runs)
    return max(0.0, middle - half), min(1.0, middle + half)


def probability_of_improvement(table_a: pd.DataFrame, table_b: pd.DataFrame, metric: str) -> Estimate:
    """Return the chance that a run of a scores above a run of b on the same environment, averaged over environments.

    A tie counts half. The interval is Newcombe's (2006, method 5), as if all environments had the same chance, which
    makes it wider. Raise ValueError also if the two tables have different environments.
    """
    a = suite(table_a, metric)
    b = suite(table_b, metric)
    if a.environments != b.environments:
        odd = sorted(set(a.environments) ^ set(b.environments))
        raise ValueError(f"the tables differ in their environments: {', '.join(odd)} in one of them only")
    return improvement_of(a, b)


def improvement_of(a: Suite, b: Suite) -> Estimate:
    """Return the chance of improvement of suites with the same environments, as `probability_of_improvement`."""
    value = float(_superiority(a.given, b.given)[0])
    spread = min(a, b, key=lambda one: int(one.seeds.min())).spread
    if spread == INTERVAL:
        return Estimate(value, *_newcombe(value, a.seeds, b.seeds), INTERVAL)
    ends = [float(_superiority(a.extreme(highest=side), b.extreme(highest=not side))[0]) for side in (False, True)]
    return _ranged(value, ends, spread)


def _newcombe(chance: float, a: Integers, b: Integers) -> tuple[float, float]:
    """Return the chances theta with |chance - theta| <= z sqrt(variance(theta)), to four digits.

    The variance is Hanley and McNeil's (1982) for groups of a and b [G] seeds, of which Newcombe replaces a - 1 and
    b - 1 in its middle term by their mean.
    """
    theta = np.linspace(0.0, 1.0, 10_001)
    others = ((a + b) / 2 - 1)[:, None]
    bracket = 1 + others * ((1 - theta) / (2 - theta) + theta / (1 + theta))
    variance = (theta * (1 - theta) * bracket / (a * b)[:, None]).sum(axis=0) / len(a) ** 2
    inside = np.abs(chance - theta) <= float(special.ndtri((1 + LEVEL) / 2)) * np.sqrt(variance) + 1e-9
    return min(float(theta[inside].min()), chance), max(float(theta[inside].max()), chance)


def _fraction_above(tau: float, draws: Draws) -> Floats:
    return draws.mean_of((draws.scores > tau).astype(np.float64))


def _superiority(a: Draws, b: Draws) -> Floats:
    """Return Mann and Whitney's U, divided by the number of pairs, averaged over environments [R]."""
    total = np.zeros(len(a.scores))
    for column in range(a.scores.shape[2]):
        first = a.scores[:, :, column, None]
        wins = (first > b.scores) + 0.5 * (first == b.scores)
        total += ((wins * b.weights).sum(axis=2) * a.weights[:, :, column]).sum(axis=1)
    mean_of_environments: Floats = total / (a.unit * b.unit * a.scores.shape[1])
    return mean_of_environments
