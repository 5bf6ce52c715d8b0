"""Learners that share a batch draw the minibatches that one of them alone would draw."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

import pytest
import torch
from torch import Tensor

from ddrl.learners.minibatches import Order, sample_numbers, shared_minibatches
from ddrl.learners.samples import Columns
from ddrl.system.seeding import generator_state, numpy_generator
from ddrl.types import Unroll, concatenate
from tests.unrolls import make_unroll, tags

LENGTH, ACTORS, ENVS, ROUNDS = 7, 12, 2, 2
every_size = pytest.mark.parametrize("size", [1, 2, 3, 4])
Result = TypeVar("Result")


class Meeting:
    """Where learners in threads of one process add up."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=60)
        self.given: dict[int, list[Tensor]] = {}
        self.sent: list[int] = []

    def sum_(self, rank: int, tensors: list[Tensor]) -> None:
        self.given[rank] = [tensor.clone() for tensor in tensors]
        self.barrier.wait()
        for position, tensor in enumerate(tensors):
            tensor.copy_(torch.stack([self.given[other][position] for other in range(self.size)]).sum(0))
        self.sent.append(sum(tensor.numel() for tensor in tensors))
        self.barrier.wait()


class ThreadReducer:
    """One of the learners."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.rank, self.size, self._meeting = rank, meeting.size, meeting

    def sum_(self, tensors: list[Tensor]) -> None:
        self._meeting.sum_(self.rank, tensors)


def together(meeting: Meeting, work: Callable[[ThreadReducer], Result]) -> list[Result]:
    """What each learner makes of it."""
    with ThreadPoolExecutor(meeting.size) as pool:
        return list(pool.map(work, [ThreadReducer(meeting, rank) for rank in range(meeting.size)]))


def whole() -> Unroll:
    """A batch of one learner: rounds of (unroll index, actor), a tag for each column, some steps dead."""
    unrolls = [
        make_unroll(
            length=LENGTH, columns=ENVS, actor=actor, index=5 + index, first_tag=ENVS * (ACTORS * index + actor)
        )
        for index in range(ROUNDS)
        for actor in range(ACTORS)
    ]
    batch = concatenate(unrolls)
    valid = torch.rand(batch.valid.shape, generator=torch.Generator().manual_seed(3)) < 0.7
    return replace(batch, valid=valid)


def share(batch: Unroll, reducer: ThreadReducer) -> Unroll:
    """What the actors of one learner bring: every R-th, numbered among themselves."""
    mine = [c for c in range(batch.batch_size) if int(batch.actor[c]) % reducer.size == reducer.rank]
    part = concatenate([batch.columns(c, c + 1) for c in mine])
    return replace(part, actor=part.actor // reducer.size)


@every_size
def test_a_sample_has_the_number_that_it_has_in_the_batch_of_one_learner(size: int) -> None:
    batch = whole()
    expected = [(t, tag) for t in range(LENGTH) for c, tag in enumerate(tags(batch)) if batch.valid[t, c]]

    def work(reducer: ThreadReducer) -> tuple[list[tuple[int, int, int]], int]:
        part = share(batch, reducer)
        numbers, total = sample_numbers(part, reducer)
        steps = [(t, tag) for t in range(LENGTH) for c, tag in enumerate(tags(part)) if part.valid[t, c]]
        return [(number, *step) for number, step in zip(numbers.tolist(), steps, strict=True)], total

    results = together(Meeting(size), work)
    found = sorted(row for rows, _ in results for row in rows)
    assert [row[0] for row in found] == list(range(len(expected)))
    assert [row[1:] for row in found] == expected
    assert {total for _, total in results} == {len(expected)}


@every_size
def test_an_epoch_has_the_minibatches_of_one_learner_and_leaves_no_sample_out(size: int) -> None:
    batch, total = whole(), int(whole().valid.sum())
    order = torch.from_numpy(numpy_generator(0, "replay").permutation(total)).tensor_split(9)

    def work(reducer: ThreadReducer) -> tuple[Tensor, list[Tensor]]:
        numbers, _ = sample_numbers(share(batch, reducer), reducer)
        generator = numpy_generator(0, "replay", reducer.rank)
        return numbers, [numbers[own] for own in shared_minibatches(numbers, total, 9, generator, reducer)]

    results = together(Meeting(size), work)
    for number, expected in enumerate(order):
        parts = [minibatches[number] for _, minibatches in results]
        assert sorted(torch.cat(parts).tolist()) == sorted(expected.tolist())
    for numbers, minibatches in results:
        assert sorted(torch.cat(minibatches).tolist()) == numbers.tolist()


def test_one_learner_alone_takes_samples_in_the_order_that_was_drawn() -> None:
    generator = numpy_generator(0, "replay")
    reducer = ThreadReducer(Meeting(1), 0)
    numbers, total = sample_numbers(whole(), reducer)
    found = torch.cat(list(shared_minibatches(numbers, total, 5, generator, reducer)))
    other = numpy_generator(0, "replay")
    assert found.tolist() == other.permutation(total).tolist()
    assert generator_state(generator) == generator_state(other)


def test_what_travels_is_a_mark_for_each_step_and_a_number_for_each_sample() -> None:
    batch, meeting = whole(), Meeting(2)

    def work(reducer: ThreadReducer) -> None:
        numbers, total = sample_numbers(share(batch, reducer), reducer)
        list(shared_minibatches(numbers, total, 4, numpy_generator(0, "replay"), reducer))

    together(meeting, work)
    marks, order = batch.valid.numel() + 2 * batch.batch_size, int(batch.valid.sum())
    assert sorted(meeting.sent) == sorted(2 * [marks, order])


@every_size
def test_the_columns_of_all_learners_are_numbered_as_those_of_one(size: int) -> None:
    batch = whole()
    wanted = batch.reward.sum(0) > batch.reward.sum(0).median()
    assert 0 < wanted.sum() < batch.batch_size, "some are left out"

    def of_rank(reducer: ThreadReducer) -> tuple[list[list[float]], list[int]]:
        own = batch.chosen(torch.nonzero(batch.actor % size == reducer.rank).flatten())
        own = replace(own, actor=own.actor // size)
        kept = own.reward.sum(0) > batch.reward.sum(0).median()
        order = Order.of(own, own.valid & kept, True, reducer)
        assert order.total == int(wanted.sum())
        assert order.places is not None
        return own.reward.T[order.places].tolist(), order.numbers.tolist()

    rewards = batch.reward.T[wanted].tolist()
    for columns, numbers in together(Meeting(size), of_rank):
        assert [rewards[number] for number in numbers] == columns


def test_columns_are_chosen_with_all_that_belongs_to_them() -> None:
    batch = make_unroll(length=3, columns=4)
    steps = torch.arange(12.0).view(3, 4)
    part = Columns(batch, steps > 5, steps, steps + 100, steps + 200, steps + 300)
    (first, second) = part.minibatches([torch.tensor([2, 0]), torch.tensor([3])])
    assert (first.batch_size, second.batch_size) == (2, 1)
    assert torch.equal(first.unroll.reward, batch.reward[:, [2, 0]])
    assert torch.equal(first.unroll.env, batch.env[[2, 0]])
    assert first.advantages.tolist() == (steps[:, [2, 0]] + 200).tolist()
    assert second.learned.tolist() == (steps[:, [3]] > 5).tolist()
    assert torch.equal(part.columns(1, 3).value_targets, steps[:, 1:3] + 300)
