"""V-trace GAE-lambda: generalised advantage estimation (Schulman et al. 2016) corrected for the policy lag.

Luo et al. 2020 (IMPACT), section 3.1, put the weights of V-trace (Espeholt et al. 2018) into GAE-lambda. Time
alignment, dead steps and ends are those of `ddrl.losses.vtrace`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ddrl.losses.vtrace import vtrace


class Estimates(NamedTuple):
    """What the surrogate weighs with and what the value regresses to; no gradient flows through either."""

    advantages: Tensor  # [T, B]; 0 on dead steps
    value_targets: Tensor  # [T, B]: V(x_t) + advantage; equals V(x_t) on dead steps


@torch.no_grad()
def vtrace_gae(
    values: Tensor,
    bootstrap_value: Tensor,
    rewards: Tensor,
    discounts: Tensor,
    log_rhos: Tensor,
    *,
    valid: Tensor | None = None,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    gae_lambda: float = 1.0,
) -> Estimates:
    """A_t = sum_{k >= t} (prod_{i=t}^{k-1} gamma_i lambda c_i) rho_k (r_k + gamma_k V(x_{k+1}) - V(x_k)).

    This is v_t - V(x_t) of V-trace with the lambda of its remark 2; rho_k = min(rho_bar, w_k), c_i = min(c_bar, w_i),
    where w is the importance weight whose logarithm is `log_rhos` (IMPACT: target policy / worker policy). With
    `log_rhos` 0 and bounds of at least 1 it is GAE (Schulman et al. 2016, eq. 16) over the T steps of the unroll,
    which PPO uses (Schulman et al. 2017, eq. 11); with lambda 1 besides, the n-step advantage.

    Args:
        values: V(x_t), [T, B].
        bootstrap_value: V(x_T), [B].
        rewards: reward of transition t, [T, B].
        discounts: gamma, or 0 where transition t terminated, [T, B].
        log_rhos: logarithm of the importance weight of step t, [T, B].
        valid: False on dead steps, [T, B] bool; None if there are none.
        rho_bar: bound of the weight of each temporal difference.
        c_bar: bound of the weights of the trace.
        gae_lambda: the lambda of GAE, 0 to 1.
    """
    targets = vtrace(
        values,
        bootstrap_value,
        rewards,
        discounts,
        log_rhos,
        valid=valid,
        rho_bar=rho_bar,
        c_bar=c_bar,
        lambda_=gae_lambda,
    )
    return Estimates(targets - values, targets)
