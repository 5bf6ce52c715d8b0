"""Value loss, and the reduction of per-step losses over time and batch (Espeholt et al. 2018)."""

from __future__ import annotations

import torch
from torch import Tensor

from ddrl.errors import unknown_name

REDUCTIONS = ("sum", "mean")


def value_loss(values: Tensor, targets: Tensor) -> Tensor:
    """(v_t - V(x_t))^2 / 2 per step, [T, B]; targets are constants here (detached).

    The half makes the descent direction (v_t - V) grad V, which is how section 4.2 states the update; the "baseline
    loss scaling" of 0.5 (Tables D.3 and G.1) multiplies it once more. The authors' code does the same
    (google-deepmind/scalable_agent, experiment.py: `compute_baseline_loss` and `baseline_cost`).
    """
    return 0.5 * (targets.detach() - values).square()


def reduce(loss: Tensor, valid: Tensor | None, reduction: str) -> Tensor:
    """A scalar from per-step losses [T, B], leaving out dead steps (valid [T, B] bool is False).

    "sum" is the paper's ("summed across the batch and time dimensions", caption of Table D.1); "mean" divides by the
    number of valid steps, and is 0 when there are none. Raises `UserError` on another name.
    """
    if reduction not in REDUCTIONS:
        raise unknown_name("loss reduction", reduction, REDUCTIONS)
    if valid is not None:
        loss = torch.where(valid, loss, torch.zeros_like(loss))
    if reduction == "sum":
        return loss.sum()
    return loss.mean() if valid is None else loss.sum() / valid.sum().clamp(min=1)
