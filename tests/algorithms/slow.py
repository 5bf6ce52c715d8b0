"""The papers' equations a second time, in scalar Python, for golden tests of whole losses."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ddrl.types import Unroll

Numbers = list[float]


def log_probability(parameters: Numbers, action: int | Numbers) -> float:
    """Of a categorical distribution by its logits (action: int), or of a Gaussian by means and log deviations."""
    if isinstance(action, int):
        return parameters[action] - _log_sum_exp(parameters)
    size = len(action)
    return sum(
        -0.5 * ((action[i] - parameters[i]) / math.exp(parameters[size + i])) ** 2
        - math.log(math.exp(parameters[size + i]) * math.sqrt(2 * math.pi))
        for i in range(size)
    )


def entropy(parameters: Numbers, continuous: bool) -> float:
    """-sum p log p, or the differential entropy log(std sqrt(2 pi e)) summed over dimensions."""
    if continuous:
        return sum(math.log(math.exp(log_std) * math.sqrt(2 * math.pi * math.e)) for log_std in _log_stds(parameters))
    return -sum(p * math.log(p) for p in _softmax(parameters))


def kl(p: Numbers, q: Numbers, continuous: bool) -> float:
    """KL(p || q)."""
    if not continuous:
        return sum(x * math.log(x / y) for x, y in zip(_softmax(p), _softmax(q), strict=True))
    size, total = len(p) // 2, 0.0
    for i in range(size):
        std_p, std_q = math.exp(p[size + i]), math.exp(q[size + i])
        total += math.log(std_q / std_p) + (std_p**2 + (p[i] - q[i]) ** 2) / (2 * std_q**2) - 0.5
    return total


def surrogate(ratio: float, advantage: float, epsilon: float) -> float:
    """Schulman et al. 2017, eq. 7, to be maximised."""
    return min(ratio * advantage, min(max(ratio, 1 - epsilon), 1 + epsilon) * advantage)


@dataclass(frozen=True)
class Column:
    """One column of an unroll as plain numbers."""

    actions: list[int | Numbers]
    mu: list[Numbers]
    rewards: Numbers
    terminated: list[bool]
    valid: list[bool]

    @property
    def steps(self) -> list[int]:
        """The valid steps."""
        return [t for t, valid in enumerate(self.valid) if valid]

    def advantages(
        self, values: Numbers, weights: Numbers, *, discount: float, gae_lambda: float, rho_bar: float, c_bar: float
    ) -> Numbers:
        """V-trace GAE as a sum of products; `values` [T + 1], `weights` [T] are importance weights."""
        length = len(self.rewards)
        gamma = [0.0 if terminated else discount for terminated in self.terminated]
        rho = [min(rho_bar, weights[t]) if self.valid[t] else 0.0 for t in range(length)]
        c = [gae_lambda * min(c_bar, weights[t]) if self.valid[t] else 0.0 for t in range(length)]
        delta = [self.rewards[t] + gamma[t] * values[t + 1] - values[t] for t in range(length)]
        return [
            sum(math.prod(gamma[i] * c[i] for i in range(t, k)) * rho[k] * delta[k] for k in range(t, length))
            for t in range(length)
        ]


def columns_of(batch: Unroll) -> list[Column]:
    """Every column of an unroll."""
    return [
        Column(
            actions=batch.action[:, b].tolist(),
            mu=batch.distribution[:, b].double().tolist(),
            rewards=batch.reward[:, b].double().tolist(),
            terminated=batch.terminated[:, b].tolist(),
            valid=batch.valid[:, b].tolist(),
        )
        for b in range(batch.batch_size)
    ]


def _softmax(logits: Numbers) -> Numbers:
    return [math.exp(logit - _log_sum_exp(logits)) for logit in logits]


def _log_sum_exp(logits: Numbers) -> float:
    return math.log(sum(math.exp(logit) for logit in logits))


def _log_stds(parameters: Numbers) -> Numbers:
    return parameters[len(parameters) // 2 :]
