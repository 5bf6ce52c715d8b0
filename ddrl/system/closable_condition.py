"""A condition on which the threads of a run wait for each other, until the run is over."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from ddrl.errors import Closed
from ddrl.system.wait_clock import WaitClock


class ClosableCondition:
    """A `threading.Condition` that can be closed. The thread that holds its lock may take it again."""

    def __init__(self) -> None:
        self.closed = False
        self._condition = threading.Condition()
        self.wait_for, self.notify_all = self._condition.wait_for, self._condition.notify_all

    def __enter__(self) -> None:
        self._condition.acquire()

    def __exit__(self, *error: object) -> None:
        self._condition.release()

    def wait_until(self, predicate: Callable[[], bool], clock: WaitClock | None = None) -> None:
        """Wait, with the lock held, until `predicate()` is true; count the time on `clock`. Raise Closed if closed."""
        with clock.running() if clock else nullcontext():
            self.wait_for(lambda: self.closed or predicate())
        if self.closed:
            raise Closed

    def close(self) -> None:
        """End every `wait_until` with Closed; `wait_for` waits on."""
        with self:
            self.closed = True
            self.notify_all()


class SharedStore:
    """A store that actors bring something to and that a learner takes it from, where either may have to wait."""

    def __init__(self) -> None:
        self._changed = ClosableCondition()
        self._insert_clock, self._sample_clock = WaitClock(), WaitClock()
        self._frozen = False

    @property
    def insert_waited(self) -> float:
        """Seconds that actors waited to insert, over all of them."""
        return self._insert_clock.seconds

    @property
    def sample_waited(self) -> float:
        """Seconds that the learner waited for what it takes."""
        return self._sample_clock.seconds

    @contextmanager
    def _kept_frozen(self, is_still: Callable[[], bool]) -> Iterator[None]:
        """Set `_frozen` within the block, which begins once `is_still()`."""
        with self._changed:
            self._frozen = True
            self._changed.wait_for(is_still)
        try:
            yield
        finally:
            with self._changed:
                self._frozen = False
                self._changed.notify_all()

    def close(self) -> None:
        """End every wait with `Closed`."""
        self._changed.close()
