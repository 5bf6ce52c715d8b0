"""Computes the mean score over tasks during training, and when it reaches another agent's (IMPALA, Figure 6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from ddrl.analysis.runs.run_data import LAST_PART, RunData, training_returns
from ddrl.analysis.statistics.bootstrap import Floats
from ddrl.analysis.statistics.claim_tests import first_reached
from ddrl.analysis.statistics.normalise import capped, human_normalised


def mean_over_tasks(each: Sequence[pd.DataFrame], grid: Floats, x: str, y: str) -> Floats:
    """Return the mean of `y` over the tasks' tables at the places `grid` of `x`, linearly interpolated: [G]."""
    ordered = [part.sort_values(x) for part in each]
    rows = [np.interp(grid, part[x].to_numpy(np.float64), part[y].to_numpy(np.float64)) for part in ordered]
    mean: Floats = np.mean(rows, axis=0)
    return mean


def score_times(parts: Sequence[RunData], bounds: pd.DataFrame, worse: str) -> list[dict[str, Any]]:
    """Return when the mean capped training score of each agent first reaches the final one of `worse` (mean of seeds).

    `parts`: the runs of each agent on its tasks (`ddrl.analysis.runs.by_task`). `bounds`: random and human score by
    environment. Rows: variant, seed, value (seconds; inf: never), watched.
    """
    agents: dict[tuple[str, int], list[RunData]] = {}
    for part in parts:
        agents.setdefault((part.variant, part.seed), []).append(part)
    curves = {agent: _scores(own, bounds) for agent, own in agents.items()}
    ends = [_end(curve) for (variant, _), curve in curves.items() if variant == worse and len(curve)]
    level = sum(ends) / len(ends) if ends else float("nan")
    return [
        {
            "variant": variant,
            "seed": seed,
            "value": first_reached(curve, level, "seconds") if ends else float("nan"),
            "watched": float(curve["seconds"].max()) if len(curve) else 0.0,
        }
        for (variant, seed), curve in curves.items()
    ]


def _scores(parts: Sequence[RunData], bounds: pd.DataFrame) -> pd.DataFrame:
    """Return env_frames, seconds, value: an agent's mean capped score from where every task has one, else no row."""
    each = []
    for part in parts:
        own = training_returns(part).assign(**bounds.loc[part.environment])
        own = own.assign(score=capped(human_normalised(own["value"], own["random"], own["human"])))
        each.append(own[own["score"].notna()])
    if any(own.empty for own in each):
        return pd.DataFrame(columns=["env_frames", "seconds", "value"], dtype=np.float64)
    moments = pd.concat(each)[["env_frames", "seconds"]].drop_duplicates("env_frames").sort_values("env_frames")
    first = max(float(own["env_frames"].min()) for own in each)
    curve: pd.DataFrame = moments[moments["env_frames"] >= first]
    frames = curve["env_frames"].to_numpy(np.float64)
    return curve.assign(value=mean_over_tasks(each, frames, "env_frames", "score"))


def _end(curve: pd.DataFrame) -> float:
    return float(curve["value"][curve["env_frames"] >= (1 - LAST_PART) * curve["env_frames"].max()].mean())
