"""Runs on a suite of tasks, taken apart: what one agent did on each task is like a run on that task.

Such a run records episodes by task, as metrics `episode_return/<task>`, `evaluation_return/<task>` and so on. So
scores, curves, cells and claims about tasks read one agent for thirty tasks and thirty agents for one task each alike.
What is of the run as a whole (its time, speed, lag, topology) stays with the whole, and with each part.

A run on one task whose evaluations are on another (a level of DMLab-30 that has another one for tests) is two parts
likewise: the training returns are of the one, the final score is of the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from ddrl.analysis.runs.run_data import RunData

OF_EPISODES = ("episode_return", "episode_length", "evaluation_return", "evaluation_length", "evaluation_updates")
KINDS = ("episode_", "evaluation_")
"""What metrics of training episodes and of evaluations begin with."""


def by_task(runs: Iterable[RunData]) -> list[RunData]:
    """Each run on a single task as it is, and each run on several as one for every task that it has played."""
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
    """`curves` with the task's own number of episodes until each record in place of that of all tasks.

    `counted`: those of the task that each record tells of; one in which none ended has no row.
    """
    until = counted.sort_values("env_frames").set_index("env_frames")["value"].cumsum()
    own = until.reindex(curves["env_frames"], method="ffill").fillna(0.0)
    return curves.assign(value=np.where(curves["metric"] == "episodes", own, curves["value"]))


def _trained_and_tested(run: RunData) -> Sequence[RunData]:
    evaluation = run.config.get("evaluation", {}).get("environment") or {}
    tested = str(evaluation.get("name", run.environment))
    if tested == run.environment:
        return [run]
    metric = run.curves["metric"]
    trained, evaluated = (metric.isin([name for name in OF_EPISODES if name.startswith(kind)]) for kind in KINDS)
    return [
        replace(run, curves=run.curves[~evaluated]),
        replace(run, environment=tested, suite=run.environment, curves=run.curves[~trained]),
    ]


def unevaluated(run: RunData) -> list[str]:
    """Tasks that the evaluations of a run should have played, and its last one did not: holes, sorted."""
    wanted = {f"evaluation_return/{task}" for task in run.manifest.get("evaluated_tasks", ())}
    return sorted(name.partition("/")[2] for name in wanted - set(run.curves["metric"]))
