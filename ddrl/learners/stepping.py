"""What our optimizers have in common: torch's protocol of a step, and the check of a saved state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor


def stepping(update: Callable[[Any], None]) -> Any:
    """Return the method `step` of an optimizer, which makes an `update` of its parameters without gradients.

    As torch's optimizers have it, `step(closure)` first calls `closure` with gradients and returns its loss.
    """

    @torch.no_grad()
    def step(self: Any, closure: Callable[[], float] | None = None) -> float | None:
        """Make one update from the parameters' `.grad`; first call `closure`, if given, and return its loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        update(self)
        return loss

    return step


def check_part(optimizer: str, name: str, saved: Mapping[str, Any], parameter: Tensor) -> None:
    """Raise ValueError if the part `name` of a parameter's saved state is missing or has another shape."""
    part = saved.get(name)
    if not isinstance(part, Tensor) or part.shape != parameter.shape:
        raise ValueError(f"{optimizer}'s {name} is missing, or not of its parameter's shape")
