"""What stands beside a published number: one value per seed of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ddrl.analysis.runs.efficiency import efficiency
from ddrl.analysis.runs.milestones import reached, restricted
from ddrl.analysis.runs.run_data import RunData, training_returns
from ddrl.analysis.statistics import bootstrap
from ddrl.analysis.statistics.significance import Sample
from ddrl.analysis.verdicts.preconditions import unfair_times
from ddrl.papers.claim_kinds import SUITE_METRICS, TO_MILESTONE
from ddrl.papers.paper import CellRule, Prices

_KEYS = ("variant", "environment", "seed")
SCORE = "human_normalised_score"
_AGGREGATES: Mapping[str, Callable[[pd.DataFrame, str], float]] = {
    "mean_human_normalised_score": bootstrap.mean,
    "median_human_normalised_score": bootstrap.median,
    "mean_capped_human_normalised_score": bootstrap.capped_mean,
    "iqm_human_normalised_score": bootstrap.iqm,
}


def own_values(
    rule: CellRule,
    row: Mapping[Any, Any],
    runs: Sequence[RunData],
    scores: pd.DataFrame,
    prices: Prices | None = None,
    milestones: Mapping[str, float] | None = None,
) -> Sample:
    """One value per seed [n]: a return, or (in percent) an aggregate over the tasks, of seeds that have every task.

    Where the rule holds one variant against another, what it takes compared with the other on the same tasks.
    """
    if rule.than:
        return _against(rule, runs, prices, milestones or {})
    if rule.metric == "return_at_frames":
        points = [_return_at(run, int(row["budget_frames"])) for run in sorted(runs, key=lambda run: run.seed)]
        return np.array(points, dtype=np.float64)
    first = runs[0]
    chosen = scores[
        (scores["origin"] == first.origin)
        & (scores["experiment"] == first.experiment)
        & (scores["variant"] == first.variant)
        & scores["environment"].isin({run.environment for run in runs})
    ]
    if rule.metric not in SUITE_METRICS:
        return chosen.sort_values("seed")[rule.metric].to_numpy(dtype=np.float64)
    return suite_values(chosen, str(rule.metric))


def obstacle(rule: CellRule, runs: Sequence[RunData], milestones: Mapping[str, float]) -> str:
    """Why a comparison of two variants gets no verdict, though its numbers are shown; empty where it gets one.

    Beside what a claim on times is refused for: a time that was cut, since the paper's were not.
    """
    reason = unfair_times(str(rule.metric), runs) if rule.than else ""
    if reason or rule.metric != TO_MILESTONE:
        return reason
    times = _times(runs, milestones)
    cut = int(times["censored"].sum())
    return f"{cut} of {len(times)} runs did not reach the milestone while it could be compared" if cut else ""


def _times(runs: Sequence[RunData], milestones: Mapping[str, float]) -> pd.DataFrame:
    """variant, environment, seed, value and censored: seconds until the milestone, of tasks that have one.

    Cut as times of a claim with a factor are (`ddrl.analysis.runs.milestones`).
    """
    rows = [
        {"variant": run.variant, "environment": run.environment, "seed": run.seed}
        | reached(run, milestones[run.environment], "seconds")
        for run in runs
        if run.environment in milestones
    ]
    table = pd.DataFrame(rows, columns=[*_KEYS, "value", "watched"])
    return restricted(table.astype({"value": "float64", "watched": "float64"}), "unreached")


def _against(rule: CellRule, runs: Sequence[RunData], prices: Prices | None, milestones: Mapping[str, float]) -> Sample:
    """The ratio of `rule.variant` to `rule.than` (`paired_ratios`).

    As a reduction: the percentage by which it is less. Of times the ratio is the other way round: how many times as
    early; tasks on which no run gets there say nothing.
    """
    if rule.metric == TO_MILESTONE:
        times = _times(runs, milestones)
        silent = times.groupby("environment")["censored"].transform("all").astype(bool)
        found = times.assign(value=1 / times["value"])[~silent]
    else:
        rows = [
            {"variant": run.variant, "environment": run.environment, "seed": run.seed, "value": value}
            for run in runs
            for value in [efficiency(run, prices)[str(rule.metric)]]
        ]
        found = pd.DataFrame(rows)
    ratios = paired_ratios(found, str(rule.variant), str(rule.than))
    if rule.compared_as != "reduction":
        return ratios
    return 100 * (1 - (1 / ratios if rule.metric == TO_MILESTONE else ratios))


def paired_ratios(table: pd.DataFrame, variant: str, than: str) -> Sample:
    """One ratio per seed [n] that both variants have on every task, the geometric mean over tasks.

    Columns variant, environment, seed and value, of any variants. A task that only one of the two has is left out.
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
    if not logarithms:
        return np.array([], dtype=np.float64)
    ratios: Sample = np.exp(np.mean(logarithms, axis=0))
    return ratios


def suite_values(scores: pd.DataFrame, metric: str) -> Sample:
    """An aggregate over tasks in percent, one value per seed [n] that has a human-normalised score on every task."""
    known = scores[scores[SCORE].notna()]
    tasks = scores["environment"].nunique()
    found = [suite_value(part, metric) for _, part in known.groupby("seed", sort=True) if len(part) == tasks]
    return np.array(found, dtype=np.float64)


def suite_value(scores: pd.DataFrame, metric: str) -> float:
    """An aggregate over tasks in percent, of one seed: columns environment, seed, human_normalised_score."""
    return 100.0 * _AGGREGATES[metric](scores, SCORE)


def _return_at(run: RunData, frames: int) -> float:
    """The training return at `frames`, records joined by straight lines; the last one beyond them."""
    records = training_returns(run)
    return float(np.interp(frames, records["env_frames"], records["value"]))
