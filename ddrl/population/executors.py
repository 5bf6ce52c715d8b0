"""Where segments are trained: in this process, one after the other.

`ddrl.population.process_executor` has a process for each that trains at once, `ddrl.population.ray_executor` processes
for the learners and actors of each.
"""

from __future__ import annotations

from typing import Any, Protocol

from ddrl.population.display import View
from ddrl.population.member import Job, LocalSegment, Outcome
from ddrl.training.records.recorder import Counts
from ddrl.types import Metrics


class Executor(Protocol):
    """Takes jobs and says how they ended, in the order in which they end."""

    def has_room(self) -> bool:
        """Whether `begin` may be called."""

    def begin(self, job: Job) -> None:
        """Begins a segment."""

    def next_ended(self) -> Outcome | None:
        """The next outcome; None where there is none yet. Raises what a member raised."""

    def interrupt(self) -> None:
        """Ends all segments early, with checkpoints; also from a signal handler."""


class SerialExecutor:
    """Members in turn, in this process."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._job: Job | None = None
        self._segment: LocalSegment | None = None
        self._interrupted = False

    def has_room(self) -> bool:
        """One at a time."""
        return self._job is None

    def begin(self, job: Job) -> None:
        """It is trained in `next_ended`."""
        self._job = job

    def next_ended(self) -> Outcome | None:
        """Trains."""
        assert self._job is not None
        self._segment = LocalSegment(self._job, MemberDisplay(self._view, self._job.member))
        if self._interrupted:
            self._segment.interrupt()
        outcome = self._segment.train()
        self._job = self._segment = None
        return outcome

    def interrupt(self) -> None:
        """Of the one that trains, or would next."""
        self._interrupted = True
        if self._segment:
            self._segment.interrupt()


class MemberDisplay:
    """Where a member shows how far it is: as a part of its population."""

    def __init__(self, view: View, member: int) -> None:
        self._view = view
        self._member = member

    def __enter__(self) -> MemberDisplay:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        """Nothing to tidy up."""

    def show(self, counts: Counts, latest: Metrics) -> None:
        """How far it is."""
        self._view.show(self._member, counts, 1)

    def done(self, counts: Counts, latest: Metrics) -> None:
        """As `show`."""

    def note(self, line: str) -> None:
        """One line to the user, but for the one that every segment begins with."""
        if not line.startswith("resumed at "):
            self._view.note(f"member {self._member}: {line}")
