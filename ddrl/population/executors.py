"""Where segments are trained: in this process, one after the other.

`ddrl.population.process_executor` has a process for each that trains at once, `ddrl.population.ray_executor` processes
for the learners and actors of each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ddrl.population.display import View
from ddrl.population.member import Job, LocalSegment, Outcome
from ddrl.training.records.recorder import Counts
from ddrl.types import Metrics


class Executor(Protocol):
    """Takes jobs and says how they ended, in the order in which they end; its methods are called by one thread."""

    def has_room(self) -> bool:
        """Return whether `begin` may be called."""

    def begin(self, job: Job) -> None:
        """Begin a segment."""

    def next_ended(self) -> Outcome | None:
        """Return the next outcome, or None where there is none yet. Raise what a member raised."""

    def interrupt(self) -> None:
        """End all segments early, with checkpoints; also from a signal handler."""


class SerialExecutor:
    """Trains members in turn, in this process."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._job: Job | None = None
        self._segment: LocalSegment | None = None
        self._interrupted = False

    def has_room(self) -> bool:
        """Return whether no member trains."""
        return self._job is None

    def begin(self, job: Job) -> None:
        """Keep a segment, which `next_ended` trains."""
        self._job = job

    def next_ended(self) -> Outcome | None:
        """Train the segment that was begun."""
        assert self._job is not None
        self._segment = LocalSegment(self._job, MemberDisplay(self._view, self._job.member))
        if self._interrupted:
            self._segment.interrupt()
        outcome = self._segment.train()
        self._job = self._segment = None
        return outcome

    def interrupt(self) -> None:
        """End the segment that trains, or would next."""
        self._interrupted = True
        if self._segment:
            self._segment.interrupt()


class MemberDisplay:
    """Shows how far a member is, as a part of its population."""

    def __init__(self, view: View, member: int, running: Callable[[], int] = lambda: 1) -> None:
        """`running`: how many members train at once now."""
        self._view = view
        self._member = member
        self._running = running

    def show(self, counts: Counts, latest: Metrics) -> None:
        """Show the counts among those of all members."""
        self._view.show(self._member, counts, self._running())

    def note(self, line: str) -> None:
        """Show one line, but for the one that every segment begins with."""
        if not line.startswith("resumed at "):
            self._view.note(f"member {self._member}: {line}")

    def complain(self, text: str) -> None:
        """Show a text that the user must read."""
        self._view.complain(f"member {self._member}: {text}")
