"""Running statistics that belong to a policy: observations to mean 0 and variance 1, rewards to returns of variance 1.

They are buffers of the network, so every version of the parameters carries the statistics it was trained with, and a
checkpoint holds them. Only the learner changes them, from fresh experience; actors see them change with a version.
Practice and epsilon (1e-8): VecNormalize of OpenAI Baselines, listed as details 6 to 9 of the "continuous action
domains" part of Huang et al. 2022, "The 37 implementation details of PPO". The bound (10 there) is a key.
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
        """Adds samples [N, ...]; several learners add theirs together."""
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
        # In place: threads of the learner share these tensors.
        self.variance.mul_(1 - share).add_(variance * share + difference.square() * share * (1 - share))
        self.mean.add_(difference * share)
        self.count.add_(count)


class ObservationNormaliser(nn.Module):
    """(x - mean) / standard deviation, clipped to +-`clip`; until the first update mean 0 and deviation 1."""

    shift: Tensor
    scale: Tensor

    def __init__(self, shape: tuple[int, ...], clip: float | None) -> None:
        super().__init__()
        self.clip = math.inf if clip is None else clip
        self.moments = RunningMoments(shape)
        self.register_buffer("shift", torch.zeros(shape))
        self.register_buffer("scale", torch.ones(shape))

    def forward(self, observation: Tensor) -> Tensor:
        """[..., *shape] float32 -> the same shape."""
        return ((observation - self.shift) * self.scale).clamp(-self.clip, self.clip)

    @torch.no_grad()
    def update(self, observations: Tensor, reducer: Reducer) -> None:
        """Adds observations [N, *shape]."""
        self.moments.update(observations, reducer)
        self.shift.copy_(self.moments.mean)
        self.scale.copy_((self.moments.variance + EPSILON).rsqrt())


class RewardNormaliser(nn.Module):
    """Divides rewards by the standard deviation of the discounted return; the mean stays. Clipped to +-`clip`."""

    scale: Tensor

    def __init__(self, clip: float | None) -> None:
        super().__init__()
        self.clip = math.inf if clip is None else clip
        self.moments = RunningMoments(())
        self.register_buffer("scale", torch.ones(()))

    def forward(self, reward: Tensor) -> Tensor:
        """[...] float32 -> the same shape."""
        return (reward * self.scale).clamp(-self.clip, self.clip)

    @torch.no_grad()
    def update(self, discounted_returns: Tensor, reducer: Reducer) -> None:
        """Adds discounted returns [N] as they ran up at each step (see `ddrl.learners.normalisation`)."""
        self.moments.update(discounted_returns, reducer)
        self.scale.copy_((self.moments.variance + EPSILON).rsqrt())
