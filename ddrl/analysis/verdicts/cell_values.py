"""Computes our values for a published number: one value per seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ddrl.analysis.runs.efficiency import efficiency
from ddrl.analysis.runs.milestones import reached, restricted
from ddrl.analysis.runs.run_data import RunData, training_returns
from ddrl.analysis.statistics.bootstrap import value_of
from ddrl.analysis.statistics.score_error import at_least
from ddrl.analysis.statistics.significance import Sample
from ddrl.analysis.verdicts.preconditions import unfair_times
from ddrl.papers.claim_kinds import SUITE_METRICS, TO_MILESTONE
from ddrl.papers.paper import CellRule, Prices

SCORE = "human_normalised_score"
_STATISTICS = {
    "mean_human_normalised_score": "mean",
    "median_human_normalised_score": "median",
    "mean_capped_human_normalised_score": "capped_mean",
    "iqm_human_normalised_score": "iqm",
}


def own_values(
    rule: CellRule,
    row: Mapping[Any, Any],
    runs: Sequence[RunData],
    scores: pd.DataFrame,
    prices: Prices | None = None,
    milestones: Mapping[str, float] | None = None,
) -> Sample:
    """Return one value per seed [n]: a return, or (in percent) an aggregate over tasks, of seeds with every task.

    If the rule compares two variants: the ratio or reduction of `_against`. Final scores deviate at least as much as
    their standard errors demand (`score_error`): their mean is that of the seeds, their spread may be wider.
    """
    if rule.than:
        return _against(rule, runs, prices, milestones or {})
    if rule.metric == "return_at_frames":
        points = [_return_at(run, int(row["budget_frames"])) for run in sorted(runs, key=lambda run: run.seed)]
        return np.array([point for point in points if math.isfinite(point)], dtype=np.float64)
    chosen = scores[scores["environment"].isin({run.environment for run in runs})]
    for name in ("origin", "experiment", "variant"):
        chosen = chosen[chosen[name] == getattr(runs[0], name)]
    if rule.metric in SUITE_METRICS:
        return at_least(suite_values(chosen, str(rule.metric)), suite_errors(chosen))
    ordered = chosen.sort_values("seed")
    values = ordered[rule.metric].to_numpy(dtype=np.float64)
    return at_least(values, score_errors(ordered, normalised=False)) if rule.metric == "final_return" else values


def obstacle(rule: CellRule, runs: Sequence[RunData], milestones: Mapping[str, float]) -> str:
    """Return why a comparison of two variants gets no verdict: as for claims on times, or a time was cut."""
    reason = unfair_times(str(rule.metric), runs) if rule.than else ""
    if reason or rule.metric != TO_MILESTONE:
        return reason
    times = _times(runs, milestones)
    cut = int(times["censored"].sum())
    return f"{cut} of {len(times)} runs did not reach the milestone while it could be compared" if cut else ""


def _times(runs: Sequence[RunData], milestones: Mapping[str, float]) -> pd.DataFrame:
    """Return variant, environment, seed, value and censored: seconds until the milestone, of tasks with one."""
    rows = [
        _named(run) | reached(run, milestones[run.environment], "seconds")
        for run in runs
        if run.environment in milestones
    ]
    table = pd.DataFrame(rows, columns=["variant", "environment", "seed", "value", "watched"])
    return restricted(table.astype({"value": "float64", "watched": "float64"}), "unreached")


def _named(run: RunData) -> dict[str, Any]:
    return {"variant": run.variant, "environment": run.environment, "seed": run.seed}


def _against(rule: CellRule, runs: Sequence[RunData], prices: Prices | None, milestones: Mapping[str, float]) -> Sample:
    """Return the ratio of `rule.variant` to `rule.than` (`paired_ratios`), or as a reduction the percentage saved.

    The ratio of times is inverted (how many times as early); tasks on which no run reaches the milestone do not count.
    """
    if rule.metric == TO_MILESTONE:
        times = _times(runs, milestones)
        silent = times.groupby("environment")["censored"].transform("all").astype(bool)
        found = times.assign(value=1 / times["value"])[~silent]
    else:
        found = pd.DataFrame([_named(run) | {"value": efficiency(run, prices)[str(rule.metric)]} for run in runs])
    ratios = paired_ratios(found, str(rule.variant), str(rule.than))
    if rule.compared_as != "reduction":
        return ratios
    return 100 * (1 - (1 / ratios if rule.metric == TO_MILESTONE else ratios))


def paired_ratios(table: pd.DataFrame, variant: str, than: str) -> Sample:
    """Return one ratio per seed [n] that both variants have on every task, the geometric mean over tasks.

    `table` has columns variant, environment, seed and value. A task that only one of the two has is left out.
    """
    chosen = table[table["variant"].isin([variant, than])]
    if chosen.empty:
        return np.array([], dtype=np.float64)
    wide = chosen.pivot(index="seed", columns=["environment", "variant"], values="value").dropna()
    logarithms = [
        np.log(wide[task][variant] / wide[task][than])
        for task in dict.fromkeys(wide.columns.get_level_values("environment"))
        if {variant, than} <= set(wide[task].columns)
    ]
    return np.exp(np.mean(logarithms, axis=0)) if logarithms else np.array([], dtype=np.float64)


def suite_values(scores: pd.DataFrame, metric: str) -> Sample:
    """Return an aggregate over tasks in percent, one value per seed [n] with a human-normalised score on every task."""
    known = scores[scores[SCORE].notna()]
    tasks = scores["environment"].nunique()
    whole = [part for _, part in known.groupby("seed", sort=True) if len(part) == tasks]
    return np.array([100.0 * value_of(part, SCORE, _STATISTICS[metric]) for part in whole], dtype=np.float64)


def suite_errors(scores: pd.DataFrame) -> Sample:
    """Return the standard error of `suite_values` in percent, one per seed [n], as if they were means over tasks.

    An interquartile mean is of half the tasks, so that its error is larger: this is a lower bound.
    """
    tasks = scores["environment"].nunique()
    errors = score_errors(scores, normalised=True)
    known = scores.assign(square=np.nan_to_num(errors) ** 2)[scores[SCORE].notna()]
    whole = [part for _, part in known.groupby("seed", sort=True) if len(part) == tasks]
    return np.array([100.0 * math.sqrt(part["square"].sum()) / tasks for part in whole], dtype=np.float64)


def score_errors(scores: pd.DataFrame, *, normalised: bool) -> Sample:
    """Return the standard error of each final return, or of its human-normalised score; missing if it is not known."""
    if "score_error" not in scores:
        return np.full(len(scores), math.nan)
    errors = scores["score_error"].to_numpy(dtype=np.float64)
    return errors / (scores["human"] - scores["random"]).abs().to_numpy(dtype=np.float64) if normalised else errors


def _return_at(run: RunData, frames: int) -> float:
    """Return the training return at `frames`, interpolated; beyond the last record its value; NaN before the first."""
    records = training_returns(run)
    if records.empty or frames < int(records["env_frames"].iloc[0]):
        return math.nan
    return float(np.interp(frames, records["env_frames"], records["value"]))
