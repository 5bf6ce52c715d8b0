"""What stands beside a published number: one value per seed of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ddrl.analysis import suite
from ddrl.analysis.claim_kinds import SUITE_METRICS
from ddrl.analysis.curves import RunData, training_returns
from ddrl.analysis.efficiency import efficiency
from ddrl.analysis.inference import Sample
from ddrl.analysis.paper import CellRule, Prices

SCORE = "human_normalised_score"
_AGGREGATES: Mapping[str, Callable[[pd.DataFrame, str], float]] = {
    "mean_human_normalised_score": suite.mean,
    "median_human_normalised_score": suite.median,
    "mean_capped_human_normalised_score": suite.capped_mean,
    "iqm_human_normalised_score": suite.iqm,
}


def own_values(
    rule: CellRule,
    row: Mapping[Any, Any],
    runs: Sequence[RunData],
    scores: pd.DataFrame,
    prices: Prices | None = None,
) -> Sample:
    """One value per seed [n]: a return, or (in percent) an aggregate over the tasks, of seeds that have every task.

    Where the rule holds one variant against another, what it takes compared with the other on the same tasks.
    """
    if rule.than:
        return _against(rule, runs, prices)
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


def _against(rule: CellRule, runs: Sequence[RunData], prices: Prices | None) -> Sample:
    """The ratio of `rule.variant` to `rule.than` (`paired_ratios`).

    As a reduction: the percentage by which it is less.
    """
    rows = [
        {"variant": run.variant, "environment": run.environment, "seed": run.seed, "value": value}
        for run in runs
        for value in [efficiency(run, prices)[str(rule.metric)]]
    ]
    ratios = paired_ratios(pd.DataFrame(rows), str(rule.variant), str(rule.than))
    return 100 * (1 - ratios) if rule.compared_as == "reduction" else ratios


def paired_ratios(table: pd.DataFrame, variant: str, than: str) -> Sample:
    """One ratio per seed [n] that both variants have on every task, the geometric mean over tasks.

    Columns variant, environment, seed and value, of any variants. A task that only one of the two has is left out.
    """
    chosen = table[table["variant"].isin([variant, than])]
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
