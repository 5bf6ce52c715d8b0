"""Policy-gradient and value loss per step, and their sum over time and batch (Espeholt et al. 2018)."""

from __future__ import annotations

import math

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


def symmetric_kl_to_uniform(logits: Tensor, bound: float) -> Tensor:
    """Return min(bound, (KL(pi || u) + KL(u || pi)) / 2), [...] nats, of logits [..., A]; u is the uniform policy.

    The exploration term of alex-petrenko/sample-factory (`symmetric_kl_with_uniform_prior`); 0 only for the uniform
    policy. Beyond the bound, as where an action is impossible, no gradient flows.
    """
    log_pi, log_u = logits.log_softmax(dim=-1), -math.log(logits.shape[-1])
    pi, apart = log_pi.exp(), log_pi - log_u
    forward = (pi * apart.masked_fill(pi == 0, 0.0)).sum(dim=-1)
    return (0.5 * (forward - apart.mean(dim=-1))).clamp(max=bound)


def value_loss(values: Tensor, targets: Tensor) -> Tensor:
    """Return (v_t - V(x_t))^2 / 2 per step, [T, B]; targets are constants here (detached).

    With the half, the descent direction is (v_t - V) grad V, the update that section 4.2 states; the "baseline loss
    scaling" of 0.5 (Tables D.3 and G.1) multiplies it once more. The authors' code does the same
    (google-deepmind/scalable_agent, experiment.py: `compute_baseline_loss` and `baseline_cost`).
    """
    return 0.5 * (targets.detach() - values).square()


def masked_sum(loss: Tensor, valid: Tensor) -> Tensor:
    """Return the sum of losses [T, B] over time and columns without dead steps (`valid` [T, B] bool is False).

    The paper sums "across the batch and time dimensions" (caption of Table D.1).
    """
    return torch.where(valid, loss, torch.zeros_like(loss)).sum()
