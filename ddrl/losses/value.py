"""Value loss, and the sum of per-step losses over time and batch (Espeholt et al. 2018)."""

from __future__ import annotations

import torch
from torch import Tensor


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
