"""The circular store follows its closed form in every order of insert, sample and expire, and holds nothing longer."""

from __future__ import annotations

import itertools
import weakref
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ddrl.replay.circular_buffer import CircularStore, first_use
from ddrl.types import Unroll
from tests.unrolls import make_unroll, tags

sizes = st.integers(1, 5)


def batch_number(number: int) -> Unroll:
    """A batch of one column whose tag is `number`."""
    return make_unroll(length=1, columns=1, first_tag=number)


def run(store: CircularStore, samples: int) -> list[int]:
    """Samples, inserting numbered batches where one is needed; returns the number of each batch traversed."""
    seen = []
    for _ in range(samples):
        if store.needs_batch:
            store.insert(batch_number(store.inserted))
        seen += tags(store.sample())
    return seen


class OrdersOfUse(RuleBasedStateMachine):
    """The store against the closed form: sample number s traverses batch (s // (N K)) N + s mod N."""

    @initialize(num_slots=sizes, num_traversals=sizes)
    def begin(self, num_slots: int, num_traversals: int) -> None:
        self.num_slots, self.num_traversals = num_slots, num_traversals
        self.store = CircularStore(num_slots, num_traversals)
        self.batches: list[Unroll] = []
        self.order: list[int] = []

    def due(self) -> int:
        """The batch that the next sample must traverse."""
        lap = len(self.order) // (self.num_slots * self.num_traversals)
        return lap * self.num_slots + len(self.order) % self.num_slots

    @precondition(lambda self: self.due() == len(self.batches))
    @rule()
    def insert(self) -> None:
        self.batches.append(batch_number(len(self.batches)))
        self.store.insert(self.batches[-1])

    @precondition(lambda self: self.due() < len(self.batches))
    @rule()
    def sample(self) -> None:
        assert tags(self.store.sample()) == [self.due()]
        self.order.append(self.due())

    @precondition(lambda self: self.due() == len(self.batches))
    @rule()
    def sample_too_early(self) -> None:
        with pytest.raises(RuntimeError, match="is empty"):
            self.store.sample()

    @precondition(lambda self: self.due() < len(self.batches))
    @rule()
    def insert_too_early(self) -> None:
        with pytest.raises(RuntimeError, match="holds a live batch"):
            self.store.insert(batch_number(999))

    @rule()
    def save_and_restore(self) -> None:
        state = self.store.state_dict()
        self.store = CircularStore(self.num_slots, self.num_traversals)
        self.store.load_state_dict(state)

    @invariant()
    def it_asks_for_a_batch_exactly_when_the_closed_form_needs_one(self) -> None:
        assert self.store.needs_batch == (self.due() == len(self.batches))

    @invariant()
    def counters_add_up(self) -> None:
        used = Counter(self.order)
        live = [number for number in range(len(self.batches)) if used[number] < self.num_traversals]
        assert max(used.values(), default=0) <= self.num_traversals
        assert len(self.store) == len(live) <= self.num_slots
        assert self.store.inserted == len(self.batches)
        assert self.store.expired == len(self.batches) - len(live)
        assert self.store.sampled == len(self.order)
        assert self.store.traversals() == [used[number] for number in sorted(live, key=lambda n: n % self.num_slots)]
        assert self.store.sampled == self.num_traversals * self.store.expired + sum(self.store.traversals())


OrdersOfUse.TestCase.settings = settings(max_examples=60, stateful_step_count=50)
test_every_order_of_insert_sample_and_expire = OrdersOfUse.TestCase


@given(sizes, sizes)
def test_the_closed_form_says_when_a_batch_is_first_used(num_slots: int, num_traversals: int) -> None:
    seen = run(CircularStore(num_slots, num_traversals), 3 * num_slots * num_traversals)
    for batch in range(3 * num_slots):
        assert seen.index(batch) == first_use(batch, num_slots, num_traversals)


@given(sizes, sizes)
def test_each_batch_is_traversed_exactly_k_times(num_slots: int, num_traversals: int) -> None:
    store = CircularStore(num_slots, num_traversals)
    seen = run(store, 4 * num_slots * num_traversals)
    assert Counter(seen) == dict.fromkeys(range(4 * num_slots), num_traversals)
    assert (store.inserted, store.expired, len(store)) == (4 * num_slots, 4 * num_slots, 0)


@given(sizes, sizes)
def test_two_traversals_of_a_batch_are_n_samples_apart(num_slots: int, num_traversals: int) -> None:
    seen = run(CircularStore(num_slots, num_traversals), 2 * num_slots * num_traversals)
    for batch in set(seen):
        uses = [number for number, used in enumerate(seen) if used == batch]
        assert {later - earlier for earlier, later in itertools.pairwise(uses)} <= {num_slots}


@given(sizes, sizes, st.integers(0, 60), st.booleans())
def test_a_restored_store_continues_identically(
    num_slots: int, num_traversals: int, before: int, inserted_last: bool
) -> None:
    store, copy = (CircularStore(num_slots, num_traversals) for _ in range(2))
    run(store, before)
    if inserted_last and store.needs_batch:
        store.insert(batch_number(store.inserted))
    copy.load_state_dict(store.state_dict())
    assert copy.traversals() == store.traversals()
    assert run(copy, 60) == run(store, 60)
    assert (copy.inserted, copy.expired, copy.sampled) == (store.inserted, store.expired, store.sampled)


def test_two_slots_and_two_traversals_by_hand() -> None:
    assert run(CircularStore(2, 2), 8) == [0, 1, 0, 1, 2, 3, 2, 3]
    assert [first_use(batch, 2, 2) for batch in range(4)] == [0, 1, 4, 5]


def test_one_slot_and_one_traversal_is_a_queue() -> None:
    store = CircularStore(1, 1)
    assert run(store, 5) == [0, 1, 2, 3, 4]
    assert store.needs_batch
    assert [first_use(batch, 1, 1) for batch in range(5)] == [0, 1, 2, 3, 4]


def test_a_batch_is_held_by_reference() -> None:
    store, batch = CircularStore(1, 2), batch_number(0)
    store.insert(batch)
    assert store.sample() is batch
    assert store.sample() is batch


@given(sizes, sizes)
@settings(max_examples=20)
def test_an_expired_batch_is_dropped_at_once(num_slots: int, num_traversals: int) -> None:
    store, held = CircularStore(num_slots, num_traversals), []
    for _ in range(2 * num_slots * num_traversals):
        if store.needs_batch:
            batch = batch_number(store.inserted)
            held.append(weakref.ref(batch))
            store.insert(batch)
            del batch
        store.sample()
        assert sum(reference() is not None for reference in held) == len(store) <= num_slots
    assert all(reference() is None for reference in held)


def test_a_checkpoint_shares_no_memory_with_the_store_it_came_from_or_goes_to() -> None:
    store, copy, batch = CircularStore(1, 2), CircularStore(1, 2), batch_number(7)
    store.insert(batch)
    state = store.state_dict()
    batch.reward.zero_()
    copy.load_state_dict(state)
    state["slots"][0]["reward"].zero_()
    assert tags(copy.sample()) == [7]


def test_a_checkpoint_is_plain_data(tmp_path: Path) -> None:
    store = CircularStore(3, 2)
    run(store, 4)
    torch.save(store.state_dict(), tmp_path / "store.pt")
    copy = CircularStore(3, 2)
    copy.load_state_dict(torch.load(tmp_path / "store.pt", weights_only=True))
    assert run(copy, 9) == run(store, 9)


def test_a_checkpoint_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="has 2 slots, this one 3"):
        CircularStore(3, 1).load_state_dict(CircularStore(2, 1).state_dict())
