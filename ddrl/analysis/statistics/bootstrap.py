"""Statistics of a suite of environments, with bootstrap intervals (Agarwal et al. 2021). A seed is the unit drawn.

A table has one row per run with its environment, seed and score. A bare array, a missing column, an (environment, seed)
pair given twice or a score that is not a number raises ValueError. Environments may have different numbers of seeds:
each environment counts the same, each of its n seeds as 1/n of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from ddrl.analysis.statistics.significance import Interval

Floats = np.ndarray[Any, np.dtype[np.float64]]
Integers = np.ndarray[Any, np.dtype[np.int64]]
LEVEL = 0.95
"""The level of all intervals and bands."""


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

    def drawn(self, generator: np.random.Generator, resamples: int) -> Draws:
        """Return `resamples` versions, with seeds drawn with replacement per environment."""
        _, count, most = self.given.scores.shape
        # Columns past an environment's number of seeds hold arbitrary seeds with weight 0.
        columns = generator.integers(self.seeds[:, None], size=(resamples, count, most))
        scores = self.given.scores[0, np.arange(count)[:, None], columns]
        return Draws(scores, np.tile(self.given.weights, (resamples, 1, 1)), self.given.unit)


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
    # Weights are whole numbers, so that quartiles fall exactly where they should.
    unit = math.lcm(*seeds.tolist())
    weights = np.where(np.arange(seeds.max()) < seeds[:, None], unit // seeds[:, None], 0)
    return Suite(tuple(map(str, environments)), seeds, Draws(scores[None], weights[None], unit))


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


def value_of(table: pd.DataFrame, metric: str, statistic: str) -> float:
    """Return one of `STATISTICS` of a table."""
    return float(STATISTICS[statistic](suite(table, metric).given)[0])


def bootstrap(
    table: pd.DataFrame, metric: str, statistic: str, *, generator: np.random.Generator, resamples: int
) -> Interval:
    """Return one of `STATISTICS` with its 95 % percentile interval from a bootstrap stratified by environment.

    The interval says how the value would change with other seeds on the same environments; it is missing if one has a
    single seed.
    """
    if statistic not in STATISTICS:
        raise ValueError(f"no statistic '{statistic}'; allowed: {', '.join(STATISTICS)}")
    return _estimates([STATISTICS[statistic]], [suite(table, metric)], generator, resamples)[0]


def bootstrap_curve(values: Floats, statistic: str, *, seed: int, resamples: int) -> list[Interval]:
    """Return one of `STATISTICS` at every point of the curves [S, G] of S seeds on one environment, as `bootstrap`.

    All points share the same draws of seeds, made from `seed`.
    """
    count = len(values)
    weights = np.ones((1, 1, count), dtype=np.int64)
    suites = (Suite(("",), np.array([count]), Draws(point[None, None], weights, count)) for point in values.T)
    make = STATISTICS[statistic]
    return [_estimates([make], [one], np.random.default_rng(seed), resamples)[0] for one in suites]


def performance_profile(
    table: pd.DataFrame, metric: str, taus: Sequence[float], *, generator: np.random.Generator, resamples: int
) -> pd.DataFrame:
    """Return the fraction of the runs with a score above tau: columns tau, fraction, low, high, one row per tau.

    The band is pointwise, from the bootstrap of `bootstrap`, with the same draws for every tau.
    """
    fractions = [partial(_fraction_above, tau) for tau in taus]
    found = _estimates(fractions, [suite(table, metric)], generator, resamples)
    rows = [(float(tau), one.value, one.low, one.high) for tau, one in zip(taus, found, strict=True)]
    return pd.DataFrame(rows, columns=["tau", "fraction", "low", "high"], dtype="float64")


def probability_of_improvement(
    table_a: pd.DataFrame, table_b: pd.DataFrame, metric: str, *, generator: np.random.Generator, resamples: int
) -> Interval:
    """Return the chance that a run of a scores above a run of b on the same environment, averaged over environments.

    A tie counts half. Both tables' seeds are drawn, independently of each other. Missing interval: as in `bootstrap`.
    Raise ValueError also if the two tables have different environments.
    """
    a = suite(table_a, metric)
    b = suite(table_b, metric)
    if a.environments != b.environments:
        odd = sorted(set(a.environments) ^ set(b.environments))
        raise ValueError(f"the tables differ in their environments: {', '.join(odd)} in one of them only")
    return _estimates([_superiority], [a, b], generator, resamples)[0]


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


def _estimates(
    statistics: Sequence[Callable[..., Floats]], suites: Sequence[Suite], generator: np.random.Generator, resamples: int
) -> list[Interval]:
    """Return each statistic of the suites with its percentile interval, all from the same draws.

    An interval is missing if an environment of a suite has a single seed.
    """
    given = [one.given for one in suites]
    drawn = [one.drawn(generator, resamples) for one in suites] if all(one.seeds.min() > 1 for one in suites) else []
    found = []
    for statistic in statistics:
        value, low, high = float(statistic(*given)[0]), math.nan, math.nan
        if drawn:
            low, high = map(float, np.quantile(statistic(*drawn), [(1 - LEVEL) / 2, (1 + LEVEL) / 2]))
        found.append(Interval(value, low, high))
    return found
