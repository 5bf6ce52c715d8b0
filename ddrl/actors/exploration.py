"""How a policy acts on what its network puts out: drawn from a distribution, or greedy but for a part epsilon."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Sampler = Callable[[Tensor, torch.Generator], Tensor]
"""(what the network puts out [B, P], generator) -> actions [B] or [B, A]."""


def from_distribution(config: Any, network: Any, envs: Sequence[int] | None, num_envs: int) -> Sampler:
    """Of the actor-critic algorithms: drawn from the network's own distribution, in training and in evaluation."""
    sample: Sampler = network.family.sample
    return sample


def epsilon_ladder(epsilon: float, alpha: float, num_envs: int) -> list[float]:
    """epsilon^(1 + alpha i / (N - 1)) for i = 0 .. N - 1 (Horgan et al. 2018, section 4.1); one alone has the first."""
    return [epsilon ** (1 + alpha * i / max(1, num_envs - 1)) for i in range(num_envs)]


class EpsilonGreedy:
    """The best action; with probability `epsilons[i]` of environment i one drawn uniformly from all."""

    def __init__(self, epsilons: Sequence[float]) -> None:
        self._epsilons = torch.tensor(epsilons)

    def __call__(self, q: Tensor, generator: torch.Generator) -> Tensor:
        """Actions [B] of values [B, A]."""
        explores = torch.rand(len(q), generator=generator) < self._epsilons
        uniform = torch.randint(q.shape[-1], (len(q),), generator=generator)
        return torch.where(explores, uniform, q.argmax(dim=-1))
