"""n-step Q-learning: double-Q targets, value rescaling, and priorities from temporal-difference errors."""

from __future__ import annotations

import torch
from torch import Tensor


def rescale(x: Tensor, epsilon: float) -> Tensor:
    """Return h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x (Pohlen et al. 2018; Kapturowski et al. 2019, section 2.3).

    Computed as x / (sqrt(|x| + 1) + 1) + epsilon x, which is equal and more precise for a small x.
    """
    return x / ((x.abs() + 1).sqrt() + 1) + epsilon * x


def unrescale(x: Tensor, epsilon: float) -> Tensor:
    """Return the inverse of `rescale`: sign(x) (((sqrt(1 + 4 epsilon (|x| + 1 + epsilon)) - 1) / (2 epsilon))^2 - 1).

    Computed as u^2 - 1 with u = 2 (|x| + 1 + epsilon) / (root + 1), which is equal but subtracts no near numbers; in
    float64, because u^2 - 1 loses half of the digits of a small x.
    """
    size = x.abs().double()
    root = (1 + 4 * epsilon * (size + 1 + epsilon)).sqrt()
    u = 2 * (size + 1 + epsilon) / (root + 1)
    return (x.sign() * (u.square() - 1)).to(x.dtype)


def n_step_targets(
    reward: Tensor, terminated: Tensor, ended: Tensor, next_value: Tensor, discount: float, n: int
) -> Tensor:
    """Return sum_{k<K} discount^k r_{t+k} + discount^K V(o_{t+K}), [T, B]; K is n, or less at an end or the last step.

    Args:
        reward: [T, B].
        terminated: [T, B] bool: nothing follows, V is 0.
        ended: [T, B] bool: no later step counts; if it is not `terminated`, V is that of the step after.
        next_value: [T+1, B], V(o_0) to V(o_T).
        discount: per step.
        n: at least 1.
    """
    length = reward.shape[0]
    times = torch.arange(length, device=reward.device).unsqueeze(-1)
    targets, going, scale = torch.zeros_like(reward), torch.ones_like(ended), torch.ones_like(reward)
    last = times.expand_as(ended)
    for k in range(n):
        here = (times + k).clamp(max=length - 1)
        going = going & (times + k < length)
        index = here.expand_as(ended)
        targets = targets + going * scale * reward.gather(0, index)
        last = torch.where(going, index, last)
        scale = torch.where(going, scale * discount, scale)
        going = going & ~ended.gather(0, index)
    bootstrap = next_value.gather(0, last + 1).masked_fill(terminated.gather(0, last), 0.0)
    return targets + scale * bootstrap


def double_q_values(online: Tensor, target: Tensor) -> Tensor:
    """Return Q_target(o, argmax_a Q_online(o, a)), [...], of values [..., A] (van Hasselt et al. 2016)."""
    return target.gather(-1, online.argmax(dim=-1, keepdim=True)).squeeze(-1)


def half_square(error: Tensor, bound: float | None) -> Tensor:
    """Return error^2 / 2, [...], which beyond `bound` goes on as a straight line (Huber's; Mnih et al. 2015, Methods).

    There its gradient stays within [-bound, bound]. None: it is a square everywhere.
    """
    if bound is None:
        return error.square() / 2
    size = error.abs()
    inside = size.clamp(max=bound)
    return inside * (size - inside / 2)


def taken(q: Tensor, action: Tensor) -> Tensor:
    """Return Q(o, a), [...], of values [..., A] and actions [...]."""
    return q.gather(-1, action.unsqueeze(-1)).squeeze(-1)


def mixed_priority(td_error: Tensor, valid: Tensor, eta: float) -> Tensor:
    """Return eta max_t |delta_t| + (1 - eta) mean_t |delta_t|, [B] (Kapturowski et al. 2019, section 2.3).

    `td_error` is [T, B]; `valid` [T, B] bool marks the steps that count, at least one of each column.
    """
    size = td_error.abs() * valid
    return eta * size.amax(dim=0) + (1 - eta) * size.sum(dim=0) / valid.sum(dim=0)
