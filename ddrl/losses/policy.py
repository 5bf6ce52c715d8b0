"""Policy-gradient loss (Espeholt et al. 2018, section 4.2), and an entropy whose logarithm cannot overflow."""

from __future__ import annotations

import torch
from torch import Tensor


def policy_gradient_loss(log_pi: Tensor, advantages: Tensor, *, epsilon: float = 0.0) -> Tensor:
    """-log pi(a_t|x_t) advantage_t per step, [T, B]; its descent direction is section 4.2's policy gradient.

    `log_pi` [T, B] is of the action taken. The importance weight is already in `advantages` [T, B], which are constants
    here (detached). `epsilon` > 0 is the epsilon-correction of section 5.2.2 (after Babaeizadeh et al. 2016):
    log(pi(a) + epsilon) instead of log pi(a). A step without advantage adds 0, also where pi rules its action
    out: there the importance weight is 0, and log pi(a) is -inf.
    """
    if epsilon > 0.0:
        log_pi = torch.log(log_pi.exp() + epsilon)
    advantages = advantages.detach()
    return -log_pi.masked_fill(advantages == 0, 0.0) * advantages


def entropy_with_epsilon(logits: Tensor, epsilon: float) -> Tensor:
    """-sum_a pi(a) log(pi(a) + epsilon) per step, [...] of logits [..., A] (Babaeizadeh et al. 2017, section 5.3).

    With `epsilon` 0 the entropy; with more it may be a little below 0. An action with a logit of -inf adds exactly 0.
    """
    pi = logits.softmax(dim=-1)
    log_pi = torch.log(pi + epsilon) if epsilon else logits.log_softmax(dim=-1).masked_fill(pi == 0, 0.0)
    return -(pi * log_pi).sum(dim=-1)
