"""Policy-gradient loss (Espeholt et al. 2018, section 4.2), and an entropy with epsilon in its logarithm."""

from __future__ import annotations

import torch
from torch import Tensor


def policy_gradient_loss(log_pi: Tensor, advantages: Tensor, *, epsilon: float = 0.0) -> Tensor:
    """Return -log pi(a_t|x_t) advantage_t per step, [T, B], whose descent direction is section 4.2's policy gradient.

    `log_pi` [T, B] is of the action taken. `advantages` [T, B] include the importance weight and are constants here
    (detached). `epsilon` > 0 is the epsilon-correction of section 5.2.2 (after Babaeizadeh et al. 2016): log(pi(a) +
    epsilon) instead of log pi(a). A step with advantage 0 adds 0, also if pi(a) is 0 and log pi(a) is -inf.
    """
    if epsilon > 0.0:
        log_pi = torch.log(log_pi.exp() + epsilon)
    advantages = advantages.detach()
    return -log_pi.masked_fill(advantages == 0, 0.0) * advantages


def entropy_with_epsilon(logits: Tensor, epsilon: float) -> Tensor:
    """Return -sum_a pi(a) log(pi(a) + epsilon), [...], of logits [..., A] (Babaeizadeh et al. 2017, section 5.3).

    With `epsilon` 0 it is the entropy, with more it may be slightly negative. A logit of -inf adds exactly 0.
    """
    pi = logits.softmax(dim=-1)
    log_pi = torch.log(pi + epsilon) if epsilon else logits.log_softmax(dim=-1).masked_fill(pi == 0, 0.0)
    return -(pi * log_pi).sum(dim=-1)
