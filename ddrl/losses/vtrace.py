"""V-trace targets, and the three other corrections of Table 2 (Espeholt et al. 2018, sections 4 and 5.2.2).

Tensors are time-major, [T, B]; step t pairs V(x_t) with the reward and discount of the transition that leaves x_t. Time
alignment, dead steps and ends are those of `ddrl.types`: `discounts` is gamma, and 0 only where the transition
*terminated*. A truncated transition keeps gamma and is followed by a dead step at its own final observation, where v =
V: so the truncated step bootstraps from V of that observation, never from the next episode.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ddrl.errors import unknown_name

Correction = Literal["v_trace", "one_step_is", "epsilon_correction", "no_correction"]
CORRECTIONS: tuple[Correction, ...] = ("v_trace", "one_step_is", "epsilon_correction", "no_correction")


class Targets(NamedTuple):
    """Targets of the value and weights of the policy gradient; no gradient flows through either."""

    vs: Tensor  # [T, B]: target of V(x_t); equals V(x_t) on dead steps
    pg_advantages: Tensor  # [T, B]: weight of grad log pi(a_t | x_t); 0 on dead steps


@torch.no_grad()
def vtrace(
    values: Tensor,
    bootstrap_value: Tensor,
    rewards: Tensor,
    discounts: Tensor,
    log_rhos: Tensor,
    *,
    valid: Tensor | None = None,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    lambda_: float = 1.0,
) -> Tensor:
    """Return the V-trace targets v_t, [T, B] (eq. 1, by the recursion of remark 1, with the lambda of remark 2).

    v_t = V(x_t) + delta_t V + gamma_t c_t (v_{t+1} - V(x_{t+1})) with
    delta_t V = rho_t (r_t + gamma_t V(x_{t+1}) - V(x_t)), rho_t = min(rho_bar, pi/mu), c_t = lambda min(c_bar, pi/mu).
    A dead step has delta = c = 0, hence v = V.

    Args:
        values: V(x_t), [T, B].
        bootstrap_value: V(x_T), [B].
        rewards: reward of transition t, [T, B].
        discounts: gamma, or 0 where transition t terminated, [T, B].
        log_rhos: log pi(a_t|x_t) - log mu(a_t|x_t), [T, B].
        valid: False on dead steps, [T, B] bool; None if there are none.
    """
    rhos = _importance_weights(log_rhos, valid)
    clipped_rhos, cs = rhos.clamp(max=rho_bar), lambda_ * rhos.clamp(max=c_bar)
    deltas = clipped_rhos * (rewards + discounts * _following(values, bootstrap_value) - values)
    decays = discounts * cs
    errors, error = torch.empty_like(values), torch.zeros_like(bootstrap_value)
    steps = list(zip(deltas.unbind(), decays.unbind(), errors.unbind(), strict=True))
    for delta, decay, found in reversed(steps):  # error = v_t - V(x_t)
        error = torch.addcmul(delta, decay, error, out=found)
    return values + errors


@torch.no_grad()
def policy_gradient_advantages(
    values: Tensor,
    bootstrap_value: Tensor,
    vs: Tensor,
    rewards: Tensor,
    discounts: Tensor,
    log_rhos: Tensor,
    *,
    valid: Tensor | None = None,
    pg_rho_bar: float = 1.0,
) -> Tensor:
    """Return min(pg_rho_bar, pi/mu) (r_t + gamma_t v_{t+1} - V(x_t)), [T, B] (section 4.2); 0 on dead steps.

    The last step's v_{t+1} is `bootstrap_value`. Arguments as in `vtrace`; `vs` [T, B] are its targets.
    """
    weights = _importance_weights(log_rhos, valid).clamp(max=pg_rho_bar)
    return weights * (rewards + discounts * _following(vs, bootstrap_value) - values)


def corrected_targets(
    correction: str,
    values: Tensor,
    bootstrap_value: Tensor,
    rewards: Tensor,
    discounts: Tensor,
    log_rhos: Tensor,
    *,
    valid: Tensor | None = None,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    pg_rho_bar: float = 1.0,
    lambda_: float = 1.0,
) -> Targets:
    """Return value targets and policy-gradient advantages of one of the four algorithms of section 5.2.2 (Table 2).

    | correction | value target | weight of the advantage |
    |---|---|---|
    | v_trace | V-trace | min(pg_rho_bar, pi/mu) |
    | one_step_is | on-policy return | min(pg_rho_bar, pi/mu) |
    | epsilon_correction | on-policy return | 1 (the epsilon is in `policy_gradient_loss`) |
    | no_correction | on-policy return | 1 |

    The on-policy return is V-trace with pi = mu: the n-step return, or the lambda-return where lambda_ < 1.
    Arguments as in `vtrace` and `policy_gradient_advantages`. Raises `UserError` on an unknown correction.
    """
    if correction not in CORRECTIONS:
        raise unknown_name("correction", correction, CORRECTIONS)
    on_policy = torch.zeros_like(log_rhos)
    value_log_rhos = log_rhos if correction == "v_trace" else on_policy
    policy_log_rhos = log_rhos if correction in ("v_trace", "one_step_is") else on_policy
    if correction != "v_trace":
        rho_bar = c_bar = 1.0  # a bound below 1 would weigh on-policy data
    if correction in ("epsilon_correction", "no_correction"):
        pg_rho_bar = 1.0
    vs = vtrace(
        values,
        bootstrap_value,
        rewards,
        discounts,
        value_log_rhos,
        valid=valid,
        rho_bar=rho_bar,
        c_bar=c_bar,
        lambda_=lambda_,
    )
    pg_advantages = policy_gradient_advantages(
        values, bootstrap_value, vs, rewards, discounts, policy_log_rhos, valid=valid, pg_rho_bar=pg_rho_bar
    )
    return Targets(vs, pg_advantages)


def _importance_weights(log_rhos: Tensor, valid: Tensor | None) -> Tensor:
    """Return pi/mu, [T, B]; 0 on dead steps, which zeroes their delta and cuts the trace there."""
    rhos = log_rhos.exp()
    return rhos if valid is None else torch.where(valid, rhos, torch.zeros_like(rhos))


def _following(values: Tensor, bootstrap_value: Tensor) -> Tensor:
    """Return the value at t + 1 for every t, [T, B]."""
    return torch.cat([values[1:], bootstrap_value[None]])
