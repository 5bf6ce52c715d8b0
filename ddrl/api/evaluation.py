"""Episodes played with a trained agent (`ddrl evaluate`, `ddrl.evaluate`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ddrl.actors import evaluator
from ddrl.actors.evaluator import Games
from ddrl.api.trained import load_trained
from ddrl.environments.base import registry
from ddrl.errors import UserError, unknown_name
from ddrl.system.wording import counted


@dataclass(frozen=True)
class Evaluated:
    """The episodes that a run's newest parameters have played of one task."""

    run: str
    task: str
    env_frames: int
    """That the parameters were trained for."""
    greedy: bool
    seed: int
    returns: list[float]
    """Raw, of each episode."""
    lengths: list[int]
    """Agent steps of each episode."""
    environment: dict[str, Any] = field(default_factory=dict)
    """The options in which the environment differs from the one of the run's evaluations."""

    @property
    def mean_return(self) -> float:
        """The mean raw return."""
        return float(np.mean(self.returns))

    def describe(self, *, with_task: bool) -> str:
        """Return one line."""
        number = len(self.returns)
        mean = f"{'mean ' if number > 1 else ''}raw return {self.mean_return:.2f}"
        spread = f", standard deviation {np.std(self.returns, ddof=1):.2f}" if number > 1 else ""
        task = f"{self.task}: " if with_task else ""
        changed = "".join(f", {key}={json.dumps(value)}" for key, value in self.environment.items())
        played = f"{counted(number, 'episode')}{changed}"
        return f"{self.run}: {task}{mean}{spread}, {played}, after {self.env_frames:,} frames"


def evaluate(
    run: Path,
    *,
    episodes: int,
    seed: int,
    task: str | None = None,
    greedy: bool = False,
    environment: Mapping[str, Any] | None = None,
    where: str = "environment",
    progress: Callable[[str], None] = lambda line: None,
) -> Iterator[Evaluated]:
    """Play `episodes` episodes of each task with a run's newest parameters.

    On a suite these are all tasks, or `task` alone. `environment` has options in which the environment is to differ
    from the one of the run's evaluations; errors call them `where`. `progress` is given a line each time that episodes
    have ended. Raise UserError for a task that is not of the suite, a number of episodes below 1, and as
    `Trained.evaluated`.
    """
    if episodes < 1:
        raise UserError(f"episodes must be at least 1 (got {episodes})")
    trained, num_envs = load_trained(run), evaluator.num_envs(episodes)
    changes = dict(environment or {})
    for index, name in enumerate(chosen_tasks(trained.evaluated(changes, where=where)["name"], task)):
        env = trained.environment(num_envs, seed, task=name, what=f"evaluation of {run}", changes=changes)
        try:
            policy = trained.policy(num_envs, seed, "player-policy", index, greedy=greedy)
            played = evaluator.play(env, policy, episodes, after=partial(_tell, progress, name, episodes))
        finally:
            env.close()
        returns, lengths = [one.episode_return for one in played], [one.length for one in played]
        yield Evaluated(str(run), name, trained.env_frames, greedy, seed, returns, lengths, changes)


def _tell(progress: Callable[[str], None], task: str, episodes: int, games: Games) -> None:
    """Say how far the games of one task are."""
    mean = np.mean([episode.episode_return for episode in games.finished])
    progress(f"{task}: {len(games.finished)} / {counted(episodes, 'episode')}, mean raw return {mean:.2f}")


def chosen_tasks(name: str, task: str | None) -> tuple[str, ...]:
    """Return all tasks of a suite, or `task` alone, named with or without prefix. Raise UserError for any other."""
    tasks = registry.tasks_of(name)
    chosen = tuple(own for own in tasks if task is None or task in (own, own.partition("/")[2]))
    if not chosen:
        raise unknown_name("task", task, tasks, where="--task")
    return chosen
