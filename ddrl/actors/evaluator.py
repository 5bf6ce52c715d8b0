"""Evaluation: plays separate episodes with fixed parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ddrl.actors.policy import Policy
from ddrl.types import Array, EnvStep, Episode, VectorEnv

MAX_ENVS = 16


def num_envs(episodes: int) -> int:
    """Return how many environments play `episodes` episodes in parallel."""
    return min(episodes, MAX_ENVS)


class Games:
    """The episodes of one evaluation. Between any two steps they can be saved, and continued with the same bits.

    Each environment plays a fixed number of them: taking the episodes that end first would favour short ones.
    """

    def __init__(self, env: VectorEnv, policy: Policy, episodes: int) -> None:
        """Plan `episodes` episodes; the first step begins them."""
        self.planned = episodes
        self.finished: list[Episode] = []
        self._env, self._policy = env, policy
        self._quota = np.full(env.num_envs, episodes // env.num_envs)
        self._quota[: episodes % env.num_envs] += 1
        self._returns, self._lengths = np.zeros(env.num_envs), np.zeros(env.num_envs, dtype=np.int64)
        self._last: EnvStep | None = None

    @property
    def are_over(self) -> bool:
        """Return whether all episodes are finished."""
        return len(self.finished) >= self.planned

    def step(self) -> bool:
        """Make one step of all environments, sampling actions; return whether an episode that counts has ended."""
        if self._last is None:
            self._last = self._env.reset()
        step = self._env.step(self._policy.act(self._last).action.numpy())
        self._last = step
        self._returns += step.reward
        self._lengths += step.valid
        before = len(self.finished)
        for column in np.flatnonzero(step.ended):
            if self._quota[column] > 0:
                episode = Episode(self._env.spec.name, float(self._returns[column]), int(self._lengths[column]))
                self.finished.append(episode)
                self._quota[column] -= 1
            self._returns[column], self._lengths[column] = 0.0, 0
        return len(self.finished) > before

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` needs to continue, but for the parameters that are played with."""
        arrays = {"quota": self._quota, "returns": self._returns, "lengths": self._lengths}
        return {
            "finished": [list(episode) for episode in self.finished],
            "env": self._env.state_dict(),
            "policy": self._policy.own_state_dict(),
            "last": None if self._last is None else [_tensor(part) for part in self._last],
            **{name: _tensor(array) for name, array in arrays.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken."""
        self._env.load_state_dict(state["env"])
        self._policy.load_own_state_dict(state["policy"])
        self.finished = [Episode(*episode) for episode in state["finished"]]
        self._quota, self._returns, self._lengths = (
            state[name].numpy().copy() for name in ("quota", "returns", "lengths")
        )
        self._last = None if state["last"] is None else EnvStep(*(part.numpy().copy() for part in state["last"]))


def _tensor(array: Array) -> Any:
    import torch

    return torch.from_numpy(np.array(array))


def play(
    env: VectorEnv,
    policy: Policy,
    episodes: int,
    *,
    should_stop: Callable[[], bool] = lambda: False,
    state: Mapping[str, Any] | None = None,
    after: Callable[[Games], None] = lambda games: None,
) -> list[Episode]:
    """Play `episodes` episodes; return fewer only if `should_stop` returns True.

    `state`, of `Games`, is continued. `after` is called each time that one or more episodes have ended.
    """
    games = Games(env, policy, episodes)
    if state is not None:
        games.load_state_dict(state)
    while not games.are_over and not should_stop():
        if games.step():
            after(games)
    return games.finished
