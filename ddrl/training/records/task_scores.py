"""Metrics of a run on a suite of tasks: those of each task, and one score over all tasks."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ddrl.environments.base import registry
from ddrl.system.text_files import read_text
from ddrl.types import Episode, Metrics

FOLDER = Path(__file__).parents[3] / "replications" / "references"
"""Random and human scores. Reports read the same files with more care (`ddrl.papers.published`), and by each paper's
own choice of variants; a run, which must know them while it trains, takes the first row of a task that has both."""
CAPPED_SCORE = "mean_capped_score"
"""Metric: mean over tasks of capped human-normalised scores, a fraction (Espeholt et al. 2018, section 5.3.1)."""


class Reference(NamedTuple):
    """The raw returns that are 0 % and 100 % of a human-normalised score."""

    random: float
    human: float

    def capped(self, episode_return: float) -> float:
        """Return the human-normalised score, at most 1 (Espeholt et al. 2018, Table 3)."""
        return min(1.0, (episode_return - self.random) / (self.human - self.random))


def references(tasks: Sequence[str]) -> dict[str, Reference]:
    """Return task -> reference, of the tasks that have one; names are `prefix/task`."""
    found: dict[str, Reference] = {}
    for prefix in dict.fromkeys(task.partition("/")[0] for task in tasks):
        path = FOLDER / (registry.reference_file(prefix) or "")
        if not path.is_file():
            continue
        for row in csv.DictReader(io.StringIO(read_text(path), newline="")):
            name = f"{prefix}/{row['task']}"
            if name in tasks and name not in found and row["random"] and row["human"]:
                found[name] = Reference(float(row["random"]), float(row["human"]))
    return found


def metric_of(name: str, task: str) -> str:
    """Return the name of a metric for one task of a suite, such as `episode_return/firstperson/...`."""
    return f"{name}/{task}"


def means(episodes: Sequence[Episode]) -> Metrics:
    """Return the mean return and length of the episodes that were not abandoned; nothing where all were."""
    if whole := [episode for episode in episodes if not episode.abandoned]:
        returns, lengths = zip(*((episode.episode_return, episode.length) for episode in whole), strict=True)
        return {"episode_return": float(np.mean(returns)), "episode_length": float(np.mean(lengths))}
    return {}


class TaskScores:
    """Mean returns of training episodes by task; each task's newest mean counts until there is a newer one."""

    def __init__(self, tasks: Sequence[str]) -> None:
        """`tasks`: of the suite; with a single task nothing is recorded by task."""
        self._tasks = tuple(tasks) if len(tasks) > 1 else ()
        self._references = references(self._tasks)
        self._newest: dict[str, float] = {}

    def take(self, episodes: Sequence[Episode]) -> Metrics:
        """Return the metrics of the episodes since the last call, and the score once each task has had an episode."""
        metrics: Metrics = {}
        for task in self._tasks:
            own = [episode for episode in episodes if episode.task == task]
            if lost := sum(episode.abandoned for episode in own):
                metrics[metric_of("abandoned_episodes", task)] = float(lost)
            if found := means(own):
                self._newest[task] = found["episode_return"]
                metrics |= {metric_of(name, task): value for name, value in found.items()}
                metrics[metric_of("episodes", task)] = float(len(own) - lost)
        if self._tasks and all(task in self._newest and task in self._references for task in self._tasks):
            scores = [self._references[task].capped(self._newest[task]) for task in self._tasks]
            metrics[CAPPED_SCORE] = float(np.mean(scores))
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Return the newest mean of each task."""
        return dict(self._newest)

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Restore a state from `state_dict`."""
        self._newest = dict(state)
