"""Computes when a return is first reached, cut so that runs which never reach it can be compared with those that do.

A return is reached when the mean over the newest training episodes is: a single record may hold one episode, which
random play finishes well now and then.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import pandas as pd

from ddrl.analysis.runs.run_data import RunData, once_per_run, training_returns
from ddrl.analysis.statistics.claim_tests import first_reached

FEWEST_EPISODES = 20
"""Fewest episodes behind a mean return that counts as reached: if each is 0 or 1, its standard error is at most
0.11."""


@once_per_run
def recent_returns(run: RunData) -> pd.DataFrame:
    """Return `training_returns` with each value the mean over the newest records that hold `FEWEST_EPISODES` together.

    Earlier records are left out. Curves without a count of episodes are returned as they were recorded.
    """
    records = training_returns(run)
    counted = run.records("episodes").sort_values("env_frames")
    if counted.empty:
        return records
    until = counted.set_index("env_frames")["value"].reindex(records["env_frames"])
    # A record with a return has at least one episode, though the next record may be the one that counts it.
    episodes = until.diff().fillna(until).clip(lower=1).to_numpy(np.float64)
    values = records["value"].to_numpy(np.float64)
    means = np.full(len(values), math.nan)
    first, held = 0, 0.0
    for last in range(len(values)):
        held += episodes[last]
        while held - episodes[first] >= FEWEST_EPISODES:
            held -= episodes[first]
            first += 1
        if held >= FEWEST_EPISODES:
            window = slice(first, last + 1)
            means[last] = (values[window] * episodes[window]).sum() / episodes[window].sum()
    return records.assign(value=means).dropna(subset="value")


def reached(run: RunData, threshold: float, clock: str) -> dict[str, float]:
    """Return when a return is first reached (inf: never, missing: no return to reach), and how long was watched."""
    value = first_reached(recent_returns(run), threshold, clock)
    records = training_returns(run)
    # The manifest's seconds include the evaluation after the training.
    watched = records[clock].max() if clock == "seconds" and len(records) else run.manifest[clock]
    return {"value": value if math.isfinite(threshold) else math.nan, "watched": float(watched)}


def restricted(table: pd.DataFrame, until: Literal["all", "unreached"]) -> pd.DataFrame:
    """Return `table` with each value cut at its environment's horizon, and a column censored: whether it was.

    The horizon is the shortest time that runs were watched for: of all runs, or only of those that never got there.
    The latter leaves every time whole if all runs get there.
    """
    missing = np.isinf(table["value"]) | table["value"].isna()
    watched = table["watched"] if until == "all" else table["watched"].where(missing, math.inf)
    horizons = watched.groupby(table["environment"]).transform("min")
    # A missing value stays missing.
    return table.assign(value=np.minimum(table["value"], horizons), censored=table["value"] > horizons)
