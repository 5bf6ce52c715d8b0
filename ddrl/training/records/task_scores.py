"""Metrics of a run on a suite of tasks: those of each task, and one score over all tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ddrl.training.records.reference_scores import references
from ddrl.types import Episode, Metrics

CAPPED_SCORE = "mean_capped_score"
"""Metric: mean over tasks of capped human-normalised scores, a fraction (Espeholt et al. 2018, section 5.3.1)."""


def metric_of(name: str, task: str) -> str:
    """Return the name of a metric for one task of a suite, such as `episode_return/firstperson/...`."""
    return f"{name}/{task}"


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
            whole = [episode for episode in own if not episode.abandoned]
            if whole:
                self._newest[task] = float(np.mean([episode.episode_return for episode in whole]))
                metrics[metric_of("episode_return", task)] = self._newest[task]
                metrics[metric_of("episode_length", task)] = float(np.mean([episode.length for episode in whole]))
                metrics[metric_of("episodes", task)] = float(len(whole))
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
