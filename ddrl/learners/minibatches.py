"""Minibatches that several learners share: one random order over the samples of all, of which each takes its own.

So R learners with B / R columns each make the same gradient steps as one learner with B columns. Learners exchange
flags and numbers, never observations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ddrl.interfaces import Reducer
from ddrl.learners.all_reduce import SingleLearner
from ddrl.learners.batch_values import moments, standardised
from ddrl.learners.core import Setting
from ddrl.learners.samples import Columns, Samples
from ddrl.types import Unroll


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
class Order:
    """What the minibatches of a batch are drawn from: steps or unrolls, of all learners or of this one alone."""

    numbers: Tensor
    """[n] int64: which of all learners' steps or unrolls this learner's n are."""
    total: int
    """Of all learners."""
    places: Tensor | None
    """[n] int64: the columns of this learner's unrolls; None: steps."""
    reducer: Reducer
    """Of the learners that share the order."""

    @classmethod
    def of(cls, batch: Unroll, learned: Tensor, whole_unrolls: bool, reducer: Reducer, *, own: bool = False) -> Order:
        """Return the order of the steps of a batch that are `learned` [T, B] bool, or of unrolls with one.

        With `own`, each learner's minibatches are those of its own batch. Every learner must call it.
        """
        reducer = SingleLearner() if own else reducer
        if not whole_unrolls:
            return cls(*sample_numbers(replace(batch, valid=learned), reducer), None, reducer)
        kept = learned.any(0)
        return cls(*sample_numbers(replace(batch, valid=kept[None]), reducer), kept.nonzero()[:, 0], reducer)

    def epoch(self, part: Samples | Columns, num_minibatches: int, setting: Setting) -> Iterator[Samples | Columns]:
        """Yield the minibatches of one epoch over the batch that `part` was made of, in a new order.

        No minibatch is empty over all learners that share the order, so there may be fewer than `num_minibatches`; but
        learners with an order each make the same number of steps, of which some may then be empty. Learners that do not
        exhaust the iterator must all leave it at the same place.
        """
        alone = self.reducer.size < setting.reducer.size
        count = num_minibatches if alone else min(num_minibatches, self.total)
        indices = shared_minibatches(self.numbers, self.total, count, setting.generator, self.reducer)
        places = self.places
        chosen = [(one if places is None else places[one]).to(setting.device) for one in indices]
        return part.minibatches(chosen)

    def counted_epoch(
        self, part: Samples | Columns, num_minibatches: int, setting: Setting, *, standardise: bool
    ) -> Iterator[tuple[Samples | Columns, float | None]]:
        """Yield minibatches as `epoch`, each with the number of its steps over all learners, if there are several.

        With `standardise`, the advantages of each are standardised over all learners. These exchange one message for
        all minibatches, and hold them all at once.
        """
        minibatches, reducer = self.epoch(part, num_minibatches, setting), setting.reducer
        if reducer.size == 1:
            for one in minibatches:
                yield _standardised(one, moments(one.advantages, one.mask)) if standardise else one, None
            return
        drawn = list(minibatches)
        sums = torch.tensor([moments(one.advantages, one.mask) for one in drawn], dtype=torch.float64)
        reducer.sum_([sums])
        for one, of_all in zip(drawn, sums.tolist(), strict=True):
            yield _standardised(one, of_all) if standardise else one, of_all[0]


def _standardised(minibatch: Samples | Columns, sums: list[float]) -> Samples | Columns:
    return replace(minibatch, advantages=standardised(minibatch.advantages, sums, minibatch.mask))
