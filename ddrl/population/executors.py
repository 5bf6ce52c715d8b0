"""Executors train segments; the one in this file trains them in this process, one after the other.

`ddrl.population.process_executor` has a process for each member that trains at once, `ddrl.population.ray_executor`
processes for the learners and actors of each.
"""

from __future__ import annotations

from typing import Protocol

from ddrl.population.display import View
from ddrl.population.member import Outcome, Segment, train_locally
from ddrl.system.signals import Request
from ddrl.training.records.recorder import Counts
from ddrl.types import Metrics


class Executor(Protocol):
    """Trains segments, and returns their outcomes in the order in which they end; one thread calls its methods."""

    def has_room(self) -> bool:
        """Return whether `begin` may be called."""

    def begin(self, segment: Segment) -> None:
        """Begin a segment."""

    def next_ended(self) -> Outcome | None:
        """Return the next outcome, or None if there is none yet. Raise what a member raised."""

    def interrupt(self) -> None:
        """End all segments early, with checkpoints; may be called in a signal handler."""


class SerialExecutor:
    """Trains members in turn, in this process."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._segment: Segment | None = None
        self._request = Request()
        self.interrupt = self._request.ask

    def has_room(self) -> bool:
        """Return whether no segment was begun."""
        return self._segment is None

    def begin(self, segment: Segment) -> None:
        """Keep a segment, which `next_ended` trains."""
        self._segment = segment

    def next_ended(self) -> Outcome:
        """Train the segment that was begun."""
        assert self._segment is not None
        outcome = train_locally(self._segment, MemberDisplay(self._view, self._segment.member), self._request)
        self._segment = None
        return outcome


class MemberDisplay:
    """Shows how far a member is, as a part of its population."""

    def __init__(self, view: View, member: int) -> None:
        self._view = view
        self._member = member

    def show(self, counts: Counts, latest: Metrics) -> None:
        """Show the counts among those of all members."""
        self._view.show(self._member, counts)

    def note(self, line: str) -> None:
        """Show one line, except the one that every resumed segment begins with."""
        if not line.startswith("resumed at "):
            self._view.note(f"member {self._member}: {line}")

    def complain(self, text: str) -> None:
        """Show a text that the user must read, even of a run that is told to be quiet."""
        self._view.complain(f"member {self._member}: {text}")
