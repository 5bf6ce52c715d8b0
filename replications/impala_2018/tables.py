"""The replication's own tables: the systems of Table 1 on one machine, and what their frames take."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from ddrl.analysis.statistics.significance import geometric_mean
from ddrl.analysis.verdicts.cell_values import paired_ratios

THROUGHPUT = "throughput"
BASE = "a3c"
"""What the others are held against."""
STANDS_FOR = {"atari/pong": "seekavoid_arena_01", "atari/breakout": "rooms_keys_doors_puzzle"}
"""Our task of episodes of one length, and that of varied lengths and slow restarts -> the paper's."""
SPEED = "steady_frames_per_second"
NAMES = ["origin", "task", "system", "runs"]
SPEEDS = [*NAMES, "speed", "per_core", "to_a3c", "low", "high", "published", "published_per_core", "published_to_a3c"]
ROLES = ["actor", "environment", "inference", "learner"]
COSTS = [*NAMES, *ROLES, "cpu", "lag"]


def throughput_table(efficiency: pd.DataFrame, published: pd.DataFrame) -> pd.DataFrame:
    """A row for each origin, task and system that has run: columns `SPEEDS`.

    Ratios are geometric means over repeats, each against A3C's run of the same repeat, with their 95 % interval where
    there are three or more.
    """
    own = _runs(efficiency)
    stated = published[(published["experiment"] == THROUGHPUT) & (published["item"] == "Table 1")]
    rows = []
    for (_, task), runs in own.groupby(["origin", "environment"], sort=False):
        theirs = stated[stated["task"] == STANDS_FOR.get(str(task), "")].set_index("compared_variant")
        for system, part in runs.groupby("variant", sort=False):
            speed = float(part[SPEED].mean())
            ratio = geometric_mean(paired_ratios(runs.assign(value=runs[SPEED]), str(system), BASE), 0.95)
            per_core = speed / float(part["cores"].iloc[0])
            measured = {"speed": speed, "per_core": per_core, "to_a3c": ratio.value}
            measured |= {"low": ratio.low, "high": ratio.high}
            rows.append(_names(part) | measured | _published(theirs, str(system)))
    return pd.DataFrame(rows, columns=SPEEDS)


def cost_table(efficiency: pd.DataFrame) -> pd.DataFrame:
    """A row for each origin, task and system that has run: columns `COSTS`.

    CPU is in microseconds of all cores for a frame, which are seconds for a million: by what threads do, and in all.
    """
    rows = []
    for _, part in _runs(efficiency).groupby(["origin", "environment", "variant"], sort=False):
        per_role = {role: float(part[f"{role}_thread_cpu_seconds_per_million_frames"].mean()) for role in ROLES}
        whole = {"cpu": "cpu_seconds_per_million_frames", "lag": "policy_lag_mean"}
        rows.append(_names(part) | per_role | {name: float(part[column].mean()) for name, column in whole.items()})
    return pd.DataFrame(rows, columns=COSTS)


def _runs(efficiency: pd.DataFrame) -> pd.DataFrame:
    """Of the throughput experiment, long enough to have a speed."""
    return efficiency[(efficiency["experiment"] == THROUGHPUT) & efficiency[SPEED].notna()]


def _names(runs: pd.DataFrame) -> dict[str, object]:
    """What a row says of the runs behind it."""
    first = runs.iloc[0]
    return {"origin": first["origin"], "task": first["env_label"], "system": first["variant_label"], "runs": len(runs)}


def _published(theirs: pd.DataFrame, system: str) -> dict[str, float]:
    """What Table 1 has for a system on a task: frames per second, for each CPU, and over A3C's."""
    if system not in theirs.index or BASE not in theirs.index:
        return dict.fromkeys(("published", "published_per_core", "published_to_a3c"), np.nan)
    row = theirs.loc[system]
    cores = re.match(r"(\d+) CPUs", str(row["hardware"]))
    return {
        "published": float(row["value"]),
        "published_per_core": float(row["value"]) / int(cores[1]) if cores else np.nan,
        "published_to_a3c": float(row["value"]) / float(theirs.loc[BASE]["value"]),
    }
