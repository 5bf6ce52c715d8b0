"""Clocks for the time that roles spend waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class DutyCycle:
    """The fraction of the time in which a role did not wait."""

    def __init__(self, waited: Callable[[], float]) -> None:
        """`waited` returns the seconds of waiting so far."""
        self._waited = waited
        self._last = (time.perf_counter(), waited())

    def take(self) -> float:
        """Return the fraction since the last call; 1 if there was no wait."""
        before, self._last = self._last, (time.perf_counter(), self._waited())
        seconds, waiting = (now - then for now, then in zip(self._last, before, strict=True))
        return min(1.0, max(0.0, 1 - waiting / max(seconds, 1e-9)))


class WaitClock:
    """The seconds that threads have spent waiting, including waits that are not over."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._over = 0.0
        self._begun: list[float] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the time in which the block runs as waiting."""
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
        """Seconds waited so far, summed over all threads."""
        with self._lock:
            now = time.perf_counter()
            return self._over + sum(now - begun for begun in self._begun)


class SteppingClock:
    """The seconds in which environments of several actors step, each actor's one after the other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds = 0.0

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """Count the time in which the block runs."""
        began = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - began
            with self._lock:
                self._seconds += seconds

    @property
    def seconds(self) -> float:
        """Seconds so far, summed over all actors; a step counts when it is over."""
        with self._lock:
            return self._seconds
