"""A condition on which the threads of a run wait for each other, until the run is over."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext

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
        if not self.closed and not predicate():
            with clock.running() if clock else nullcontext():
                self.wait_for(lambda: self.closed or predicate())
        if self.closed:
            raise Closed

    def close(self) -> None:
        """End every `wait_until` with Closed; `wait_for` waits on."""
        with self:
            self.closed = True
            self.notify_all()
