"""Epsilon-greedy actions, with an epsilon for each environment, which may fall at the beginning."""

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

    def __init__(self, epsilons: Sequence[float], initial: float | None = None) -> None:
        """`initial`: epsilon of all environments until `fall` is called; None: `epsilons` from the beginning."""
        self._final = list(epsilons)
        self._initial = self._final if initial is None else [initial] * len(self._final)
        self._epsilons = torch.tensor(self._initial)

    def fall(self, done: int, total: int) -> None:
        """Set them as after `done` of `total` steps from the initial epsilons to the final ones, which then stay."""
        part = min(1.0, done / total) if total else 1.0
        ends = zip(self._initial, self._final, strict=True)
        self._epsilons = torch.tensor([initial + part * (final - initial) for initial, final in ends])

    def __call__(self, q: Tensor, generator: torch.Generator) -> Tensor:
        """Return actions [B] given values [B, A]."""
        explores = torch.rand(len(q), generator=generator) < self._epsilons
        uniform = torch.randint(q.shape[-1], (len(q),), generator=generator)
        return torch.where(explores, uniform, q.argmax(dim=-1))


def from_epsilon_ladder(
    config: Any, network: Any, envs: Sequence[int] | None, num_envs: int, initial: float | None = None
) -> EpsilonGreedy:
    """Return the sampler of Q-learning actors: each environment has its own epsilon, and so has an evaluation.

    `initial`: where the actors' epsilons begin (`EpsilonGreedy`).
    """
    ladder = epsilon_ladder(config.epsilon, config.epsilon_alpha, num_envs)
    if envs is None:
        return EpsilonGreedy([config.evaluation_epsilon])
    return EpsilonGreedy([ladder[env] for env in envs], initial)
