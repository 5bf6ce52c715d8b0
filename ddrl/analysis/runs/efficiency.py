"""Computes what the frames of a run cost: speed, CPU, traffic, latencies and lag, as recorded during training.

Speeds and CPU times are slopes from the first record to the last, so the start-up time does not count. Everything else
is the mean over the records after the first (the median for percentiles); each record covers the time since the one
before. A quantity that a run did not record is missing: its runtime has no such part, or it is too old.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from ddrl.analysis.runs.grids import in_order
from ddrl.analysis.runs.run_data import KEYS, RunData, Values, gpu_of, layout_of, once_per_run
from ddrl.papers.claim_kinds import EFFICIENCY_METRICS
from ddrl.papers.experiments import Experiment
from ddrl.papers.paper import Prices

THREADS = ("actor", "inference", "learner", "environment", "other")
"""Roles for which runs with runtime `threads` record CPU seconds (`ddrl.training.records.thread_cpu`)."""
GAUGES = (
    "learner_utilisation",
    "environment_wait_fraction",
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
THREAD_COUNTERS = tuple(f"{role}_thread_cpu_seconds" for role in THREADS)
COUNTERS = ("cpu_seconds", "worker_cpu_seconds", *THREAD_COUNTERS)
COLUMNS = [
    "steady_frames_per_second",
    "updates_per_second",
    "cpu_seconds_per_million_frames",
    "learner_cpu_seconds_per_million_frames",
    "dollars_per_billion_frames",
    "wire_bytes_per_frame",
    *GAUGES,
    "policy_lag_span",
    *(f"{name}_per_million_frames" for name in THREAD_COUNTERS),
]
"""Columns besides those that name a run. `learner_cpu_...` is the learner's process alone, with its inference."""


def efficiency(run: RunData, prices: Prices | None) -> dict[str, float]:
    """Return `COLUMNS` of a run, among them all `EFFICIENCY_METRICS`; NaN where the run recorded nothing."""
    found = _measured(run)
    return dict(found.columns) | {"dollars_per_billion_frames": _dollars(run, prices, found)}


class _Measured(NamedTuple):
    """`COLUMNS` without the dollars, which depend on a paper's prices; seconds and CPU seconds per frame."""

    columns: Mapping[str, float]
    seconds: float
    cpu: float


@once_per_run
def _measured(run: RunData) -> _Measured:
    moments, updates = _ascending(*run.points("episodes", of="updates"))
    seconds = _per_frame(*_ascending(*run.points("episodes", of="seconds")))
    slopes = {name: _per_frame(*_recorded(run, name, moments)) for name in COUNTERS}
    cpu = slopes["cpu_seconds"] + (slopes["worker_cpu_seconds"] if "worker_cpu_seconds" in run.rows_of else 0.0)
    gauges = {name: _gauge(name, _recorded(run, name, moments)[1]) for name in GAUGES}
    to_learner, from_learner = (gauges[f"wire_bytes_per_frame_{way}_learner"] for way in ("to", "from"))
    columns = gauges | {f"{name}_per_million_frames": 1e6 * slopes[name] for name in THREAD_COUNTERS}
    columns |= {
        "steady_frames_per_second": 1 / seconds if seconds > 0 else math.nan,
        "updates_per_second": _per_frame(moments, updates) / seconds if seconds > 0 else math.nan,
        "cpu_seconds_per_million_frames": 1e6 * cpu,
        "learner_cpu_seconds_per_million_frames": 1e6 * slopes["cpu_seconds"],
        "dollars_per_billion_frames": math.nan,
        "wire_bytes_per_frame": to_learner + from_learner,
        "policy_lag_span": gauges["policy_lag_first"] - gauges["policy_lag_last"],
    }
    return _Measured(columns, seconds, cpu)


def _ascending(x: Values, y: Values) -> tuple[Values, Values]:
    return in_order(x, y, largest=False)


def _recorded(run: RunData, name: str, moments: Values) -> tuple[Values, Values]:
    """Return env_frames [N], ascending, and values [N] of a metric, at those of `moments` at which it was recorded."""
    frames, values = _ascending(*run.points(name))
    kept = np.isin(frames, moments)
    return frames[kept], values[kept]


def _per_frame(frames: Values, values: Values) -> float:
    """Return the increase of a counter per frame; missing if it was recorded only once, or was reset on the way."""
    if len(values) < 2 or (np.diff(values) < 0).any():
        return math.nan
    return float((values[-1] - values[0]) / (frames[-1] - frames[0]))


def _gauge(name: str, values: Values) -> float:
    """Return the mean of a metric after its first record (the median for a percentile)."""
    later = values[1:] if len(values) > 1 else values
    if not len(later):
        return math.nan
    return float(np.median(later) if name.endswith(("_p50", "_p99")) else later.mean())


def _dollars(run: RunData, prices: Prices | None, found: _Measured) -> float:
    """Return dollars per billion frames: cores for the time they worked, accelerators for the time they were held."""
    if prices is None:
        return math.nan
    held = 1.0 if gpu_of(run) else 0.0
    return 1e9 / 3600 * (found.cpu * prices.cpu_core_hour + held * found.seconds * prices.accelerator_hour)


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
