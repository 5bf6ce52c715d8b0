"""Normalisation of observations and rewards by running statistics, which are buffers of the network.

So every version of the parameters, and every checkpoint, holds the statistics it was trained with. Only the learner
updates them, from fresh experience. Method and epsilon (1e-8): VecNormalize of OpenAI Baselines (Huang et al. 2022, "37
implementation details of PPO", continuous details 6 to 9). The bound (10 there) is a configuration key.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ddrl.interfaces import Reducer

EPSILON = 1e-8


class RunningMoments(nn.Module):
    """Count, mean and variance of all samples [N, ...] seen so far, in float64 (update of Chan et al. 1979)."""

    count: Tensor
    mean: Tensor
    variance: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(shape, dtype=torch.float64))

    @torch.no_grad()
    def update(self, samples: Tensor, reducer: Reducer) -> None:
        """Add samples [N, ...] of this learner and, by `reducer`, those of all others."""
        samples = samples.to(self.mean.device, torch.float64)
        count = torch.tensor(float(len(samples)), dtype=torch.float64, device=samples.device)
        total, squares = samples.sum(0), samples.square().sum(0)
        reducer.sum_([count, total, squares])
        if count == 0:
            return
        mean = total / count
        variance = (squares / count - mean.square()).clamp(min=0)
        share = count / (self.count + count)
        difference = mean - self.mean
        # In place, because threads of the learner share these tensors.
        self.variance.mul_(1 - share).add_(variance * share + difference.square() * share * (1 - share))
        self.mean.add_(difference * share)
        self.count.add_(count)


class ObservationNormaliser(nn.Module):
    """Maps x to (x - mean) / standard deviation, clipped to +-`clip`; at first mean 0 and deviation 1."""

    shift: Tensor
    scale: Tensor

    def __init__(self, shape: tuple[int, ...], clip: float | None) -> None:
        super().__init__()
        self.clip = math.inf if clip is None else clip
        self.moments = RunningMoments(shape)
        self.register_buffer("shift", torch.zeros(shape))
        self.register_buffer("scale", torch.ones(shape))

    def forward(self, observation: Tensor) -> Tensor:
        return (observation - self.shift).mul_(self.scale).clamp_(-self.clip, self.clip)

    @torch.no_grad()
    def update(self, samples: Tensor, reducer: Reducer) -> None:
        """Add observations [N, *shape]."""
        self.moments.update(samples, reducer)
        self.shift.copy_(self.moments.mean)
        self.scale.copy_((self.moments.variance + EPSILON).rsqrt())


class ReturnScale(nn.Module):
    """The running standard deviation of returns, in which a network's values are measured; at first 1.

    Method: Tianshou's A2C (Weng et al. 2022), `return_scaling`. The mean stays.
    """

    deviation: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.moments = RunningMoments(())
        self.register_buffer("deviation", torch.ones(()))

    @torch.no_grad()
    def update(self, samples: Tensor, reducer: Reducer) -> None:
        """Add returns [N] as the task counts them, of values and rewards that are not scaled."""
        self.moments.update(samples, reducer)
        self.deviation.copy_((self.moments.variance + EPSILON).sqrt())


class RewardNormaliser(nn.Module):
    """Divides rewards by the standard deviation of the discounted return, then clips them to +-`clip`."""

    scale: Tensor

    def __init__(self, clip: float | None) -> None:
        super().__init__()
        self.clip = math.inf if clip is None else clip
        self.moments = RunningMoments(())
        self.register_buffer("scale", torch.ones(()))

    def forward(self, reward: Tensor) -> Tensor:
        return (reward * self.scale).clamp(-self.clip, self.clip)

    @torch.no_grad()
    def update(self, samples: Tensor, reducer: Reducer) -> None:
        """Add discounted returns [N], one of each step (see `ddrl.learners.normalisation`)."""
        self.moments.update(samples, reducer)
        self.scale.copy_((self.moments.variance + EPSILON).rsqrt())
