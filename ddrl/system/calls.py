"""Which calls into environments are under way in this process, and a note where one does not return.

A simulator may hang for ever, in native code too, and a run that waits for it says nothing by itself. None is ended for
that: a first reset may compile shaders for minutes, a level may be built for hours, somebody may debug a step; and
nobody knows of a limit that is right for all. What ends a run that hangs is a signal (`ddrl.system.signals`).
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
"""Until the first note on a call; each other one comes after twice as long."""
LONGEST_SECONDS = 3600.0
"""Between two notes."""
POLL_SECONDS = 1.0
NOTABLE_SECONDS = 1.0
"""A call that is younger when the watch ends is about to return."""


class Call:
    """One call, which is under way within its block. No generator makes it: every step of an environment is one."""

    __slots__ = ("began", "name", "thread")

    def __init__(self, name: str) -> None:
        self.name = name
        """Of the environments, as messages call them."""
        self.thread = threading.get_ident()
        self.began = time.monotonic()

    def __enter__(self) -> None:
        _UNDER_WAY.add(self)

    def __exit__(self, *error: object) -> None:
        _UNDER_WAY.discard(self)

    @property
    def seconds(self) -> float:
        """Since its beginning."""
        return time.monotonic() - self.began

    def __str__(self) -> str:
        frame = sys._current_frames().get(self.thread)
        place = f" (in {frame.f_code.co_filename}, line {frame.f_lineno})" if frame else ""
        return f"{self.name} has not answered for {self.seconds:.0f} s{place}"


_UNDER_WAY: set[Call] = set()
"""Adding, discarding and copying are single operations, which threads cannot come between."""


def under_way(seconds: float = 0.0) -> list[Call]:
    """Return the calls that have been under way for at least so long, the oldest first."""
    return sorted((call for call in _UNDER_WAY.copy() if call.seconds >= seconds), key=lambda call: call.began)


@contextmanager
def watched(note: Callable[[str], None] = say, give_up: Callable[[Call], None] = lambda call: None) -> Iterator[None]:
    """Within the block `note` gets a line, now and then, for each call that does not return.

    `give_up` is called beside each note. Calls of other threads that are under way at the end are named once more:
    whoever waits for nobody any more goes on without them.
    """
    over = threading.Event()

    def watch() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are for the main thread
        due: dict[Call, float] = {}
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
