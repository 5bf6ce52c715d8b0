"""The gradient of a deterministic policy (Silver et al. 2014): the critic's slope by the action, and its bounds."""

from __future__ import annotations

import torch
from torch import Tensor


def action_gradients(slope: Tensor, bound: float | None, *, by_norm: bool) -> Tensor:
    """Return dQ/da [B, A] within `bound`: each dimension (Tassa et al. 2018), or with `by_norm` the norm of each row.

    None leaves it as it is.
    """
    if bound is None:
        return slope
    if not by_norm:
        return slope.clamp(-bound, bound)
    norm: Tensor = torch.linalg.vector_norm(slope, dim=-1, keepdim=True)
    return slope * (bound / norm.clamp(min=bound))
