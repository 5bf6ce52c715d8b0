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
from ddrl.analysis.runs.milestones import reached, restricted
from ddrl.analysis.runs.run_data import LAST_PART, RunData, training_returns, training_speed
from ddrl.analysis.runs.suite_scores import score_times
from ddrl.analysis.verdicts.cell_values import suite_values
from ddrl.analysis.verdicts.preconditions import taken
from ddrl.papers.claim_kinds import EFFICIENCY_METRICS, EQUAL_TIME, RETURN_METRICS, SUITE_METRICS, TO_SCORE
from ddrl.papers.paper import Claim, Prices

SUITE = "suite"
"""Stands for the environment of a value over all tasks."""
_SCALE_FREE_KINDS = ("no_worse", "diminishing", "at_least", "time_to_reach")
"""Kinds whose effects do not depend on a task's scale, or are a distance from a printed number."""


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
        values = {name: suite_values(part, metric) for name, part in used.groupby("variant")}
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
    if metric == "frames_per_second":
        return _with_facts(used, runs, [{"value": training_speed(run)} for run in runs])
    if metric in EFFICIENCY_METRICS:
        own = taken(used, runs)
        return _with_facts(used, own, [{"value": efficiency(run, prices)[metric]} for run in own])
    return used.assign(value=used[metric].astype("float64"))


def scales(claim: Claim, used: pd.DataFrame) -> pd.DataFrame | None:
    """Return the divisor of each task's returns: `size` by environment, and if it is `stated`; None if not needed.

    Stated: from random play to the human or reference score. If a task has none: from random play to the mean final
    return of the claim's best variant. Missing if random play is unknown or not surpassed.
    """
    scale_free = claim.kind in _SCALE_FREE_KINDS or claim.statistic == "near_best"
    if claim.metric not in RETURN_METRICS or scale_free or used["environment"].nunique() < 2:
        return None
    best = used.groupby(["environment", "variant"])["final_return"].mean().groupby(level=0).max()
    bounds = _bounds(used)
    span = bounds["human"] - bounds["random"]
    size = span.fillna(best - bounds["random"])
    return pd.DataFrame({"size": size.where(size > 0), "stated": span.notna()})


def on_scale(claim: Claim, used: pd.DataFrame, observed: pd.DataFrame) -> pd.DataFrame:
    """Return `observed` with returns divided by their task's scale (`scales`); those of a ratio above random play."""
    if claim.kind == "ratio" and claim.metric in RETURN_METRICS:
        random = used.groupby("environment")["random"].first()
        observed = observed.assign(value=observed["value"] - observed["environment"].map(random))
    parts = scales(claim, used)
    if parts is None:
        return observed
    return observed.assign(value=observed["value"] / observed["environment"].map(parts["size"]))


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
