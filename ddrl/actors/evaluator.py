"""Evaluation: plays separate episodes with fixed parameters."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ddrl.actors.policy import Policy
from ddrl.types import Episode, VectorEnv

MAX_ENVS = 16


def num_envs(episodes: int) -> int:
    """Return how many environments play `episodes` episodes in parallel."""
    return min(episodes, MAX_ENVS)


def play(
    env: VectorEnv, policy: Policy, episodes: int, *, should_stop: Callable[[], bool] = lambda: False
) -> list[Episode]:
    """Play `episodes` episodes, sampling actions; return fewer only if `should_stop` returns True.

    Each environment plays a fixed number: taking the episodes that end first would favour short ones.
    """
    quota = np.full(env.num_envs, episodes // env.num_envs)
    quota[: episodes % env.num_envs] += 1
    returns, lengths = np.zeros(env.num_envs), np.zeros(env.num_envs, dtype=np.int64)
    finished: list[Episode] = []
    step = env.reset()
    while len(finished) < episodes and not should_stop():
        step = env.step(policy.act(step).action.numpy())
        returns += step.reward
        lengths += step.valid
        for column in np.flatnonzero(step.ended):
            if quota[column] > 0:
                finished.append(Episode(env.spec.name, float(returns[column]), int(lengths[column])))
                quota[column] -= 1
            returns[column], lengths[column] = 0.0, 0
    return finished
