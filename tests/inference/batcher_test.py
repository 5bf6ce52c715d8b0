"""Dynamic batching: bounded wait, smallest and largest batch, first come first served, every caller its own answer."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddrl.errors import Closed
from ddrl.inference.central import Batcher, BatchRule, PendingCall
from ddrl.system.seeding import numpy_generator
from ddrl.types import PolicyInput, PolicyOutput

LONG = 60.0


def inputs(number: int, columns: int = 1) -> PolicyInput:
    """A call that can be told from others by its number."""
    zeros = torch.zeros(columns)
    return PolicyInput(torch.full((columns, 2), number), zeros.long(), zeros, zeros.bool(), ())


def number_of(call: PendingCall) -> int:
    return int(call.inputs.observation[0, 0])


def answer(call: PendingCall) -> None:
    """With the number that the caller has sent, in every column."""
    observation = call.inputs.observation.float()
    call.answer.set_result(PolicyOutput(observation, (), number_of(call), observation[:, 0]))


def wait_for(batcher: Batcher, columns: int) -> None:
    while batcher.waiting_columns < columns:
        time.sleep(0.001)


def calling(pool: ThreadPoolExecutor, batcher: Batcher, sizes: list[int]) -> list[object]:
    """Calls of these sizes, in this order, each in a thread of its own."""
    futures: list[object] = []
    for number, size in enumerate(sizes):
        before = batcher.waiting_columns
        futures.append(pool.submit(batcher.call, inputs(number, size)))
        wait_for(batcher, before + size)
    return futures


@given(sizes=st.lists(st.integers(1, 8), min_size=1, max_size=12), largest=st.integers(8, 20))
@settings(max_examples=30, deadline=None)
def test_batches_hold_whole_calls_in_order_and_no_more_columns_than_allowed(sizes: list[int], largest: int) -> None:
    batcher = Batcher(BatchRule(min_columns=1, max_columns=largest, max_wait=LONG))
    with ThreadPoolExecutor(len(sizes)) as pool:
        calling(pool, batcher, sizes)
        taken: list[int] = []
        while len(taken) < len(sizes):
            batch = batcher.take()
            columns = sum(call.columns for call in batch)
            assert columns <= largest
            taken += [number_of(call) for call in batch]
            following = sizes[len(taken)] if len(taken) < len(sizes) else None
            assert following is None or columns + following > largest, "a call that would have fitted was left"
            for call in batch:
                answer(call)
    assert taken == list(range(len(sizes)))


def test_a_batch_waits_for_its_smallest_size() -> None:
    batcher = Batcher(BatchRule(min_columns=3, max_columns=8, max_wait=LONG))
    with ThreadPoolExecutor(4) as pool:
        calling(pool, batcher, [1, 1])
        taking = pool.submit(batcher.take)
        time.sleep(0.05)
        assert not taking.done()
        pool.submit(batcher.call, inputs(2))
        batch = taking.result(LONG)
        assert [number_of(call) for call in batch] == [0, 1, 2]
        for call in batch:
            answer(call)


def test_a_call_waits_no_longer_than_allowed() -> None:
    batcher = Batcher(BatchRule(min_columns=8, max_columns=8, max_wait=0.1))
    with ThreadPoolExecutor(1) as pool:
        calling(pool, batcher, [2])
        (call,) = batcher.take()
        assert 0.1 <= time.perf_counter() - call.came < 5
        answer(call)


def test_the_wait_is_that_of_the_oldest_call() -> None:
    wait = 1.0
    batcher = Batcher(BatchRule(min_columns=8, max_columns=8, max_wait=wait))
    with ThreadPoolExecutor(2) as pool:
        calling(pool, batcher, [1])
        time.sleep(0.8 * wait)
        calling(pool, batcher, [1])
        batch = batcher.take()
        assert [time.perf_counter() - call.came >= wait for call in batch] == [True, False]
        for call in batch:
            answer(call)


def test_every_caller_gets_its_own_answer_under_random_delays() -> None:
    """Eight actors, three inference threads, 1,600 calls: none lost, none crossed, nobody starves."""
    batcher = Batcher(BatchRule(min_columns=2, max_columns=5, max_wait=0.001))
    calls, actors = 200, 8
    wrong: list[str] = []
    finished: list[float] = []

    def act(actor: int) -> None:
        generator = numpy_generator(actor, "delays")
        for k in range(calls):
            number, columns = actor * calls + k, int(generator.integers(1, 4))
            output = batcher.call(inputs(number, columns))
            if output.version != number or not (output.distribution == number).all() or len(output[0]) != columns:
                wrong.append(f"{number}: {output}")
            time.sleep(float(generator.exponential(2e-4)))
        finished.append(time.perf_counter())

    def serve(index: int) -> None:
        generator = numpy_generator(index, "delays of the service")
        try:
            while True:
                batch = batcher.take()
                time.sleep(float(generator.exponential(3e-4)))
                for call in batch:
                    answer(call)
        except Closed:
            pass

    threads = [threading.Thread(target=act, args=(i,)) for i in range(actors)]
    servers = [threading.Thread(target=serve, args=(i,)) for i in range(3)]
    began = time.perf_counter()
    for thread in threads + servers:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    batcher.close()
    for thread in servers:
        thread.join(LONG)
    assert wrong == []
    assert len(finished) == actors
    assert (max(finished) - began) < 3 * (min(finished) - began), "one actor was served much less than another"


def test_what_the_inference_raises_reaches_the_callers() -> None:
    batcher = Batcher(BatchRule(min_columns=2, max_columns=2, max_wait=LONG))
    with ThreadPoolExecutor(2) as pool:
        futures = calling(pool, batcher, [1, 1])
        for call in batcher.take():
            call.answer.set_exception(ValueError("the network is broken"))
        for future in futures:
            with pytest.raises(ValueError, match="broken"):
                future.result(LONG)  # type: ignore[attr-defined]


def test_closing_ends_every_wait() -> None:
    batcher = Batcher(BatchRule(min_columns=9, max_columns=9, max_wait=LONG))
    with ThreadPoolExecutor(3) as pool:
        futures = [*calling(pool, batcher, [1, 1]), pool.submit(batcher.take)]
        batcher.close()
        for future in futures:
            with pytest.raises(Closed):
                future.result(LONG)  # type: ignore[attr-defined]
    with pytest.raises(Closed):
        batcher.call(inputs(0))
