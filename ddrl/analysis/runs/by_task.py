"""Splits runs on a suite of tasks: what one agent did on each task is treated like a run on that task.

Such a run records episodes by task, as metrics `episode_return/<task>`, `evaluation_return/<task>` and so on. After
the split, scores, curves, cells and claims treat one agent for thirty tasks like thirty agents for one task each. What
belongs to the run as a whole (time, speed, lag, topology) is kept with every part.

A run on one task that is evaluated on another (a level of DMLab-30 with a separate test level) is also split in two:
the training returns belong to the one, the final score to the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from ddrl.analysis.runs.run_data import RunData

OF_EPISODES = ("episode_return", "episode_length", "evaluation_return", "evaluation_length", "evaluation_updates")


def by_task(runs: Iterable[RunData]) -> list[RunData]:
    """Return each run on a single task as it is, and each run on several as one per task that it has played."""
    return [part for run in runs for part in _parts(run)]


def _parts(run: RunData) -> Sequence[RunData]:
    of_tasks: dict[str, dict[str, str]] = {}
    for name in run.rows_of:
        kind, _, task = name.partition("/")
        of_tasks.setdefault(task, {})[name] = kind
    shared = {name: name for name in of_tasks.pop("", {}) if name not in OF_EPISODES}
    tasks = sorted(task for task, names in of_tasks.items() if set(names.values()) & set(OF_EPISODES))
    if not tasks:
        return _trained_and_tested(run)
    parts = []
    for task in tasks:
        names = {name: kind for name, kind in of_tasks[task].items() if name != f"episodes/{task}"}
        curves = _counting(_renamed(run, shared | names), run.records(f"episodes/{task}"))
        parts.append(replace(run, environment=task, suite=run.environment, curves=curves))
    return parts


def _renamed(run: RunData, names: Mapping[str, str]) -> pd.DataFrame:
    """Return the rows of some metrics (metric -> its new name), in the order of the run's curves."""
    rows = [run.rows_of[name] for name in names]
    renamed = np.repeat(np.array(list(names.values()), dtype=object), list(map(len, rows)))
    chosen = np.concatenate(rows)
    order = np.argsort(chosen)
    return run.curves.iloc[chosen[order]].assign(metric=renamed[order])


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
    return sorted(name.partition("/")[2] for name in wanted - set(run.rows_of))
