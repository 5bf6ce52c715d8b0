"""The replication's own table: predictions and trainings per second of A3C and GA3C, beside the gains of Table 2."""

from __future__ import annotations

import pandas as pd

from ddrl.analysis.statistics.significance import geometric_mean
from ddrl.analysis.verdicts.cell_values import paired_ratios

THROUGHPUT = "throughput"
BASES = {"ga3c_small": "a3c_small", "ga3c_large": "a3c_large"}
"""What each variant of GA3C is held against: A3C with the same network."""
SYSTEMS = ("System I", "System II", "System III")
"""The paper's machines, as its rows name them; A3C has their CPU there, and GA3C their GPU as well."""
SPEED = "steady_frames_per_second"
GAINS = ["gain_i", "gain_ii", "gain_iii"]
COLUMNS = ["origin", "task", "system", "runs", "pps", "tps", "gain", "low", "high", *GAINS]


def throughput_table(efficiency: pd.DataFrame, published: pd.DataFrame) -> pd.DataFrame:
    """A row for each origin, task and variant that has run: columns `COLUMNS`.

    A prediction (pps) is a step of one environment, a training (tps) an update, as in the paper. Gains are geometric
    means over repeats, each against A3C's run of the same repeat, with their 95 % interval where there are three.
    """
    own = efficiency[(efficiency["experiment"] == THROUGHPUT) & efficiency[SPEED].notna()]
    rows = []
    for _, runs in own.groupby(["origin", "environment"], sort=False):
        for variant, part in runs.groupby("variant", sort=False):
            base = BASES.get(str(variant), str(variant))
            gain = geometric_mean(paired_ratios(runs.assign(value=runs[SPEED]), str(variant), base), 0.95)
            first = part.iloc[0]
            names = {"origin": first["origin"], "task": first["env_label"], "system": first["variant_label"]}
            speeds = {"pps": (part[SPEED] / part["frames_per_step"]).mean(), "tps": part["updates_per_second"].mean()}
            gains = {"gain": gain.value, "low": gain.low, "high": gain.high}
            rows.append({**names, "runs": len(part), **speeds, **gains, **_published(published, str(variant))})
    return pd.DataFrame(rows, columns=COLUMNS)


def _published(published: pd.DataFrame, variant: str) -> dict[str, float]:
    """The gain of a variant that Table 2 prints for each of the paper's machines."""
    stated = published[(published["item"] == "Table 2") & (published["metric"] == "speed_up")]
    own = stated[stated["compared_variant"] == variant]
    found = {str(row["hardware"]).partition(":")[0]: float(row["value"]) for _, row in own.iterrows()}
    return {column: found.get(system, float("nan")) for column, system in zip(GAINS, SYSTEMS, strict=True)}
