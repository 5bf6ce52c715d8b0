"""When one agent for several tasks reaches the score that another one ends with (Espeholt et al. 2018, Figure 6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from ddrl.analysis.claim_tests import first_reached
from ddrl.analysis.curves import RunData, training_returns
from ddrl.analysis.normalise import capped, human_normalised

LAST_PART = 0.1
"""The score that a run ends with is its mean over this last part of its frames: single records are noisy."""


def score_times(parts: Sequence[RunData], bounds: pd.DataFrame, worse: str) -> list[dict[str, Any]]:
    """Seconds until the mean capped training score of each agent first reaches what `worse` ends with (mean of seeds).

    `parts`: the runs of each agent on its tasks (`ddrl.analysis.by_task`). `bounds`: random and human by environment.
    Rows: variant, seed, value (inf: never), watched.
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
    """env_frames, seconds, value: the mean over tasks of an agent's newest scores, from where every task has one."""
    columns = []
    for part in parts:
        own = training_returns(part).assign(**bounds.loc[part.environment])
        normalised = human_normalised(own["value"], own["random"], own["human"])
        values = capped(normalised).to_numpy()
        columns.append(pd.Series(values, index=own.set_index(["env_frames", "seconds"]).index, name=part.environment))
    whole = pd.concat([column.groupby(level=[0, 1]).mean() for column in columns], axis=1).sort_index().ffill().dropna()
    return whole.mean(axis=1).rename("value").reset_index()


def _end(curve: pd.DataFrame) -> float:
    return float(curve["value"][curve["env_frames"] >= (1 - LAST_PART) * curve["env_frames"].max()].mean())
