"""n-step returns of an unroll (Mnih et al. 2016, Algorithm S3)."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def n_step_returns(
    values: Tensor, bootstrap_value: Tensor, rewards: Tensor, discounts: Tensor, valid: Tensor | None = None
) -> Tensor:
    """R_t = r_t + gamma_t R_{t+1} with R_T = V(x_T), [T, B]: the returns of T, T - 1, ..., 1 steps.

    Where an episode was cut, the next step is dead and R bootstraps from the value there, that of the episode's own
    final observation (see `ddrl.types`); where it terminated, `discounts` is 0. On a dead step R_t is V(x_t).

    Args:
        values: V(x_t), [T, B].
        bootstrap_value: V(x_T), [B].
        rewards: reward of transition t, [T, B].
        discounts: gamma, or 0 where transition t terminated, [T, B].
        valid: False on dead steps, [T, B] bool; None if there are none.
    """
    valid = torch.ones_like(rewards, dtype=torch.bool) if valid is None else valid
    returns = torch.empty_like(rewards)
    following = bootstrap_value
    for t in range(len(rewards) - 1, -1, -1):
        following = torch.where(valid[t], rewards[t] + discounts[t] * following, values[t])
        returns[t] = following
    return returns
