"""How long roles wait for each other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class DutyCycle:
    """The part of the time that somebody did not wait."""

    def __init__(self, waited: Callable[[], float]) -> None:
        self._waited = waited
        self._last = (time.perf_counter(), waited())

    def take(self) -> float:
        """Since the last call: 1 where there was no wait at all. `waited` is in seconds, since any beginning."""
        before, self._last = self._last, (time.perf_counter(), self._waited())
        seconds, waiting = (now - then for now, then in zip(self._last, before, strict=True))
        return min(1.0, max(0.0, 1 - waiting / max(seconds, 1e-9)))


class WaitClock:
    """Adds up the seconds that threads wait: those of waits that are over, and of those under way."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._over = 0.0
        self._begun: list[float] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """The calling thread waits within the block."""
        begun = time.perf_counter()
        with self._lock:
            self._begun.append(begun)
        try:
            yield
        finally:
            with self._lock:
                self._begun.remove(begun)
                self._over += time.perf_counter() - begun

    @property
    def seconds(self) -> float:
        """Over all threads, until now."""
        with self._lock:
            now = time.perf_counter()
            return self._over + sum(now - begun for begun in self._begun)
