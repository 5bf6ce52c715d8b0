"""Epsilon-greedy actions, with an epsilon for each environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def epsilon_ladder(epsilon: float, alpha: float, num_envs: int) -> list[float]:
    """Return epsilon^(1 + alpha i / (N - 1)) for i = 0 .. N - 1 (Horgan et al. 2018, section 4.1); N = 1: epsilon."""
    return [epsilon ** (1 + alpha * i / max(1, num_envs - 1)) for i in range(num_envs)]


class EpsilonGreedy:
    """Chooses the best action, or with probability `epsilons[i]` in environment i a uniformly drawn one."""

    def __init__(self, epsilons: Sequence[float]) -> None:
        self._epsilons = torch.tensor(epsilons)

    def set(self, epsilon: float) -> None:
        """Set the same epsilon for all environments."""
        self._epsilons.fill_(epsilon)

    def __call__(self, q: Tensor, generator: torch.Generator) -> Tensor:
        """Return actions [B] given values [B, A]."""
        explores = torch.rand(len(q), generator=generator) < self._epsilons
        uniform = torch.randint(q.shape[-1], (len(q),), generator=generator)
        return torch.where(explores, uniform, q.argmax(dim=-1))


def from_epsilon_ladder(config: Any, network: Any, envs: Sequence[int] | None, num_envs: int) -> EpsilonGreedy:
    """Return the sampler of Q-learning actors: each environment has its own epsilon, and so has an evaluation."""
    ladder = epsilon_ladder(config.epsilon, config.epsilon_alpha, num_envs)
    return EpsilonGreedy([config.evaluation_epsilon] if envs is None else [ladder[env] for env in envs])
