"""Distributions of returns over K fixed atoms, `v_min` to `v_max` (Bellemare et al. 2017, arXiv 1707.06887)."""

from __future__ import annotations

import torch
from torch import Tensor


def projection(probabilities: Tensor, returns: Tensor, scale: Tensor, v_min: float, v_max: float) -> Tensor:
    """Return the distribution of returns + scale Z over the atoms, [B, K] (Bellemare et al. 2017, Algorithm 1).

    Each shifted atom is cut to [v_min, v_max], and its probability is shared by its two neighbours: the nearer one
    gets the larger part. The mean stays the same where no atom was cut.

    Args:
        probabilities: [B, K], of Z at each atom.
        returns: [B].
        scale: [B]: the discount, 0 after a terminal state.
        v_min: value of the first atom.
        v_max: value of the last atom.
    """
    num_atoms = probabilities.shape[-1]
    atoms = torch.linspace(v_min, v_max, num_atoms, device=probabilities.device)
    shifted = (returns.unsqueeze(-1) + scale.unsqueeze(-1) * atoms).clamp(v_min, v_max)
    place = ((shifted - v_min) * ((num_atoms - 1) / (v_max - v_min))).clamp(0, num_atoms - 1)
    below = place.floor()
    above_share = place - below
    index = below.long()
    projected = torch.zeros_like(probabilities)
    projected.scatter_add_(-1, index, probabilities * (1 - above_share))
    return projected.scatter_add_(-1, (index + 1).clamp(max=num_atoms - 1), probabilities * above_share)


def cross_entropy(target: Tensor, logits: Tensor) -> Tensor:
    """Return -sum_k target_k log softmax(logits)_k, [B], of probabilities and logits [B, K]."""
    entropies: Tensor = -(target * torch.log_softmax(logits, dim=-1)).sum(dim=-1)
    return entropies


def divergence(target: Tensor, logits: Tensor) -> Tensor:
    """Return the Kullback-Leibler divergence of softmax(logits) from `target`, [B], at least 0; 0 log 0 is 0.

    That is the cross entropy without the entropy of the target, which no network can lower.
    """
    entropy: Tensor = -torch.special.xlogy(target, target).sum(dim=-1)
    return (cross_entropy(target, logits) - entropy).clamp(min=0.0)


def mean_return(logits: Tensor, v_min: float, v_max: float) -> Tensor:
    """Return sum_k z_k softmax(logits)_k, [B], of logits [B, K]."""
    atoms = torch.linspace(v_min, v_max, logits.shape[-1], device=logits.device)
    mean: Tensor = (logits.softmax(dim=-1) * atoms).sum(dim=-1)
    return mean
