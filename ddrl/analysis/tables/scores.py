"""Makes the tables of scores and their aggregates, with intervals. Seeds are the unit of replication."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from itertools import combinations

import numpy as np
import pandas as pd

from ddrl.analysis.runs.grids import mean_over_frames
from ddrl.analysis.runs.run_data import KEYS, RunData, final_episodes, version_spread
from ddrl.analysis.statistics.bootstrap import (
    STATISTICS,
    Estimate,
    bootstrap,
    performance_profile,
    probability_of_improvement,
)
from ddrl.analysis.statistics.normalise import with_references
from ddrl.analysis.statistics.significance import EQUAL_BUDGET
from ddrl.papers.experiments import Experiment, system_of

SCORE = "human_normalised_score"
GROUP = ["origin", "paper", "experiment", "variant"]
SCORES = [
    *KEYS,
    "env_frames",
    "final_return",
    "mean_return",
    "episodes",
    "versions",
    "between_versions",
    "score_error",
    "statistic",
]
AGGREGATES = [
    *GROUP,
    "metric",
    "statistic",
    "value",
    "ci95_low",
    "ci95_high",
    "spread",
    "seeds",
    "environments",
    "versions",
]
PROFILES = [*GROUP, "tau", "fraction", "ci95_low", "ci95_high", "spread"]
IMPROVEMENT = [*GROUP[:-1], "better", "worse", "value", "ci95_low", "ci95_high", "spread", "environments", "seeds"]
TAUS = tuple(step / 10 for step in range(81))
"""The human-normalised scores at which Agarwal et al. (2021) draw the profiles of Atari after 200 million frames."""


def scores(runs: Iterable[RunData], references: pd.DataFrame) -> pd.DataFrame:
    """Return one row per run, or task of a run on a suite: `SCORES`, random, human, made_by, human_normalised_score.

    final_return: mean of the evaluation episodes at the largest env_frames, never the best checkpoint. versions,
    between_versions, score_error: `Spread` of run_data. mean_return: training return averaged over env_frames.
    """
    rows = []
    for run in runs:
        final = final_episodes(run)
        if final.empty:  # a suite's task that was not evaluated, or failed
            continue
        last = int(run.curves["env_frames"][final.index[0]])
        spread = version_spread(run)
        over = f" over {spread.versions} versions of the parameters" if spread.versions > 1 else ""
        rows.append(
            run.keys()
            | {
                "env_frames": last,
                "final_return": float(final.mean()),
                "mean_return": mean_over_frames(run, "episode_return"),
                "episodes": len(final),
                "versions": spread.versions,
                "between_versions": spread.deviation,
                "score_error": spread.error,
                "statistic": f"mean of {len(final)} final evaluation episodes{over}",
            }
        )
    table = pd.DataFrame(rows, columns=SCORES)
    counts = dict.fromkeys(("env_frames", "episodes", "versions"), "int64")
    return with_references(table.astype(counts), references, "final_return")


def with_scores(runs: Iterable[RunData], experiments: Mapping[str, Experiment]) -> list[RunData]:
    """Return the runs whose final returns are scores: not those made for a speed, a traffic or a lag alone."""
    return [run for run in runs if experiments[run.experiment].has_scores(run.suite or run.environment)]


def aggregates(table: pd.DataFrame, *, seed: int, resamples: int) -> pd.DataFrame:
    """Return human-normalised scores over environments: one row per origin, experiment, variant and `STATISTICS`.

    Columns `AGGREGATES`; spread: what ci95_low and ci95_high are (`Estimate`); seeds: fewest of an environment;
    versions: fewest of a score. Environments without a random and human score are left out. Intervals are no narrower
    than the scores' own errors.
    """
    rows = []
    known = table[table[SCORE].notna()]
    known = known.assign(error=known["score_error"] / (known["human"] - known["random"]).abs())
    for names, part in known.groupby(GROUP, sort=True):
        for statistic in STATISTICS:
            generator = _generator(seed, *names, statistic)
            found = bootstrap(part, SCORE, statistic, generator=generator, resamples=resamples, errors="error")
            head = dict(zip(GROUP, names, strict=True)) | {"metric": SCORE, "statistic": statistic}
            rows.append(head | _interval(found) | _counts(part) | {"versions": int(part["versions"].min())})
    return _typed(pd.DataFrame(rows, columns=AGGREGATES))


def profiles(table: pd.DataFrame) -> pd.DataFrame:
    """Return performance profiles of human-normalised scores: the fraction of runs above tau, every environment alike.

    Columns `PROFILES`, one row per origin, experiment, variant and tau; the band is pointwise.
    """
    parts = [pd.DataFrame(columns=PROFILES)]
    known = table[table[SCORE].notna()]
    for names, part in known.groupby(GROUP, sort=True):
        found = performance_profile(part, SCORE, TAUS).rename(columns={"low": "ci95_low", "high": "ci95_high"})
        parts.append(found.assign(**dict(zip(GROUP, map(str, names), strict=True)))[PROFILES])
    return _typed(pd.concat(parts if len(parts) == 1 else parts[1:], ignore_index=True))


def improvement(table: pd.DataFrame) -> pd.DataFrame:
    """Return the probability of improvement between each two variants of an experiment, by final return.

    Columns `IMPROVEMENT`. `better` scores above the other more often than not. Only environments on which both have
    run, with the same number of frames. Settings of a sweep are left out: their pairs would be thousands of rows.
    """
    rows = []
    for names, part in table.groupby(GROUP[:-1], sort=True):
        variants = sorted(name for name in set(part["variant"]) if system_of(name) == name)
        for first, second in combinations(variants, 2):
            a, b = _on_common_ground(part[part["variant"] == first], part[part["variant"] == second])
            if a.empty:
                continue
            found = probability_of_improvement(a, b, "final_return")
            better, worse = first, second
            if found.value < 0.5:
                found = Estimate(1 - found.value, 1 - found.high, 1 - found.low, found.spread)
                better, worse = second, first
            extent = _counts(a) | {"seeds": min(_counts(a)["seeds"], _counts(b)["seeds"])}
            head = dict(zip(GROUP[:-1], names, strict=True)) | {"better": better, "worse": worse}
            rows.append(head | _interval(found) | extent)
    return _typed(pd.DataFrame(rows, columns=IMPROVEMENT))


def _on_common_ground(a: pd.DataFrame, b: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rows on environments of both tables, if budgets are equal to `EQUAL_BUDGET`."""
    shared = set(a["environment"]) & set(b["environment"])
    both = pd.concat([a, b])
    budgets = both[both["environment"].isin(shared)].groupby("environment")["env_frames"].agg(["min", "max"])
    equal = budgets.index[budgets["max"] <= (1 + EQUAL_BUDGET) * budgets["min"]]
    return a[a["environment"].isin(equal)], b[b["environment"].isin(equal)]


def _typed(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with the same types whether it has rows or not."""
    types = dict.fromkeys(("value", "ci95_low", "ci95_high", "tau", "fraction"), "float64")
    types |= dict.fromkeys(("seeds", "environments", "versions"), "int64") | {"spread": "string"}
    return table.astype({name: kind for name, kind in types.items() if name in table.columns})


def _interval(found: Estimate) -> dict[str, float | str]:
    return {"value": found.value, "ci95_low": found.low, "ci95_high": found.high, "spread": found.spread}


def _counts(part: pd.DataFrame) -> dict[str, int]:
    seeds = part.groupby("environment")["seed"].nunique()
    return {"environments": len(seeds), "seeds": int(seeds.min())}


def _generator(seed: int, *names: Hashable) -> np.random.Generator:
    """Return a generator whose draws depend on what is drawn for, not on what else the table holds."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *"/".join(map(str, names)).encode()])))
