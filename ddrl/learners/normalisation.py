"""Keeps a network's statistics up to date from fresh experience, on the learner's side."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ddrl.handles import Reducer
from ddrl.networks.actor_critic import ActorCritic
from ddrl.types import Unroll


class Normalisation:
    """What the learner does with each fresh batch, once: rewards before it learns from it, observations after.

    The order matters. Rewards are seen by the learner alone, so their scale may include the batch at hand. Observations
    are seen by the policy: were their statistics changed first, the learner's pi would differ from the behaviour policy
    mu by more than learning, and the first importance ratios would not be 1.
    """

    def __init__(self, network: ActorCritic, discount: float, reducer: Reducer) -> None:
        self._network = network
        self._discount = discount
        self._reducer = reducer
        self._returns: dict[tuple[int, int], Tensor] = {}

    def before(self, fresh: Unroll) -> None:
        """Adds the fresh batch's discounted returns to the statistics."""
        if self._network.reward_normaliser is not None:
            returns = self._discounted_returns(fresh)
            self._network.reward_normaliser.update(returns[fresh.valid], self._reducer)

    def after(self, fresh: Unroll) -> None:
        """Adds the fresh batch's observations to the statistics."""
        if self._network.observation_normaliser is not None:
            self._network.observe(fresh.observation[:-1][fresh.valid], self._reducer)

    def _discounted_returns(self, fresh: Unroll) -> Tensor:
        """R_t = discount R_{t-1} + r_t of the running episode, [T, B]; goes on from an environment's last unroll."""
        columns = list(zip(fresh.actor.tolist(), fresh.env.tolist(), strict=True))
        zero = torch.zeros((), dtype=torch.float64, device=fresh.reward.device)
        running = torch.stack([self._returns.get(column, zero) for column in columns])
        returns = []
        for reward, start in zip(fresh.reward.double(), fresh.start, strict=False):  # `start` has one entry more
            running = self._discount * running.masked_fill(start, 0.0) + reward
            returns.append(running)
        self._returns |= dict(zip(columns, running.unbind(), strict=True))
        return torch.stack(returns)

    def state_dict(self) -> dict[str, Any]:
        """The running returns; the statistics themselves are buffers of the network."""
        return {
            "columns": [list(column) for column in self._returns],
            "returns": torch.stack(list(self._returns.values())) if self._returns else torch.zeros(0).double(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues where `state` was taken."""
        columns = [(column[0], column[1]) for column in state["columns"]]
        self._returns = dict(zip(columns, state["returns"].unbind(), strict=True))
