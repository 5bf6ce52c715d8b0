"""Times until a return is first reached, cut so that runs which never get there can be compared with those that do."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import pandas as pd

from ddrl.analysis.claim_tests import first_reached
from ddrl.analysis.curves import RunData, training_returns


def reached(run: RunData, threshold: float, clock: str) -> dict[str, float]:
    """When a run first reaches a return, by `clock` env_frames or seconds, and how long it was watched.

    value: inf where it never does, missing where there is no return to reach.
    """
    returns = training_returns(run)
    value = first_reached(returns, threshold, clock)
    # The manifest's seconds include the evaluation after the training.
    watched = returns[clock].max() if clock == "seconds" and len(returns) else run.manifest[clock]
    return {"value": value if math.isfinite(threshold) else math.nan, "watched": float(watched)}


def restricted(table: pd.DataFrame, until: Literal["all", "unreached"]) -> pd.DataFrame:
    """`table` with each value cut at its environment's horizon, and a column censored: whether it was.

    The horizon is the shortest time that runs were watched for: all of them, or only those that never got there. The
    latter leaves every time whole where all runs get there.
    """
    missing = np.isinf(table["value"]) | table["value"].isna()
    watched = table["watched"] if until == "all" else table["watched"].where(missing, math.inf)
    horizons = watched.groupby(table["environment"]).transform("min")
    # A missing value stays missing.
    return table.assign(value=np.minimum(table["value"], horizons), censored=table["value"] > horizons)
