"""Computes what the frames of a run cost: speed, CPU, traffic, latencies and lag, as recorded during training.

Speeds and CPU times are slopes from the first record to the last, so the start-up time does not count. Everything else
is the mean over the records after the first (the median for percentiles); each record covers the time since the one
before. A quantity that a run did not record is missing: its runtime has no such part, or it is too old.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pandas as pd

from ddrl.analysis.runs.run_data import KEYS, RunData, layout_of
from ddrl.papers.claim_kinds import EFFICIENCY_METRICS
from ddrl.papers.experiments import Experiment
from ddrl.papers.paper import Prices

THREADS = ("actor", "inference", "learner", "environment", "other")
"""Roles for which runs with runtime `threads` record CPU seconds (`ddrl.training.records.thread_cpu`)."""
GAUGES = (
    "learner_utilisation",
    "inference_columns_mean",
    "inference_batch_ms_mean",
    "inference_call_ms_p50",
    "inference_call_ms_p99",
    "round_trip_ms_p50",
    "round_trip_ms_p99",
    "wire_bytes_per_frame_to_learner",
    "wire_bytes_per_frame_from_learner",
    "policy_lag_mean",
    "policy_lag_first",
    "policy_lag_last",
    "q_discrepancy_first",
    "q_discrepancy_last",
    "replay_samples_per_insert",
    "replay_bytes_per_step",
)
"""Recorded metrics that are taken as they are."""
COLUMNS = [
    "steady_frames_per_second",
    "updates_per_second",
    "cpu_seconds_per_million_frames",
    "learner_cpu_seconds_per_million_frames",
    "dollars_per_billion_frames",
    "wire_bytes_per_frame",
    *GAUGES,
    "policy_lag_span",
    *(f"{role}_thread_cpu_seconds_per_million_frames" for role in THREADS),
]
"""Columns besides those that name a run. `learner_cpu_...` is the learner's process alone, with its inference."""


def efficiency(run: RunData, prices: Prices | None) -> dict[str, float]:
    """Return `COLUMNS` of a run, among them all `EFFICIENCY_METRICS`; NaN where the run recorded nothing."""
    wide = run.curves.pivot_table(index="env_frames", columns="metric", values="value", aggfunc="mean")
    records = run.records("episodes").set_index("env_frames")
    wide = wide.loc[wide.index.isin(records.index)].assign(seconds=records["seconds"], updates=records["updates"])
    seconds, learner, workers = (_per_frame(wide, name) for name in ("seconds", "cpu_seconds", "worker_cpu_seconds"))
    cpu = learner + (workers if "worker_cpu_seconds" in wide else 0.0)
    found = {name: _gauge(wide, name) for name in GAUGES}
    threads = [f"{role}_thread_cpu_seconds" for role in THREADS]
    found |= {f"{name}_per_million_frames": 1e6 * _per_frame(wide, name) for name in threads}
    to_learner, from_learner = (found[f"wire_bytes_per_frame_{way}_learner"] for way in ("to", "from"))
    return found | {
        "steady_frames_per_second": 1 / seconds if seconds > 0 else math.nan,
        "updates_per_second": _per_frame(wide, "updates") / seconds if seconds > 0 else math.nan,
        "cpu_seconds_per_million_frames": 1e6 * cpu,
        "learner_cpu_seconds_per_million_frames": 1e6 * learner,
        "dollars_per_billion_frames": _dollars(run, prices, seconds, cpu),
        "wire_bytes_per_frame": to_learner + from_learner,
        "policy_lag_span": found["policy_lag_first"] - found["policy_lag_last"],
    }


def _per_frame(wide: pd.DataFrame, name: str) -> float:
    """Return the increase of a counter per frame; missing if it was recorded only once, or was reset on the way."""
    values = wide[name].dropna() if name in wide else pd.Series(dtype="float64")
    if len(values) < 2 or (values.diff() < 0).any():
        return math.nan
    return float((values.iloc[-1] - values.iloc[0]) / (values.index[-1] - values.index[0]))


def _gauge(wide: pd.DataFrame, name: str) -> float:
    """Return the mean of a metric after its first record (the median for a percentile)."""
    values = wide[name].dropna() if name in wide else pd.Series(dtype="float64")
    later = values.iloc[1:] if len(values) > 1 else values
    return float(later.median() if name.endswith(("_p50", "_p99")) else later.mean())


def _dollars(run: RunData, prices: Prices | None, seconds: float, cpu: float) -> float:
    """Return dollars per billion frames: cores for the time they worked, accelerators for the time they were held."""
    if prices is None:
        return math.nan
    held = 1.0 if run.manifest["hardware"].get("gpu") and run.config.get("device") != "cpu" else 0.0
    return 1e9 / 3600 * (cpu * prices.cpu_core_hour + held * seconds * prices.accelerator_hour)


def efficiency_table(
    runs: Sequence[RunData], experiments: Mapping[str, Experiment], prices: Prices | None
) -> pd.DataFrame:
    """Return one row per run: `KEYS`, label, sizes of network, batch and unroll, topology, machine, and `COLUMNS`."""
    rows = []
    for run in runs:
        facts = {
            "variant_label": experiments[run.experiment].labels[run.variant],
            **{name: run.config["hyperparameters"].get(name) for name in ("network", "unroll_length", "batch_size")},
            **{name: run.manifest["hardware"].get(name) for name in ("cpu", "cores", "gpu")},
            "frames_per_step": round(run.manifest["env_frames"] / run.manifest["agent_steps"]),
            "queue_capacity": run.config["topology"].get("queue_capacity"),
        }
        rows.append(run.keys() | facts | layout_of(run.config["topology"]) | efficiency(run, prices))
    counts = dict.fromkeys(("learner_threads", "parameter_delay", "queue_capacity"), "Int64")
    table = pd.DataFrame(rows).astype(counts | dict.fromkeys(COLUMNS, "float64"))
    return table.sort_values(KEYS, ascending=[False, *[True] * (len(KEYS) - 1)], ignore_index=True)


assert set(EFFICIENCY_METRICS) <= set(COLUMNS)
