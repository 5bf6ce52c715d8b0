"""Clipped surrogate objectives of PPO, IMPACT (Luo et al. 2020) and APPO (Petrenko et al. 2020), per step, [...].

Only the learner's own policy and values get a gradient.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from ddrl.errors import unknown_name
from ddrl.losses.actor_critic import value_loss

Ratio = Literal["worker", "target", "target_worker_clipping"]
RATIOS: tuple[Ratio, ...] = ("worker", "target", "target_worker_clipping")
ClipBounds = Literal["symmetric", "reciprocal"]
"""Between which bounds a ratio is not clipped: [1 - epsilon, 1 + epsilon], or [1 / (1 + epsilon), 1 + epsilon]."""
_MODERATE = 80.0
"""Exponents whose exponential is neither 0 nor infinite in float32, which ends at exp(88.7)."""


def importance_ratio(kind: str, log_pi: Tensor, log_worker: Tensor, log_target: Tensor, rho: float) -> Tensor:
    """Return the ratio that the surrogate clips, [...] (Luo et al. 2020, section 3.1 and the ablation of its ratios).

    | kind | name | ratio |
    |---|---|---|
    | worker | R1 | pi / pi_worker |
    | target | R2 | pi / pi_target |
    | target_worker_clipping | R3 | min(pi_worker / pi_target, rho) pi / pi_worker |

    R3 is computed as min(R2, rho R1), which is equal and does not overflow where a bound holds. Which of R1 and R2 is
    which could not be checked against the labels in the paper's figure.

    Args:
        kind: one of `RATIOS`.
        log_pi: log pi(a|x) of the learned policy, [...]; the only argument that gets a gradient.
        log_worker: the same of the policy that acted, [...].
        log_target: the same of the target network, [...].
        rho: the bound of pi_worker / pi_target; 2.0 in the paper.

    Raises `UserError` on an unknown kind. A ratio beyond the range of its type is infinite. If pi(a|x) is 0 (log pi is
    -inf), every ratio is 0 and gets no gradient, also if the target network's is 0 too.
    """
    if kind not in RATIOS:
        raise unknown_name("ratio", kind, RATIOS)

    def over(log_mu: Tensor) -> Tensor:
        return log_pi - log_mu.detach()

    if kind == "worker":
        exponent = over(log_worker)
    elif kind == "target":
        exponent = over(log_target)
    else:
        exponent = torch.minimum(over(log_target), math.log(rho) + over(log_worker))
    if not log_pi.is_cuda and bool((exponent.detach().abs() < _MODERATE).all()):
        return exponent.exp()  # far cheaper; on a GPU it would not pay to wait for the answer
    return _exp(exponent.masked_fill(log_pi == -math.inf, -math.inf))


def bounded_ratio(ratio: Tensor, max_ratio: float | None) -> Tensor:
    """Return ratios [...] within [1 / max_ratio, max_ratio]; None: as they are. No gradient flows outside."""
    return ratio if max_ratio is None else ratio.clamp(1.0 / max_ratio, max_ratio)


def clipped_surrogate(
    ratio: Tensor, advantages: Tensor, clip_epsilon: float | None, clip_bounds: ClipBounds = "symmetric"
) -> Tensor:
    """Return -min(r A, clip(r, low, 1 + epsilon) A), [...] (Schulman et al. 2017, eq. 7, as a loss); None: -r A.

    The lower bound is 1 - epsilon, or with `reciprocal` bounds 1 / (1 + epsilon), which is positive for every epsilon
    (alex-petrenko/sample-factory, learner.py). `advantages` [...] are constants here (detached). The minimum is taken
    of the ratio, by the sign of the advantage: min(r, 1 + epsilon) A where A >= 0, max(r, low) A where A < 0. So an
    infinite ratio that is clipped gives a finite loss, and a step with advantage 0 gives 0.
    """
    if clip_epsilon is None:
        return -ratio * advantages.detach()
    advantages, low = advantages.detach(), _lower_bound(clip_epsilon, clip_bounds)
    bounded = torch.where(advantages >= 0, ratio.clamp(max=1.0 + clip_epsilon), ratio.clamp(min=low))
    return -bounded * advantages


def clip_fraction(ratio: Tensor, clip_epsilon: float, clip_bounds: ClipBounds = "symmetric") -> Tensor:
    """Return 1 where the ratio lies outside the bounds of `clipped_surrogate`, else 0, [...]; take the mean."""
    ratio = ratio.detach()
    if clip_bounds == "symmetric":
        return ((ratio - 1.0).abs() > clip_epsilon).to(ratio.dtype)
    outside = (ratio < _lower_bound(clip_epsilon, clip_bounds)) | (ratio > 1.0 + clip_epsilon)
    return outside.to(ratio.dtype)


def _lower_bound(clip_epsilon: float, clip_bounds: ClipBounds) -> float:
    return 1.0 - clip_epsilon if clip_bounds == "symmetric" else 1.0 / (1.0 + clip_epsilon)


def clipped_value_loss(values: Tensor, old_values: Tensor, targets: Tensor, clip: float | None) -> Tensor:
    """Return max((V - v)^2, (V_clipped - v)^2) / 2, [...], where V_clipped stays within `clip` of `old_values`.

    Not in the PPO paper, but in the authors' code (openai/baselines, ppo2/model.py: `vpredclipped`). `clip` None means
    `value_loss`. `old_values` and `targets` [...] are constants here (detached).
    """
    plain = value_loss(values, targets)
    if clip is None:
        return plain
    old_values = old_values.detach()
    near = old_values + (values - old_values).clamp(-clip, clip)
    return torch.maximum(plain, value_loss(near, targets))


def adapted_kl_cost(kl_cost: float, kl: float, kl_target: float) -> float:
    """Return the coefficient of the KL penalty after an update whose mean divergence was `kl` nats.

    The adaptive penalty of Schulman et al. 2017, section 4, with RLlib's constants (ray-project/ray, rllib, PPO:
    `update_kl`): 1.5 times as much when kl > 2 kl_target, half when kl < kl_target / 2. The paper's own constants are
    2 times when kl > 1.5 kl_target and half when kl < kl_target / 1.5.
    """
    if kl > 2.0 * kl_target:
        return 1.5 * kl_cost
    return 0.5 * kl_cost if kl < 0.5 * kl_target else kl_cost


class _Exponential(torch.autograd.Function):
    """exp with gradient 0 where the incoming gradient is 0, also if exp overflows (0 * inf would be NaN)."""

    @staticmethod
    def forward(ctx: Any, exponent: Tensor) -> Tensor:
        result = exponent.exp()
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (result,) = ctx.saved_tensors
        return torch.where(gradient == 0, torch.zeros_like(gradient), gradient * result)


def _exp(exponent: Tensor) -> Tensor:
    result: Tensor = _Exponential.apply(exponent)  # type: ignore[no-untyped-call]
    return result
