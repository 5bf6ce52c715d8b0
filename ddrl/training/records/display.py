"""Displays of a run's progress."""

from __future__ import annotations

from typing import Protocol

from ddrl.training.records.recorder import Counts
from ddrl.types import Metrics


class Display(Protocol):
    """Shows how far a run is to the user, or passes it on."""

    def show(self, counts: Counts, latest: Metrics) -> None:
        """Show how far the run is and its newest metrics; called after every update."""

    def note(self, line: str) -> None:
        """Show one line."""

    def complain(self, text: str) -> None:
        """Show a text that the user must read, even of a run that is told to be quiet."""


class Relay:
    """A display that keeps what it is told until another process asks for it."""

    def __init__(self) -> None:
        self.counts: Counts | None = None
        """The newest counts of the run; None before its first update."""
        self.latest: Metrics = {}
        self._notes: list[str] = []

    def show(self, counts: Counts, latest: Metrics) -> None:
        """Keep the newest counts and metrics."""
        self.counts, self.latest = counts, dict(latest)

    def note(self, line: str) -> None:
        """Keep a line."""
        self._notes.append(line)

    complain = note

    def take_notes(self) -> list[str]:
        """Return the lines since the last call."""
        notes, self._notes = self._notes, []
        return notes
