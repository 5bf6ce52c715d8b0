"""A register of the calls into environments that are running in this process, with notes about slow ones.

A simulator may hang for ever, also in native code. No call is ended for being slow, since no limit suits all: a first
reset may compile shaders for minutes, and a level may be built for hours. A hanging run is ended by a signal
(`ddrl.system.signals`).
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ddrl.system.notes import say

FIRST_SECONDS = 60.0
"""Age of a call at its first note; the time between notes doubles, up to `LONGEST_SECONDS`."""
LONGEST_SECONDS = 3600.0
POLL_SECONDS = 1.0
NOTABLE_SECONDS = 1.0
"""Calls younger than this are not mentioned when the watch ends."""


class EnvironmentCall:
    """A context manager that registers a call into environments while its block runs.

    It is a class and not a generator for speed: every environment step is a call.
    """

    __slots__ = ("began", "name", "thread")

    def __init__(self, name: str) -> None:
        """`name`: of the environments, for messages."""
        self.name = name
        self.thread = threading.get_ident()
        self.began = time.monotonic()

    def __enter__(self) -> None:
        _UNDER_WAY.add(self)

    def __exit__(self, *error: object) -> None:
        _UNDER_WAY.discard(self)

    @property
    def seconds(self) -> float:
        """Seconds since the call began."""
        return time.monotonic() - self.began

    def __str__(self) -> str:
        frame = sys._current_frames().get(self.thread)
        place = f" (in {frame.f_code.co_filename}, line {frame.f_lineno})" if frame else ""
        return f"{self.name} has not answered for {self.seconds:.0f} s{place}"


_UNDER_WAY: set[EnvironmentCall] = set()
"""Adding, discarding and copying are atomic, so it needs no lock."""


def under_way(seconds: float = 0.0) -> list[EnvironmentCall]:
    """Return the calls that have been running for at least `seconds`, oldest first."""
    return sorted((call for call in _UNDER_WAY.copy() if call.seconds >= seconds), key=lambda call: call.began)


@contextmanager
def watched(
    note: Callable[[str], None] = say, give_up: Callable[[EnvironmentCall], None] = lambda call: None
) -> Iterator[None]:
    """Report calls that do not return while the block runs: pass a line to `note`, and the call to `give_up`.

    When the block ends, calls of other threads that are still running are reported once more.
    """
    over = threading.Event()

    def watch() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # the main thread handles signals
        due: dict[EnvironmentCall, float] = {}
        while not over.wait(min(POLL_SECONDS, FIRST_SECONDS)):
            calls = under_way(FIRST_SECONDS)
            due = {call: due.get(call, FIRST_SECONDS) for call in calls}
            for call in calls:
                if call.seconds >= due[call]:
                    note(str(call))
                    due[call] += min(due[call], LONGEST_SECONDS)
                    give_up(call)

    thread = threading.Thread(target=watch, name="watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(POLL_SECONDS)
        for call in under_way(NOTABLE_SECONDS):
            if call.thread != threading.get_ident():
                note(f"{call}; nobody waits for it any more")
