"""Service times for the simulation, from what runs with one worker recorded.

CPU times are those of the processes: what a worker's process used for a step of its environments (for IMPALA with its
inference), and what the learner's used for everything. Of the learner's, inference is the time of its batches, and the
rest is training, the assembly of unrolls and messages, which are counted as training here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from replications.seed_rl_2020.inputs import Layout, ServiceTimes, Span, System

WORKERS = 1
"""Of the runs whose service times are taken: nobody competes with the one worker but the learner."""
SYSTEMS: Mapping[str, System] = {"local": "impala", "central": "seed"}
"""By the column `inference`."""
GROUP = ["origin", "inference", "network"]


def service_times(runs: pd.DataFrame) -> ServiceTimes:
    """From rows of table `efficiency` of one system, network and number of workers: means over them."""
    facts = runs.mean(numeric_only=True)
    frames, envs = int(facts["frames_per_step"]), float(facts["envs_per_actor"])
    learner = facts["learner_cpu_seconds_per_million_frames"]
    acting = (facts["cpu_seconds_per_million_frames"] - learner) * 1e-6 * frames
    learning = learner * 1e-6 * frames
    central = runs["inference"].iloc[0] == "central"
    inference = facts["inference_batch_ms_mean"] / 1000 / facts["inference_columns_mean"] if central else 0.0
    message = (facts["round_trip_ms_p50"] - facts["inference_call_ms_p50"]) / 2000 if central else 0.0
    return ServiceTimes(
        frames_per_step=frames,
        step_fixed_s=0.0,
        step_per_env_s=acting,
        inference_fixed_s=0.0,
        inference_per_column_s=inference,
        inference_cores=1.0,
        train_fixed_s=0.0,
        train_per_column_step_s=max(learning - inference, 0.0),
        train_cores=1.0,
        loopback_latency_s=max(message, 0.0),
        request_bytes_per_column=_bytes(facts, "to", frames) if central else 0.0,
        reply_bytes_per_column=_bytes(facts, "from", frames) if central else 0.0,
        unroll_bytes_per_column_step=0.0 if central else _bytes(facts, "to", frames),
        parameter_bytes=0.0 if central else _bytes(facts, "from", frames) * envs * facts["unroll_length"],
    )


def _bytes(facts: Any, way: str, frames: int) -> float:
    """Of one environment and step."""
    return float(facts[f"wire_bytes_per_frame_{way}_learner"]) * frames


def layout(run: Mapping[Any, Any], workers: int) -> Layout:
    """That of a run of table `efficiency`, with so many workers on the learner's own machine."""
    return Layout(
        learner_cores=float(run["cores"]),
        envs_per_worker=int(run["envs_per_actor"]),
        unroll_length=int(run["unroll_length"]),
        batch_columns=int(run["batch_size"]),
        local_workers=workers,
        queue_unrolls=int(run["queue_capacity"]),
    )


def long_enough(batch_seconds: float) -> Span:
    """Until queues are as full as they stay, then tens of batches: a few would be those that filled the queue."""
    return Span(warm_up_s=10 * batch_seconds, measured_s=30 * batch_seconds)
