"""V-trace GAE-lambda (Luo et al. 2020, section 3.1): generalised advantage estimation corrected for the policy lag."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ddrl.losses.vtrace import vtrace


class Estimates(NamedTuple):
    """Weights of the surrogate and targets of the value; no gradient flows through either."""

    advantages: Tensor  # [T, B]; 0 on dead steps
    value_targets: Tensor  # [T, B]: V(x_t) + advantage; equals V(x_t) on dead steps


@torch.no_grad()
def vtrace_gae(values: Tensor, *steps: Tensor, gae_lambda: float = 1.0, **options: Any) -> Estimates:
    """Return A_t = sum_{k >= t} (prod_{i=t}^{k-1} gamma_i lambda c_i) rho_k (r_k + gamma_k V(x_{k+1}) - V(x_k)).

    This is v_t - V(x_t) of V-trace with the lambda of its remark 2; rho_k = min(rho_bar, w_k), c_i = min(c_bar, w_i),
    where w is the importance weight whose logarithm is `log_rhos` (IMPACT: target policy / worker policy). With
    `log_rhos` 0 and bounds of at least 1 it is GAE (Schulman et al. 2016, eq. 16) over the T steps of the unroll, which
    PPO uses (Schulman et al. 2017, eq. 11); with `gae_lambda` 1 it is then the n-step advantage.

    `steps` and `options` are the other arguments of `ddrl.losses.vtrace.vtrace`.
    """
    targets = vtrace(values, *steps, lambda_=gae_lambda, **options)
    return Estimates(targets - values, targets)
