"""Computes the metric of a claim in each run: one value per variant, environment and seed.

A value that depends on a common time is made for each comparison of the claim, from the runs of its variants alone: a
third variant that spends its frames quickly does not shorten what is seen of two others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ddrl.analysis.runs.efficiency import efficiency
from ddrl.analysis.runs.flags import flatten
from ddrl.analysis.runs.grids import mean_over_frames, share_of_final
from ddrl.analysis.runs.milestones import reached, restricted
from ddrl.analysis.runs.run_data import LAST_PART, RunData, training_returns, training_speed
from ddrl.analysis.runs.suite_scores import score_times
from ddrl.analysis.statistics.score_error import at_least
from ddrl.analysis.verdicts.cell_values import SCORE, score_errors, suite_errors, suite_values
from ddrl.analysis.verdicts.preconditions import taken
from ddrl.papers.claim_kinds import (
    EARLY,
    EFFICIENCY_METRICS,
    EQUAL_TIME,
    EVALUATED,
    MARGIN,
    RETURN_METRICS,
    SUITE_METRICS,
    TO_SCORE,
    UNIT_METRICS,
    divides,
)
from ddrl.papers.paper import Claim, Prices

SUITE = "suite"
"""Stands for the environment of a value over all tasks."""
REFERENCE_SCORE, RULES_OF_GAME, RUNS = "reference", "rules", "runs"
"""Where the scale of a task is from: its human or reference score, the best that its rules allow, the claim's runs."""


def observations(
    claim: Claim,
    used: pd.DataFrame,
    runs: Sequence[RunData],
    milestones: Mapping[str, float],
    prices: Prices | None = None,
) -> pd.DataFrame:
    """Return the claim's metric in each of the compared runs: variant, environment, seed and value.

    Also setting (stability) and censored (times): whether a run did not get there while all runs were watched.
    """
    metric = str(claim.metric)
    if metric in SUITE_METRICS:
        values = {
            name: at_least(suite_values(part, metric), suite_errors(part)) for name, part in used.groupby("variant")
        }
        parts = [
            pd.DataFrame({"variant": name, "environment": SUITE, "seed": range(len(found)), "value": found})
            for name, found in values.items()
        ]
        return pd.concat(parts, ignore_index=True)
    if claim.kind == "stability":
        settings = [{"setting": setting_of(run.config, claim.settings)} for run in runs]
        return _with_facts(used, runs, settings).assign(value=lambda table: table[metric].astype("float64"))
    if metric == TO_SCORE:
        bounds = used.drop_duplicates("environment").set_index("environment")[["random", "human"]]
        (worse,) = set(used["variant"]) - {claim.better}
        times = pd.DataFrame(score_times(taken(used, runs), bounds, worse)).assign(environment=SUITE)
        return restricted(times, "all" if claim.factor == 1 else "unreached")
    if claim.kind == "time_to_reach":
        wanted = returns_to_reach(claim, used, milestones)
        facts = [reached(run, wanted.get(run.environment, math.nan), metric) for run in runs]
        return restricted(_with_facts(used, runs, facts), "all" if claim.factor == 1 else "unreached")
    if metric == EQUAL_TIME:
        return _at_equal_time(used, taken(used, runs))
    if metric == EVALUATED:
        own = taken(used, runs)
        return _with_facts(used, own, [{"value": mean_over_frames(run, "evaluation_return")} for run in own])
    if metric == EARLY:
        own = taken(used, runs)
        return _with_facts(used, own, [{"value": share_of_final(run, claim.part or 0.0)} for run in own])
    if metric == "frames_per_second":
        return _with_facts(used, runs, [{"value": training_speed(run)} for run in runs])
    if metric in EFFICIENCY_METRICS:
        own = taken(used, runs)
        return _with_facts(used, own, [{"value": efficiency(run, prices)[metric]} for run in own])
    return _apart(used.assign(value=used[metric].astype("float64")), metric)


def _apart(observed: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return final scores drawn apart, where the seeds of a variant on a task agree more closely than they are known.

    Their mean stays (`ddrl.analysis.statistics.score_error`).
    """
    if metric not in ("final_return", SCORE):
        return observed
    errors = score_errors(observed, normalised=metric == SCORE)
    values = observed["value"].to_numpy(dtype=np.float64, copy=True)
    for rows in observed.groupby(["variant", "environment"]).indices.values():
        values[rows] = at_least(values[rows], errors[rows])
    return observed.assign(value=values)


def scales(
    claim: Claim, used: pd.DataFrame, observed: pd.DataFrame, best: Mapping[str, float] | None = None
) -> pd.DataFrame | None:
    """Return the scale of each task: `size` by environment, and where it is `taken_from`; None if the effect has none.

    Of returns on several tasks, what was known before the runs goes first: from random play to the human or reference
    score (`reference`), else to the best return that the rules allow (`rules`; `best` by environment). If a task has
    neither: from random play to the mean final return of the claim's best variant (`runs`). Missing if random play is
    unknown or not surpassed. Of what has another unit: the largest mean of a variant (`runs`). Returns on one task have
    its own unit. Ratios and times need no scale, nor does a distance from a number.
    """
    if divides(claim.kind, claim.metric) or claim.kind in ("at_least", "time_to_reach"):
        return None
    if claim.metric in UNIT_METRICS:
        means = observed.groupby(["environment", "variant"])["value"].mean()
        size = means.groupby(level=0).max()
        return pd.DataFrame({"size": size.where(size > 0), "taken_from": RUNS})
    if claim.metric not in RETURN_METRICS or used["environment"].nunique() < 2:
        return None
    bounds = _bounds(used)
    tasks = bounds.index.to_series()
    tops = {
        REFERENCE_SCORE: bounds["human"],
        RULES_OF_GAME: tasks.map(best or {}).astype("float64"),
        RUNS: used.groupby(["environment", "variant"])["final_return"].mean().groupby(level=0).max(),
    }
    top, source = pd.Series(math.nan, index=bounds.index), pd.Series(RUNS, index=bounds.index)
    for name, values in tops.items():
        source = source.mask(top.isna() & values.notna(), name)
        top = top.fillna(values)
    size = top - bounds["random"]
    return pd.DataFrame({"size": size.where(size > 0), "taken_from": source})


def above_random(claim: Claim, used: pd.DataFrame, observed: pd.DataFrame) -> pd.DataFrame:
    """Return `observed` with returns that a ratio is made of as what lies above random play (missing: not known)."""
    if claim.metric not in RETURN_METRICS or not (claim.kind == "ratio" or divides(claim.kind, claim.metric)):
        return observed
    random = used.groupby("environment")["random"].first()
    return observed.assign(value=observed["value"] - observed["environment"].map(random))


def on_scale(observed: pd.DataFrame, task_scales: pd.DataFrame | None) -> pd.DataFrame:
    """Return `observed` with values of several tasks in parts of each task's scale; those of one task as they are."""
    if task_scales is None or len(task_scales) < 2:
        return observed
    return observed.assign(value=observed["value"] / observed["environment"].map(task_scales["size"]))


def what_counts(claim: Claim, task_scales: pd.DataFrame | None) -> float:
    """Return the smallest effect that counts, on the tested scale.

    Of returns on one task it is the number in paper.yaml. Of returns on several tasks, and of what has a unit, that
    number is a share of a task's scale. Of ratios it is a logarithm.
    """
    if claim.kind in ("diminishing", "interaction", "time_to_reach"):
        return -math.log1p(-claim.smallest_effect)
    if task_scales is not None and len(task_scales) == 1 and task_scales["size"].notna().all():
        return claim.smallest_effect * float(task_scales["size"].iloc[0])
    return claim.smallest_effect


def effect_of_interest(claim: Claim, task_scales: pd.DataFrame | None) -> float:
    """Return the effect that seeds are counted for: the smallest that counts, or the margin, on the tested scale.

    A claim of a printed number has that number's distance from the threshold, which lies `MARGIN` below it. 0: unknown,
    since the number is no multiple of anything.
    """
    if claim.kind in ("no_worse", "alike"):
        return -math.log1p(-(claim.margin or 0.0))
    if claim.kind == "stability" and claim.margin:
        return claim.margin
    if claim.kind == "at_least":
        return max(0.0, (claim.threshold or 0.0) * MARGIN / (1 - MARGIN))
    if claim.kind == "ratio" and claim.metric in RETURN_METRICS:
        return 0.0
    return what_counts(claim, task_scales) or -math.log1p(-MARGIN)


def _bounds(used: pd.DataFrame) -> pd.DataFrame:
    """Return random and human score by environment; missing if they are not known."""
    return used.groupby("environment")[["random", "human"]].first().astype("float64")


def _with_facts(used: pd.DataFrame, runs: Sequence[RunData], facts: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return `used` with the columns of `facts`, one per run."""
    keys = ["run", "environment", "seed"]
    rows = [
        {"run": run.variant, "environment": run.environment, "seed": run.seed, **fact}
        for run, fact in zip(runs, facts, strict=True)
    ]
    return used.merge(pd.DataFrame(rows, columns=[*keys, *facts[0]]), on=keys, how="left", validate="1:1")


def returns_to_reach(claim: Claim, used: pd.DataFrame, milestones: Mapping[str, float]) -> dict[str, float]:
    """Return the return to reach by task: the claim's, else the milestone, else `reference_part` of the way."""
    wanted = {}
    for task, bounds in _bounds(used).iterrows():
        way = math.nan if claim.reference_part is None else claim.reference_part
        between = float(bounds["random"] + way * (bounds["human"] - bounds["random"]))
        wanted[str(task)] = milestones.get(str(task), between) if claim.threshold is None else claim.threshold
    return wanted


def setting_of(config: Mapping[str, Any], keys: Sequence[str]) -> str:
    """Return a run's setting: `optimizer.learning_rate=0.0006, entropy_cost=0.01`."""
    flat = flatten(config)
    return ", ".join(f"{key.removeprefix('hyperparameters.')}={flat.get(key)}" for key in keys)


def _at_equal_time(used: pd.DataFrame, runs: Sequence[RunData]) -> pd.DataFrame:
    """Return each run's training return when the fastest of these ends on its environment, in seconds of training."""
    curves = [training_returns(run) for run in runs]
    ends = [float(curve["seconds"].max()) if len(curve) else math.nan for curve in curves]
    names = [run.environment for run in runs]
    horizons = pd.Series(ends, index=names, dtype="float64").groupby(level=0).min()
    values = [_return_at(curve, float(horizons[name])) for curve, name in zip(curves, names, strict=True)]
    return _with_facts(used, runs, [{"value": value} for value in values])


def _return_at(records: pd.DataFrame, seconds: float) -> float:
    """Return the mean training return over the last part of the time until `seconds`, interpolated."""
    if records.empty:
        return math.nan
    moments = np.linspace((1 - LAST_PART) * seconds, seconds, 101)
    return float(np.interp(moments, records["seconds"], records["value"]).mean())
