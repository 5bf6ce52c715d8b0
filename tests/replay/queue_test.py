"""The queue loses nothing, doubles nothing, and keeps its order, whatever is inserted and sampled when."""

import threading
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ddrl.errors import Closed
from ddrl.replay.queue import UnrollQueue
from tests.unrolls import make_unroll, tags


@given(st.lists(st.integers(1, 5), min_size=1, max_size=12), st.integers(1, 7))
def test_columns_leave_in_the_order_they_came_each_once(sizes: list[int], wanted: int) -> None:
    queue, inserted, taken = UnrollQueue(capacity=len(sizes)), [], []
    for index, size in enumerate(sizes):
        unroll = make_unroll(columns=size, first_tag=100 * index)
        inserted += tags(unroll)
        queue.insert(unroll)
    while queue.can_sample(wanted):
        batch = queue.sample(wanted)
        assert batch.batch_size == wanted
        taken += tags(batch)
    assert taken == inserted[: len(taken)]
    assert len(inserted) - len(taken) < wanted


@given(st.permutations([(index, actor) for index in range(3) for actor in range(3)]))
def test_ordered_columns_leave_in_rounds_whatever_the_order_of_arrival(arrivals: list[tuple[int, int]]) -> None:
    queue = UnrollQueue(capacity=1, ordered_actors=3)
    for index, actor in arrivals:
        queue.insert(make_unroll(columns=2, actor=actor, index=index))
    batch = queue.sample(18)
    assert list(zip(batch.index.tolist(), batch.actor.tolist(), strict=True)) == [
        (index, actor) for index in range(3) for actor in range(3) for _ in range(2)
    ]


def test_an_ordered_queue_holds_back_what_is_out_of_turn() -> None:
    queue = UnrollQueue(capacity=1, ordered_actors=2)
    queue.insert(make_unroll(columns=1, actor=1, index=0))
    assert not queue.can_sample(1)
    queue.insert(make_unroll(columns=1, actor=0, index=0))
    assert queue.can_sample(2)


@given(st.integers(1, 12), st.integers(1, 12))
def test_a_queue_whose_capacity_is_a_batch_never_locks_up(columns: int, batch: int) -> None:
    queue = UnrollQueue(capacity=-(-batch // columns))
    for _ in range(30):
        assert queue.can_insert() or queue.can_sample(batch)
        if queue.can_sample(batch):
            queue.sample(batch)
        else:
            queue.insert(make_unroll(columns=columns))


def test_insert_waits_while_the_queue_is_full_and_the_wait_is_measured() -> None:
    queue = UnrollQueue(capacity=1)
    queue.insert(make_unroll())
    assert not queue.can_insert()
    writer = threading.Thread(target=lambda: queue.insert(make_unroll()))
    writer.start()
    time.sleep(0.05)
    assert writer.is_alive()
    queue.sample(2)
    writer.join(timeout=5)
    assert not writer.is_alive()
    assert queue.insert_waited >= 0.04


def test_closing_ends_every_wait() -> None:
    queue, ended = UnrollQueue(capacity=1), []

    def wait() -> None:
        with pytest.raises(Closed):
            queue.sample(1)
        ended.append(True)

    readers = [threading.Thread(target=wait) for _ in range(3)]
    for reader in readers:
        reader.start()
    queue.close()
    for reader in readers:
        reader.join(timeout=5)
    assert len(ended) == 3


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.integers(0, 5), st.booleans())
def test_a_restored_queue_gives_what_the_saved_one_would(sizes: list[int], before: int, ordered: bool) -> None:
    actors = 1 if ordered else None
    queue, copy = (UnrollQueue(capacity=10, ordered_actors=actors) for _ in range(2))
    for index, size in enumerate(sizes):
        queue.insert(make_unroll(columns=size, first_tag=10 * index, index=index + (ordered and index > 2)))
    if before and queue.can_sample(before):
        queue.sample(before)
    copy.load_state_dict(queue.state_dict())
    while queue.can_sample(1):
        assert tags(queue.sample(1)) == tags(copy.sample(1))
    assert not copy.can_sample(1)
    assert len(copy) == len(queue)


def test_a_batch_of_one_whole_unroll_is_not_copied() -> None:
    queue, unroll = UnrollQueue(capacity=1), make_unroll(columns=4)
    queue.insert(unroll)
    assert queue.sample(4).observation.data_ptr() == unroll.observation.data_ptr()


@pytest.mark.parametrize("unrolls", [1, 2])
@pytest.mark.parametrize("lent", [False, True])
def test_a_batch_shares_no_memory_with_unrolls_that_are_lent(lent: bool, unrolls: int) -> None:
    queue = UnrollQueue(capacity=2, lent_memory=lent)
    inserted = [make_unroll(columns=2, first_tag=2 * index) for index in range(unrolls)]
    for unroll in inserted:
        queue.insert(unroll)
    batch = queue.sample(2 * unrolls)
    assert tags(batch) == list(range(2 * unrolls))
    shared = {tensor.data_ptr() for unroll in inserted for tensor in unroll.tensors}
    is_shared = {tensor.data_ptr() in shared for tensor in batch.tensors}
    assert is_shared == {not lent and unrolls == 1}


def test_its_length_counts_the_unrolls_that_are_out_of_turn_too() -> None:
    queue = UnrollQueue(capacity=1, ordered_actors=3)
    for actor in (0, 2):
        queue.insert(make_unroll(columns=1, actor=actor, index=0))
    assert queue.can_sample(1) and not queue.can_sample(2)
    assert len(queue) == 2


def test_a_restored_queue_goes_on_in_mid_round_with_what_was_out_of_turn() -> None:
    queue, copy = (UnrollQueue(capacity=1, ordered_actors=3) for _ in range(2))
    arrived = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0), (3, 1), (2, 2)]
    for index, actor in arrived:
        queue.insert(make_unroll(columns=2, actor=actor, index=index))
    queue.sample(14)
    copy.load_state_dict(queue.state_dict())
    assert not copy.can_sample(1)
    for index, actor in [(3, 2), (2, 1), (3, 0)]:
        copy.insert(make_unroll(columns=2, actor=actor, index=index))
    assert copy.can_sample(10)
    batch = copy.sample(10)
    assert list(zip(batch.index.tolist(), batch.actor.tolist(), strict=True)) == [
        place for place in [(2, 1), (2, 2), (3, 0), (3, 1), (3, 2)] for _ in range(2)
    ]


def test_many_writers_lose_no_column() -> None:
    queue, writers_count, each = UnrollQueue(capacity=6), 4, 25

    def write(actor: int) -> None:
        for index in range(each):
            queue.insert(make_unroll(columns=1, first_tag=1000 * actor + index))

    writers = [threading.Thread(target=write, args=(actor,)) for actor in range(writers_count)]
    for writer in writers:
        writer.start()
    seen = [tag for _ in range(writers_count * each // 5) for tag in tags(queue.sample(5))]
    assert sorted(seen) == sorted(1000 * actor + index for actor in range(writers_count) for index in range(each))
    assert torch.tensor(seen).unique().numel() == len(seen)
