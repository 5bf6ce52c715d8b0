"""Gradient clipping by the global norm, and the check that stops a run whose numbers are no longer finite."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from ddrl.errors import NonFiniteError


@torch.no_grad()
def clip_global_norm(parameters: Iterable[Tensor], max_norm: float | None) -> Tensor:
    """Scale all gradients in place so that their joint L2 norm is at most `max_norm`; return the norm before.

    g <- g max_norm / max(norm, max_norm), exactly g below the bound (Table G.1: 40); None only measures. The norm is a
    scalar, 0 if no parameter has a gradient, and not finite if a gradient is not: pass it to `check_finite`.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return torch.zeros(())
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    if max_norm is not None:
        torch._foreach_mul_(gradients, max_norm / norm.clamp(min=max_norm))
    return norm


def check_finite(quantities: Mapping[str, float | Tensor], *, where: str = "") -> None:
    """Raise `NonFiniteError` naming every quantity (a number or a tensor) that holds a NaN or an infinity.

    `where` starts the message, for example "update 120".
    """
    broken = [f"{name} is {bad}" for name, value in quantities.items() if (bad := _first_non_finite(value)) is not None]
    if broken:
        raise NonFiniteError(f"{where + ': ' if where else ''}training diverged: {', '.join(broken)}")


def _first_non_finite(value: float | Tensor) -> float | None:
    if isinstance(value, Tensor):
        finite = torch.isfinite(value)
        return None if bool(finite.all()) else float(value[~finite].flatten()[0])
    return None if math.isfinite(value) else value
