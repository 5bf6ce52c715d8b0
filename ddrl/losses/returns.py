"""n-step returns of an unroll (Mnih et al. 2016, Algorithm S3)."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def n_step_returns(
    values: Tensor, bootstrap_value: Tensor, rewards: Tensor, discounts: Tensor, valid: Tensor | None = None
) -> Tensor:
    """Return R_t = r_t + gamma_t R_{t+1} with R_T = V(x_T), [T, B]: the returns of T, T - 1, ..., 1 steps.

    If an episode was truncated, the next step is dead and R bootstraps from its value, that of the episode's own final
    observation (see `ddrl.types`). On a dead step R_t is V(x_t). Arguments as in `ddrl.losses.vtrace.vtrace`.
    """
    valid = torch.ones_like(rewards, dtype=torch.bool) if valid is None else valid
    returns, following = [], bootstrap_value
    steps = zip(*(part.unbind() for part in (valid, rewards, discounts, values)), strict=True)
    for valid_now, reward, discount, value in reversed(list(steps)):
        following = torch.where(valid_now, reward + discount * following, value)
        returns.append(following)
    return torch.stack(returns[::-1])
