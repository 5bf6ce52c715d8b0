"""Waiting for a condition until the run is over."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from ddrl.errors import Closed
from ddrl.system.closable_condition import ClosableCondition
from ddrl.system.wait_clock import WaitClock

SECONDS = 10.0
Begin = Callable[[Callable[[], object]], "Future[object]"]


@pytest.fixture
def condition() -> ClosableCondition:
    return ClosableCondition()


@pytest.fixture
def begin(condition: ClosableCondition) -> Iterator[Begin]:
    """Calls a function in a thread of its own, with the lock; returns once the thread has given up the lock."""
    with ThreadPoolExecutor() as pool:

        def start(wait: Callable[[], object]) -> Future[object]:
            began = threading.Event()

            def work() -> object:
                with condition:
                    began.set()
                    return wait()

            future = pool.submit(work)
            assert began.wait(SECONDS)
            with condition:
                return future

        yield start
        condition.close()  # so that a test that failed leaves no thread behind


def test_a_wait_ends_once_its_predicate_is_true_and_not_before(condition: ClosableCondition, begin: Begin) -> None:
    ready: list[int] = []
    waiting = begin(lambda: condition.wait_until(lambda: len(ready) == 2))
    for number in range(2):
        with condition:
            assert not waiting.done()
            ready.append(number)
            condition.notify_all()
    waiting.result(SECONDS)
    assert not condition.closed


def test_a_close_ends_the_waits_of_all_threads(condition: ClosableCondition, begin: Begin) -> None:
    waits = [begin(lambda: condition.wait_until(lambda: False)) for _ in range(3)]
    condition.close()
    for waiting in waits:
        with pytest.raises(Closed):
            waiting.result(SECONDS)
    assert condition.closed


def test_once_closed_it_raises_even_where_there_is_nothing_to_wait_for(condition: ClosableCondition) -> None:
    with condition:
        condition.wait_until(lambda: True)
        condition.close()
        condition.close()
        with pytest.raises(Closed):
            condition.wait_until(lambda: True)


def test_a_wait_gives_up_the_lock_however_often_its_thread_has_it(condition: ClosableCondition, begin: Begin) -> None:
    ready: list[int] = []

    def wait() -> None:
        with condition, condition:
            condition.wait_until(lambda: bool(ready))

    waiting = begin(wait)
    with condition:
        ready.append(1)
        condition.notify_all()
    waiting.result(SECONDS)


def test_what_must_happen_at_the_end_too_can_be_waited_for(condition: ClosableCondition, begin: Begin) -> None:
    ready: list[int] = []
    waiting = begin(lambda: condition.wait_for(lambda: bool(ready), SECONDS))
    condition.close()
    with condition:
        assert not waiting.done()
        ready.append(1)
        condition.notify_all()
    assert waiting.result(SECONDS)


def test_the_clock_counts_a_wait_also_where_a_close_ends_it(condition: ClosableCondition, begin: Begin) -> None:
    clock = WaitClock()
    waiting = begin(lambda: condition.wait_until(lambda: False, clock))
    time.sleep(0.02)
    condition.close()
    with pytest.raises(Closed):
        waiting.result(SECONDS)
    over = clock.seconds
    assert over >= 0.02
    assert clock.seconds == over, "it has stopped"


def test_the_lock_is_released_where_the_block_raises(condition: ClosableCondition, begin: Begin) -> None:
    with pytest.raises(ZeroDivisionError), condition:
        raise ZeroDivisionError
    begin(lambda: None).result(SECONDS)
