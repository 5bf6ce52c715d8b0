"""Keys of the penalty on a divergence, which PPO and IMPACT have in common."""

from __future__ import annotations

from ddrl.errors import UserError


def check_penalty(kl_cost: float, kl_target: float | None) -> None:
    """Raises `UserError` where a target would adapt nothing: `adapted_kl_cost` scales, and 0 stays 0."""
    if kl_target is not None and not kl_cost:
        raise UserError(
            "key 'hyperparameters.kl_target' adapts kl_cost, which is 0; allowed: null, or a kl_cost above 0"
        )
