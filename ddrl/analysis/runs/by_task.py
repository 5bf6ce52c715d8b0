"""Splits runs on a suite of tasks: what one agent did on each task is treated like a run on that task.

Such a run records episodes by task, as metrics `episode_return/<task>`, `evaluation_return/<task>` and so on. After
the split, scores, curves, cells and claims treat one agent for thirty tasks like thirty agents for one task each. What
belongs to the run as a whole (time, speed, lag, topology) is kept with every part.

A run on one task that is evaluated on another (a level of DMLab-30 with a separate test level) is also split in two:
the training returns belong to the one, the final score to the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from ddrl.analysis.runs.run_data import RunData

OF_EPISODES = ("episode_return", "episode_length", "evaluation_return", "evaluation_length", "evaluation_updates")


def by_task(runs: Iterable[RunData]) -> list[RunData]:
    """Return each run on a single task as it is, and each run on several as one per task that it has played."""
    return [part for run in runs for part in _parts(run)]


def _parts(run: RunData) -> Sequence[RunData]:
    names = run.curves["metric"].str.partition("/")
    tasks = sorted(set(names[2][names[0].isin(OF_EPISODES) & (names[2] != "")]))
    if not tasks:
        return _trained_and_tested(run)
    shared = (names[2] == "") & ~names[0].isin(OF_EPISODES)
    parts = []
    for task in tasks:
        counted = run.curves["metric"] == f"episodes/{task}"
        own = run.curves[(shared | (names[2] == task)) & ~counted]
        curves = _counting(own.assign(metric=own["metric"].str.removesuffix(f"/{task}")), run.curves[counted])
        parts.append(replace(run, environment=task, suite=run.environment, curves=curves))
    return parts


def _counting(curves: pd.DataFrame, counted: pd.DataFrame) -> pd.DataFrame:
    """Return `curves` with the cumulated episodes of a task (`counted`: its new ones per record) as its episodes."""
    until = counted.sort_values("env_frames").set_index("env_frames")["value"].cumsum()
    own = until.reindex(curves["env_frames"], method="ffill").fillna(0.0)
    return curves.assign(value=np.where(curves["metric"] == "episodes", own, curves["value"]))


def _trained_and_tested(run: RunData) -> Sequence[RunData]:
    evaluation = run.config.get("evaluation", {}).get("environment") or {}
    tested = str(evaluation.get("name", run.environment))
    if tested == run.environment:
        return [run]
    metric = run.curves["metric"]
    trained, evaluated = (
        metric.isin([name for name in OF_EPISODES if name.startswith(kind)]) for kind in ("episode_", "evaluation_")
    )
    return [
        replace(run, curves=run.curves[~evaluated]),
        replace(run, environment=tested, suite=run.environment, curves=run.curves[~trained]),
    ]


def unevaluated(run: RunData) -> list[str]:
    """Return the sorted tasks that the last evaluation of a run should have played and did not."""
    wanted = {f"evaluation_return/{task}" for task in run.manifest.get("evaluated_tasks", ())}
    return sorted(name.partition("/")[2] for name in wanted - set(run.curves["metric"]))
