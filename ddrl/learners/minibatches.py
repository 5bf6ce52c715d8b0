"""Minibatches that several learners share: one order over the samples of all, of which each takes its own.

R learners with B / R columns each then take the steps of one learner with B columns: a sample is in the same minibatch
whoever holds it. Marks and numbers travel between learners, never observations.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from ddrl.interfaces import Reducer
from ddrl.types import Unroll


def sample_numbers(batch: Unroll, reducer: Reducer) -> tuple[Tensor, int]:
    """Which samples of one learner's batch the valid steps of this learner's columns are; every learner calls it.

    The samples of one learner are the valid steps of its batch in [T, R x B] order, and a synchronous batch has its
    columns in the order of (unroll index, actor, environment). Actors feed the learners in turn (see
    `ddrl.training.builder`): actor a of learner r is number a x R + r of all, so the columns of all learners are
    ordered by (unroll index, a, r).

    Returns:
        Numbers [n] int64 of the n valid steps of `batch` in [T, B] order, and how many samples all learners hold;
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


def shared_minibatches(
    numbers: Tensor, total: int, num_minibatches: int, generator: np.random.Generator, reducer: Reducer
) -> Iterator[Tensor]:
    """One epoch over the samples of all learners in a new order; every learner goes through all of it.

    Args:
        numbers: [n] of this learner's samples, and `total` of all learners, as `sample_numbers` says.
        num_minibatches: of nearly the same size, added up over learners.
        generator: of this learner; only that of rank 0 is drawn from, as one learner alone would.

    Yields:
        For each minibatch, which of this learner's n samples are in it, [m] int64 on the CPU; m may be 0.
    """
    order = torch.zeros(total, dtype=torch.int64)
    if reducer.rank == 0:
        order = torch.from_numpy(generator.permutation(total))
    reducer.sum_([order])
    places = torch.full((total,), -1)
    places[numbers] = torch.arange(len(numbers))
    for part in order.tensor_split(num_minibatches):
        own = places[part]
        yield own[own >= 0]
