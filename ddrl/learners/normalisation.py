"""Reward clipping, and the learner's updates of a network's running statistics from fresh experience."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ddrl.interfaces import KeepsStatistics, Reducer
from ddrl.types import Unroll

RewardClipping: TypeAlias = Literal["abs_one", "none", "optimistic_asymmetric", "soft_asymmetric"]
"""A configuration key, see `clipped_rewards`."""


def clipped_rewards(rewards: Tensor, reward_clipping: RewardClipping) -> Tensor:
    """Return rewards r [...] as an algorithm learns from them.

    - `none`: r;
    - `abs_one`: r clipped to [-1, 1];
    - `optimistic_asymmetric`: 0.3 min(tanh r, 0) + 5 max(tanh r, 0) (Espeholt et al. 2018, Figure D.1, for DMLab-30);
    - `soft_asymmetric`: 5 tanh(r / 5), and 0.3 of that where r < 0, which is what the authors' code does
      (google-deepmind/scalable_agent, experiment.py).
    """
    if reward_clipping == "abs_one":
        return rewards.clamp(-1, 1)
    if reward_clipping == "optimistic_asymmetric":
        squeezed = torch.tanh(rewards)
        return 0.3 * squeezed.clamp(max=0) + 5.0 * squeezed.clamp(min=0)
    if reward_clipping == "soft_asymmetric":
        squeezed = torch.tanh(rewards / 5.0)
        return torch.where(rewards < 0, 0.3 * squeezed, squeezed) * 5.0
    return rewards


class Normalisation:
    """Adds each fresh batch to the network's statistics: rewards before the learner learns from it, observations after.

    The order matters. Only the learner uses rewards, so their scale may include the present batch. The policy uses
    observations: if their statistics changed first, the learner's pi would differ from the behaviour policy mu by more
    than learning, and the first importance ratios would not be 1.
    """

    def __init__(
        self, network: KeepsStatistics, discount: float, reward_clipping: RewardClipping, reducer: Reducer
    ) -> None:
        self._network = network
        self._discount = discount
        self._reward_clipping = reward_clipping
        self._reducer = reducer
        self._returns: dict[tuple[int, int], Tensor] = {}

    def add_rewards(self, fresh: Unroll) -> None:
        """Add the discounted returns of a fresh batch to the statistics, if there are any."""
        if self._network.reward_normaliser is not None:
            returns = self._discounted_returns(fresh)
            self._network.reward_normaliser.update(returns[fresh.valid.cpu()], self._reducer)

    def add_observations(self, fresh: Unroll) -> None:
        """Add the observations of a fresh batch to the statistics, if there are any."""
        if self._network.observation_normaliser is not None:
            self._network.observation_normaliser.update(fresh.observation[:-1][fresh.valid], self._reducer)

    def _discounted_returns(self, fresh: Unroll) -> Tensor:
        """Return R_t = discount R_{t-1} + r_t of the present episode, [T, B] on the CPU.

        Each unroll continues the previous one of its environment, also if both are in this batch.
        """
        returns = torch.empty(fresh.reward.shape, dtype=torch.float64)
        zero = torch.zeros((), dtype=torch.float64)
        all_rewards, goes_on = fresh.reward.cpu().double(), ~fresh.start.cpu().numpy()
        for columns in _generations(fresh):
            sources = list(zip(fresh.actor[columns].tolist(), fresh.env[columns].tolist(), strict=True))
            running = torch.stack([self._returns.get(source, zero) for source in sources]).numpy()
            rewards = clipped_rewards(all_rewards[:, columns], self._reward_clipping).numpy()
            lives = fresh.valid[:, columns].cpu().numpy()
            kept = np.where(lives, self._discount, 1.0)  # nothing happens on a dead step
            decays = kept * goes_on[:-1, columns]
            for t, reward in enumerate(rewards):  # in NumPy, whose operations on a few numbers cost less
                rewards[t] = running = decays[t] * running + reward
            returns[:, columns] = torch.from_numpy(rewards)
            self._returns |= dict(zip(sources, torch.from_numpy(running.copy()).unbind(), strict=True))
        return returns

    def state_dict(self) -> dict[str, Any]:
        """Return the running returns; the statistics themselves are buffers of the network."""
        return {
            "columns": [list(column) for column in self._returns],
            "returns": torch.stack(list(self._returns.values())) if self._returns else torch.zeros(0).double(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`."""
        columns = [(column[0], column[1]) for column in state["columns"]]
        self._returns = dict(zip(columns, state["returns"].unbind(), strict=True))


def _generations(fresh: Unroll) -> list[list[int]]:
    """Return the columns of a batch in lists that hold each environment once, its earlier unrolls in earlier lists."""
    lists: list[list[int]] = []
    seen: Counter[tuple[int, int]] = Counter()
    sources = list(zip(fresh.actor.tolist(), fresh.env.tolist(), strict=True))
    for column in sorted(range(len(sources)), key=fresh.index.tolist().__getitem__):
        if seen[sources[column]] == len(lists):
            lists.append([])
        lists[seen[sources[column]]].append(column)
        seen[sources[column]] += 1
    return lists
