"""Runs on a suite of tasks, taken apart: what one agent did on each task is like a run on that task.

Such a run records episodes by task, as metrics `episode_return/<task>`, `evaluation_return/<task>` and so on. So
scores, curves, cells and claims about tasks read one agent for thirty tasks and thirty agents for one task each alike.
What is of the run as a whole (its time, speed, lag, topology) stays with the whole, and with each part.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ddrl.analysis.curves import RunData

OF_EPISODES = ("episode_return", "episode_length", "evaluation_return", "evaluation_length")


def by_task(runs: Iterable[RunData]) -> list[RunData]:
    """Each run on a single task as it is, and each run on a suite as one for every task that it has played."""
    return [part for run in runs for part in _parts(run)]


def _parts(run: RunData) -> Sequence[RunData]:
    names = run.curves["metric"].str.partition("/")
    tasks = sorted(set(names[2][names[0].isin(OF_EPISODES) & (names[2] != "")]))
    if not tasks:
        return [run]
    shared = (names[2] == "") & ~names[0].isin(OF_EPISODES)
    parts = []
    for task in tasks:
        own = run.curves[shared | (names[2] == task)]
        curves = own.assign(metric=own["metric"].str.removesuffix(f"/{task}"))
        parts.append(replace(run, environment=task, suite=run.environment, curves=curves))
    return parts


def unevaluated(run: RunData) -> list[str]:
    """Tasks that the evaluations of a run should have played, and its last one did not: holes, sorted."""
    wanted = {f"evaluation_return/{task}" for task in run.manifest.get("evaluated_tasks", ())}
    return sorted(name.partition("/")[2] for name in wanted - set(run.curves["metric"]))
