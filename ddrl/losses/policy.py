"""Policy-gradient loss and entropy of a categorical policy (Espeholt et al. 2018, section 4.2)."""

from __future__ import annotations

import torch
from torch import Tensor


def log_probability(logits: Tensor, action: Tensor) -> Tensor:
    """log pi(a), [...], of logits [..., A] and action [...] int64."""
    return torch.log_softmax(logits, dim=-1).gather(-1, action.unsqueeze(-1)).squeeze(-1)


def policy_gradient_loss(logits: Tensor, action: Tensor, advantages: Tensor, *, epsilon: float = 0.0) -> Tensor:
    """-log pi(a_t|x_t) advantage_t per step, [T, B]; its descent direction is section 4.2's policy gradient.

    The importance weight is already in `advantages` [T, B], which are constants here (detached). `epsilon` > 0 is the
    epsilon-correction of section 5.2.2 (after Babaeizadeh et al. 2016): log(pi(a) + epsilon) instead of log pi(a).
    """
    log_pi = log_probability(logits, action)
    if epsilon > 0.0:
        log_pi = torch.log(log_pi.exp() + epsilon)
    return -log_pi * advantages.detach()


def entropy(logits: Tensor) -> Tensor:
    """-sum_a pi(a) log pi(a) in nats, [...], of logits [..., A]."""
    log_pi = torch.log_softmax(logits, dim=-1)
    return -(log_pi.exp() * log_pi).sum(dim=-1)
