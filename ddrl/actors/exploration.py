"""Epsilon-greedy actions, with an epsilon for each environment, which may fall at the beginning; Gaussian noise."""

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


def noise_ladder(first: float, last: float | None, num_envs: int) -> list[float]:
    """Return first + (last - first) i / (N - 1) for i = 0 .. N - 1; `last` None or N = 1: `first` alone.

    From 1/32 to 1 over 32 environments these are 1/32, 2/32, ..., 1 (Tassa et al. 2018).
    """
    end = first if last is None else last
    return [first + (end - first) * i / max(1, num_envs - 1) for i in range(num_envs)]


class GaussianNoise:
    """Adds noise of deviation `sigmas[i]` in environment i to a deterministic policy's actions."""

    def __init__(self, sigmas: Sequence[float]) -> None:
        self.sigmas = torch.tensor(sigmas, dtype=torch.float32).unsqueeze(-1)

    def __call__(self, distribution: Tensor, generator: torch.Generator) -> Tensor:
        """Return actions [B, A] within [-1, 1] given distributions [B, 2A], whose means the policy has chosen."""
        mean = distribution.chunk(2, dim=-1)[0]
        noise = torch.empty_like(mean).normal_(generator=generator)
        return (mean + self.sigmas * noise).clamp(-1.0, 1.0)


def from_noise_ladder(config: Any, envs: Sequence[int] | None, num_envs: int) -> GaussianNoise:
    """Return the sampler of actors with a deterministic policy: each environment has its sigma, an evaluation none."""
    ladder = noise_ladder(config.noise, config.largest_noise, num_envs)
    return GaussianNoise([0.0] if envs is None else [ladder[env] for env in envs])
