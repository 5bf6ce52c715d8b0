"""Scores of runs and their aggregates, with intervals. Seeds are the unit of replication.

Intervals of few seeds are Student's t (bootstrap intervals of three seeds are far too narrow); aggregates over many
games use a bootstrap stratified by game (Agarwal et al. 2021), with an explicit generator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from ddrl.analysis.curves import KEYS, RunData
from ddrl.analysis.normalise import with_references

Sample = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Interval:
    """An estimate with its interval; `low` and `high` are NaN where there is none (one seed)."""

    value: float
    low: float
    high: float


def scores(runs: Iterable[RunData], references: pd.DataFrame) -> pd.DataFrame:
    """One row per run: `KEYS`, env_frames, final_return, mean_return, episodes, statistic, random, human, and
    human_normalised_score (of final_return).

    final_return: mean of the evaluation episodes at the largest env_frames, never the best checkpoint. mean_return:
    training return averaged over env_frames (the area under the learning curve).
    """
    columns = [*KEYS, "env_frames", "final_return", "mean_return", "episodes", "statistic"]
    rows = []
    for run in runs:
        evaluation = run.curves[run.curves["metric"] == "evaluation_return"]
        last = int(evaluation["env_frames"].max())
        final = evaluation["value"][evaluation["env_frames"] == last]
        rows.append(
            run.keys()
            | {
                "env_frames": last,
                "final_return": float(final.mean()),
                "mean_return": _mean_over_frames(run.curves),
                "episodes": len(final),
                "statistic": f"mean of {len(final)} final evaluation episodes",
            }
        )
    table = pd.DataFrame(rows, columns=columns)
    return with_references(table.astype({"env_frames": "int64", "episodes": "int64"}), references, "final_return")


def _mean_over_frames(curves: pd.DataFrame) -> float:
    records = curves[curves["metric"] == "episode_return"].sort_values("env_frames")
    frames, values = records["env_frames"].to_numpy(dtype=np.float64), records["value"].to_numpy(dtype=np.float64)
    if len(values) < 2 or frames[-1] == frames[0]:
        return float(values.mean()) if len(values) else math.nan
    return float(np.trapezoid(values, frames) / (frames[-1] - frames[0]))


def t_interval(values: Sample, level: float) -> Interval:
    """Mean of independent seeds [n] with Student's interval."""
    mean = float(values.mean())
    if len(values) < 2:
        return Interval(mean, math.nan, math.nan)
    half = float(stats.t.ppf((1 + level) / 2, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values)))
    return Interval(mean, mean - half, mean + half)


def prediction_interval(values: Sample, level: float, others: int) -> tuple[float, float]:
    """Where the mean of `others` further seeds would fall: mean +- t s sqrt(1/n + 1/m)."""
    mean, n = float(values.mean()), len(values)
    half = float(stats.t.ppf((1 + level) / 2, n - 1) * values.std(ddof=1) * math.sqrt(1 / n + 1 / others))
    return mean - half, mean + half


def iqm(values: Sample) -> float:
    """Interquartile mean: the mean of the middle half, the outer values counted in part (Agarwal et al. 2021)."""
    ordered, n = np.sort(values), len(values)
    edges = np.arange(n + 1, dtype=np.float64)
    weights = np.clip(np.minimum(edges[1:], 0.75 * n) - np.maximum(edges[:-1], 0.25 * n), 0.0, None)
    return float((weights * ordered).sum() / weights.sum())


def _mean_of_games(games: Sequence[Sample]) -> float:
    return float(np.mean([game.mean() for game in games]))


def _median_of_games(games: Sequence[Sample]) -> float:
    return float(np.median([game.mean() for game in games]))


def _iqm_of_runs(games: Sequence[Sample]) -> float:
    return iqm(np.concatenate(list(games)))


STATISTICS: dict[str, Callable[[Sequence[Sample]], float]] = {
    "mean": _mean_of_games,
    "median": _median_of_games,
    "iqm": _iqm_of_runs,
}
"""Statistics of scores grouped by game: mean and median of the games' means over seeds; IQM of all runs."""


def stratified_bootstrap(
    games: Sequence[Sample],
    statistic: Callable[[Sequence[Sample]], float],
    *,
    generator: np.random.Generator,
    resamples: int,
    level: float = 0.95,
) -> Interval:
    """`statistic` with its percentile interval; seeds are drawn with replacement within each game [n_g].

    The interval is missing where a game has a single seed.
    """
    value = statistic(games)
    if min(len(game) for game in games) < 2:
        return Interval(value, math.nan, math.nan)
    draws = [statistic([generator.choice(game, size=len(game)) for game in games]) for _ in range(resamples)]
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return Interval(value, float(low), float(high))


def aggregates(table: pd.DataFrame, *, seed: int, resamples: int) -> pd.DataFrame:
    """Human-normalised scores over games: one row per origin, experiment, variant and statistic.

    Columns origin, paper, experiment, variant, metric, statistic, value, ci95_low, ci95_high, seeds (fewest of a
    game), environments.
    """
    group = ["origin", "paper", "experiment", "variant"]
    metric = "human_normalised_score"
    rows = []
    known = table[table[metric].notna()]
    for index, (names, part) in enumerate(known.groupby(group, sort=True)):
        games = [game.to_numpy(dtype=np.float64) for _, game in part.groupby("environment", sort=True)[metric]]
        for position, (statistic, function) in enumerate(STATISTICS.items()):
            sequence = np.random.SeedSequence([seed, index, position])
            generator = np.random.Generator(np.random.PCG64(sequence))
            found = stratified_bootstrap(games, function, generator=generator, resamples=resamples)
            head = dict(zip(group, names, strict=True)) | {"metric": metric, "statistic": statistic}
            interval = {"value": found.value, "ci95_low": found.low, "ci95_high": found.high}
            rows.append(head | interval | {"seeds": min(map(len, games)), "environments": len(games)})
    columns = [*group, "metric", "statistic", "value", "ci95_low", "ci95_high", "seeds", "environments"]
    return pd.DataFrame(rows, columns=columns)
