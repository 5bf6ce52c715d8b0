"""Quantities of a batch that a learner computes without gradients before it learns from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from ddrl.interfaces import BatchNetwork, Reducer
from ddrl.learners.data_parallel import split
from ddrl.system.precision import autocast
from ddrl.types import NetworkOutput, Unroll

EPSILON = 1e-8
TimeLimits: TypeAlias = Literal["bootstrap", "terminal"]
"""A configuration key: what an episode that was cut is worth after the cut, see `discounts`."""


@torch.no_grad()
def evaluate(network: BatchNetwork, batch: Unroll, precision: str) -> NetworkOutput:
    """Return the network's distributions [T+1, B, P] and values [T+1, B] on a batch, without a state."""
    steps = (batch.length + 1) * batch.batch_size
    found = []
    with autocast(batch.reward.device, precision):
        for part in split(batch, max(1, min(batch.batch_size, -(-steps // network.piece_steps)))):
            found.append(output_of(network, part))
    return joined([found])


def output_of(network: BatchNetwork, unroll: Unroll) -> NetworkOutput:
    """Return what the network puts out on an unroll [T+1, B]."""
    return network(unroll.observation, unroll.last_action, unroll.last_reward, unroll.start, unroll.initial_state)


@torch.no_grad()
def joined(kept: Sequence[Sequence[NetworkOutput]]) -> NetworkOutput:
    """Return the distributions and values of the parts of a batch, side by side, without a state and gradients."""
    parts = [part for row in kept for part in row]
    return NetworkOutput(
        torch.cat([part.distribution for part in parts], dim=1), torch.cat([part.value for part in parts], dim=1), ()
    )


def discounts(batch: Unroll, discount: float, time_limits: TimeLimits) -> Tensor:
    """Return `discount`, or 0 where nothing is to be gained after a transition, [T, B].

    - `bootstrap`: after a terminal state; a cut episode is worth the value of its last observation (Pardo et al. 2018);
    - `terminal`: after a cut, too, as in openai/baselines and vwxyzjn/cleanrl, which know one kind of end.
    """
    over = batch.terminated if time_limits == "bootstrap" else batch.terminated | batch.truncated
    return discount * (~over).float()


def normalised(advantages: Tensor, reducer: Reducer, valid: Tensor | None = None) -> Tensor:
    """Return (A - mean) / (standard deviation + 1e-8) over all steps of all learners; 0 where `valid` is False.

    Standard practice of PPO (Huang et al. 2022, core detail 7). A single step becomes 0.
    """
    sums = moments(advantages, valid)
    if reducer.size > 1:
        of_all = torch.tensor(sums, dtype=torch.float64)
        reducer.sum_([of_all])
        sums = of_all.tolist()
    return standardised(advantages, sums, valid)


def moments(advantages: Tensor, valid: Tensor | None = None) -> list[float]:
    """Return the number of advantages that are valid, their sum, and that of their squares."""
    chosen = advantages if valid is None else advantages[valid]
    return [float(chosen.numel()), float(chosen.sum()), float(chosen.square().sum())]


def standardised(advantages: Tensor, sums: Sequence[float], valid: Tensor | None = None) -> Tensor:
    """Return what `normalised` does, given the `moments` of all learners' advantages."""
    count, total, squares = sums
    mean = total / max(1.0, count)
    deviation = math.sqrt(max(0.0, squares / max(1.0, count) - mean * mean))
    result: Tensor = (advantages - mean) / (torch.tensor(deviation) + EPSILON)
    return result if valid is None else result.masked_fill(~valid, 0.0)


def explained_variance(values: Tensor, targets: Tensor, valid: Tensor | None = None) -> float:
    """Return 1 - Var(target - value) / Var(target): 1 for a perfect fit, 0 for constant values or constant targets.

    Of steps that are valid. Also 0 without any: a rank's share of a minibatch may be empty.
    """
    if valid is not None:
        values, targets = values[valid], targets[valid]
    if not targets.numel():
        return 0.0
    variance = float(targets.var(correction=0))
    return 1.0 - float((targets - values).var(correction=0)) / variance if variance > 0 else 0.0
