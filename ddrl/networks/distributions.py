"""What the output of a policy head means: a categorical distribution, or a diagonal Gaussian.

`parameters` are what the head puts out: logits [..., A] of a categorical distribution over A actions, or the mean and
the log standard deviation [..., 2A] of a Gaussian over A dimensions. A Gaussian's action is not bounded: the adapter of
the environment clips it, so that log probabilities stay those of the distribution that was sampled (Schulman et al.
2017 and its implementations clip in the environment as well).
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


class Family(Protocol):
    """A family of distributions over actions; all results in float32, one number per leading index."""

    def log_probability(self, parameters: Tensor, action: Tensor) -> Tensor:
        """log p(action), or log density, [...]."""

    def entropy(self, parameters: Tensor) -> Tensor:
        """In nats (differential entropy of a Gaussian), [...]."""

    def kl(self, p: Tensor, q: Tensor) -> Tensor:
        """KL(p || q) in nats of two distributions by their parameters, [...]."""

    def sample(self, parameters: Tensor, generator: torch.Generator) -> Tensor:
        """An action for each leading index."""

    def mode(self, parameters: Tensor) -> Tensor:
        """The likeliest action."""


class Categorical:
    """Actions [...] int64.

    A logit of -inf makes an action impossible: an illegal one, or one that a saturated network rules out. It is the
    distribution over the other actions then. The impossible one is never sampled, its log probability is -inf, it adds
    exactly 0 to entropy and divergence, and no gradient reaches its logit through them or through the log probability
    of another. At least one logit must be finite, else everything is NaN.
    """

    def log_probability(self, parameters: Tensor, action: Tensor) -> Tensor:
        """log pi(a), [...], of logits [..., A] and action [...]."""
        return torch.log_softmax(parameters, dim=-1).gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self, parameters: Tensor) -> Tensor:
        """-sum_a pi(a) log pi(a); 0 log 0 is 0."""
        log_pi = torch.log_softmax(parameters, dim=-1)
        return -_mean_under(log_pi, log_pi)

    def kl(self, p: Tensor, q: Tensor) -> Tensor:
        """sum_a p(a) (log p(a) - log q(a)); infinite where an action is possible under p alone."""
        log_p, log_q = torch.log_softmax(p, dim=-1), torch.log_softmax(q, dim=-1)
        return _mean_under(log_p, log_p - log_q)

    def sample(self, parameters: Tensor, generator: torch.Generator) -> Tensor:
        """Argmax of p / Exponential(1) noise."""
        noise = torch.empty_like(parameters).exponential_(generator=generator)
        pi = parameters.softmax(-1)
        return (pi / noise).masked_fill(pi == 0, -1.0).argmax(-1)  # noise may be 0, and 0 / 0 would be the largest

    def mode(self, parameters: Tensor) -> Tensor:
        """Argmax of the logits."""
        return parameters.argmax(-1)


def _mean_under(log_p: Tensor, values: Tensor) -> Tensor:
    """sum_a p(a) values(a), [...]; an action that p rules out adds 0 and has no gradient, whatever its value."""
    p = log_p.exp()
    return (p * values.masked_fill(p == 0, 0.0)).sum(dim=-1)


class Gaussian:
    """Actions [..., A] float32, independent between dimensions."""

    def log_probability(self, parameters: Tensor, action: Tensor) -> Tensor:
        """Sum over dimensions of log N(a; mean, std^2)."""
        mean, log_std = parameters.chunk(2, dim=-1)
        scaled = (action - mean) * torch.exp(-log_std)
        return -(0.5 * scaled.square() + log_std + _LOG_SQRT_2PI).sum(dim=-1)

    def entropy(self, parameters: Tensor) -> Tensor:
        """Sum over dimensions of log std + (1 + log 2 pi) / 2."""
        log_std = parameters.chunk(2, dim=-1)[1]
        return (log_std + 0.5 + _LOG_SQRT_2PI).sum(dim=-1)

    def kl(self, p: Tensor, q: Tensor) -> Tensor:
        """Sum over dimensions of log(std_q / std_p) + (std_p^2 + (mean_p - mean_q)^2) / (2 std_q^2) - 1/2."""
        (mean_p, log_std_p), (mean_q, log_std_q) = p.chunk(2, dim=-1), q.chunk(2, dim=-1)
        difference = log_std_q - log_std_p
        squares = torch.exp(-2 * difference) + ((mean_p - mean_q) * torch.exp(-log_std_q)).square()
        return (difference + 0.5 * (squares - 1)).sum(dim=-1)

    def sample(self, parameters: Tensor, generator: torch.Generator) -> Tensor:
        """Mean + std x standard normal noise."""
        mean, log_std = parameters.chunk(2, dim=-1)
        return mean + log_std.exp() * torch.empty_like(mean).normal_(generator=generator)

    def mode(self, parameters: Tensor) -> Tensor:
        """The mean."""
        return parameters.chunk(2, dim=-1)[0]


CATEGORICAL = Categorical()
GAUSSIAN = Gaussian()
