"""Distributions over actions: categorical, and diagonal Gaussian.

`parameters` are the outputs of the policy head: logits [..., A] of a categorical distribution over A actions, or means
and log standard deviations [..., 2A] of a Gaussian over A dimensions. Actions of a Gaussian are not bounded: the
environment clips them, so log probabilities stay those of the sampled distribution (as Schulman et al. 2017).

Both classes have the same methods. Results are float32, one number per leading index, [...]; entropy (of a Gaussian the
differential entropy) and KL(p || q) of two distributions, given their parameters, are in nats.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


class Categorical:
    """A distribution over A actions; actions [...] are int64.

    A logit of -inf makes an action impossible: it is never sampled, its log probability is -inf, it adds exactly 0 to
    entropy and divergence, and no gradient reaches its logit through them or through the log probability of another
    action. At least one logit must be finite, else everything is NaN.
    """

    def log_probability(self, parameters: Tensor, action: Tensor) -> Tensor:
        """Return log pi(a), [...], of logits [..., A] and actions [...]."""
        return torch.log_softmax(parameters, dim=-1).gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self, parameters: Tensor) -> Tensor:
        """Return -sum_a pi(a) log pi(a); 0 log 0 is 0."""
        log_pi = torch.log_softmax(parameters, dim=-1)
        return -_mean_under(log_pi, log_pi)

    def kl(self, p: Tensor, q: Tensor) -> Tensor:
        """Return sum_a p(a) (log p(a) - log q(a)); infinite if an action is possible under p but not under q."""
        log_p, log_q = torch.log_softmax(p, dim=-1), torch.log_softmax(q, dim=-1)
        return _mean_under(log_p, log_p - log_q)

    def sample(self, parameters: Tensor, generator: torch.Generator) -> Tensor:
        """Return the argmax of pi / Exponential(1) noise."""
        noise = torch.empty_like(parameters).exponential_(generator=generator)
        pi = parameters.softmax(-1)
        return (pi / noise).masked_fill(pi == 0, -1.0).argmax(-1)  # noise may be 0, and 0 / 0 would be the largest

    def mode(self, parameters: Tensor, generator: torch.Generator) -> Tensor:
        """Return the most probable action, the first of equal ones; `generator` is not used."""
        return parameters.argmax(-1)


def _mean_under(log_p: Tensor, values: Tensor) -> Tensor:
    """Return sum_a p(a) values(a), [...]; an action of probability 0 adds 0 and gets no gradient."""
    p = log_p.exp()
    return (p * values.masked_fill(p == 0, 0.0)).sum(dim=-1)


class Gaussian:
    """A distribution over actions [..., A] float32 whose dimensions are independent."""

    def log_probability(self, parameters: Tensor, action: Tensor) -> Tensor:
        """Return the sum over dimensions of log N(a; mean, std^2)."""
        mean, log_std = parameters.chunk(2, dim=-1)
        scaled = (action - mean) * torch.exp(-log_std)
        return -(0.5 * scaled.square() + log_std + _LOG_SQRT_2PI).sum(dim=-1)

    def entropy(self, parameters: Tensor) -> Tensor:
        """Return the sum over dimensions of log std + (1 + log 2 pi) / 2."""
        log_std = parameters.chunk(2, dim=-1)[1]
        return (log_std + 0.5 + _LOG_SQRT_2PI).sum(dim=-1)

    def kl(self, p: Tensor, q: Tensor) -> Tensor:
        """Return, summed over dimensions, log(std_q / std_p) + (std_p^2 + (mean_p - mean_q)^2) / (2 std_q^2) - 1/2."""
        (mean_p, log_std_p), (mean_q, log_std_q) = p.chunk(2, dim=-1), q.chunk(2, dim=-1)
        difference = log_std_q - log_std_p
        squares = torch.exp(-2 * difference) + ((mean_p - mean_q) * torch.exp(-log_std_q)).square()
        return (difference + 0.5 * (squares - 1)).sum(dim=-1)

    def sample(self, parameters: Tensor, generator: torch.Generator) -> Tensor:
        """Return mean + std x standard normal noise."""
        mean, log_std = parameters.chunk(2, dim=-1)
        return mean + log_std.exp() * torch.empty_like(mean).normal_(generator=generator)

    def mode(self, parameters: Tensor, generator: torch.Generator) -> Tensor:
        """Return the mean; `generator` is not used."""
        return parameters.chunk(2, dim=-1)[0]


Family = Categorical | Gaussian
CATEGORICAL = Categorical()
GAUSSIAN = Gaussian()
