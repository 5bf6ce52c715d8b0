"""Minibatches that several learners share: one random order over the samples of all, of which each takes its own.

So R learners with B / R columns each make the same gradient steps as one learner with B columns. Learners exchange
flags and numbers, never observations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from ddrl.interfaces import Reducer
from ddrl.learners.batch_values import evaluate, joined, output_of
from ddrl.learners.core import LearnerCore
from ddrl.learners.data_parallel import Kept
from ddrl.types import NetworkOutput, Unroll


def sample_numbers(batch: Unroll, reducer: Reducer) -> tuple[Tensor, int]:
    """Return the numbers that the valid steps of this batch would have if one learner held the batches of all.

    Every learner must call it. One learner numbers the valid steps of its batch in [T, R x B] order; a synchronous
    batch has its columns in the order of (unroll index, actor, environment). Actor a of learner r is number a x R + r
    of all (see `ddrl.training.builder`), so the columns of all learners are ordered by (unroll index, a, r).

    Returns:
        Numbers [n] int64 of the n valid steps of `batch` in [T, B] order, and the number of samples of all learners;
        on the CPU.
    """
    rank, size = reducer.rank, reducer.size
    length, columns = batch.valid.shape
    sources = torch.zeros((size, columns, 2), dtype=torch.int64)
    sources[rank] = torch.stack([batch.index, batch.actor], dim=-1)
    valid = torch.zeros((length, size, columns), dtype=torch.uint8)  # no backend adds up booleans
    valid[:, rank] = batch.valid
    reducer.sum_([sources, valid])
    index, actor = sources.flatten(0, 1).numpy().T
    order = torch.from_numpy(np.lexsort((np.arange(size).repeat(columns), actor, index)))  # the last key counts most
    marks = valid.flatten(1)[:, order]
    numbers = torch.empty(marks.shape, dtype=torch.int64)
    numbers[:, order] = marks.flatten().cumsum(0).view(marks.shape) - 1
    own = numbers.view(valid.shape)[:, rank]
    return own[valid[:, rank].bool()], int(marks.sum())


def column_numbers(batch: Unroll, kept: Tensor, reducer: Reducer) -> tuple[Tensor, int]:
    """Return the numbers [n] that the columns that are kept [B] bool would have if one learner held the batches of all.

    As `sample_numbers`, for minibatches of whole unrolls; also return how many columns all learners keep.
    """
    return sample_numbers(replace(batch, valid=kept[None]), reducer)


def shared_minibatches(
    numbers: Tensor, total: int, num_minibatches: int, generator: np.random.Generator, reducer: Reducer
) -> Iterator[Tensor]:
    """Yield the minibatches of one epoch over all samples, in a new order; every learner must exhaust the iterator.

    Args:
        numbers: [n] of this learner's samples, and `total` of all learners, from `sample_numbers`.
        num_minibatches: of nearly the same size, added up over learners.
        generator: of this learner; only that of rank 0 is used, as if there were one learner.

    Yields:
        The indices [m] int64 (on the CPU) of those of this learner's n samples that are in the minibatch; m may be 0.
    """
    order = torch.zeros(total, dtype=torch.int64)
    if reducer.rank == 0:
        order = torch.from_numpy(generator.permutation(total))
    reducer.sum_([order])
    places = torch.full((total,), -1)
    places[numbers] = torch.arange(len(numbers))
    for own in places[order].tensor_split(num_minibatches):
        yield own[own >= 0] if reducer.size > 1 else own


@dataclass(frozen=True)
class Columns:
    """Unrolls [T+1, B], with the quantities that stay fixed during an epoch; tensors [T, B]."""

    unroll: Unroll
    learned: Tensor  # bool: valid, and not too old
    log_mu: Tensor  # of the action under the behaviour policy
    values: Tensor  # V(x) at collection, or before the first gradient step
    advantages: Tensor
    value_targets: Tensor

    @property
    def batch_size(self) -> int:
        """Number of columns."""
        return self.unroll.batch_size

    def columns(self, start: int, stop: int) -> Self:
        """Return columns start..stop-1 as views."""
        parts = (tensor[:, start:stop] for tensor in self.per_step)
        return type(self)(self.unroll.columns(start, stop), *parts)

    def minibatches(self, indices: Sequence[Tensor]) -> Iterator[Self]:
        """Yield copies of the columns with the indices of each minibatch."""
        for chosen in indices:
            yield type(self)(self.unroll.chosen(chosen), *(tensor[:, chosen] for tensor in self.per_step))

    @property
    def per_step(self) -> list[Tensor]:
        """The tensors [T, B], in the order of the fields."""
        return [getattr(self, field.name) for field in fields(self)[1:]]


def outputs_once(core: LearnerCore[Any], part: Columns) -> tuple[NetworkOutput, Kept | None]:
    """Return what the network now puts out on unrolls, without gradients, and what a gradient step may use of it.

    So targets that depend on the network need no second pass, unless there are too many activations to be kept.
    """
    batch = part.unroll
    if (batch.length + 1) * batch.batch_size > core.network.kept_steps:
        return evaluate(core.network, batch, core.setting.precision), None
    kept = core.forward(lambda network, piece: output_of(network, piece.unroll), part)
    return joined(kept), kept
