"""What was done and how it ended: one row for each kind of disturbance, and the details of what went wrong."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

SHOWN = 5
"""So many failures of a row are spelled out."""
LINE_SECONDS = 20.0


@dataclass(frozen=True)
class Row:
    """One kind of disturbance."""

    part: str
    name: str
    done: list[str] = field(default_factory=list)
    """One entry for each disturbance: what followed."""
    failures: list[str] = field(default_factory=list)
    measured: dict[str, float] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)
    ended: list[float] = field(default_factory=list)

    def count(self, what: str, number: int = 1) -> None:
        """Note that disturbances ended so."""
        self.done.extend([what] * number)

    def fail(self, what: str) -> None:
        """Note something lost, crashed or left behind, with how to find it again."""
        self.failures.append(what)

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.ended[-1] if self.ended else time.monotonic()) - self.started

    def as_json(self) -> dict[str, Any]:
        """Return all of it as plain data."""
        outcomes = {what: self.done.count(what) for what in sorted(set(self.done))}
        return {
            "part": self.part,
            "name": self.name,
            "disturbances": len(self.done),
            "outcomes": outcomes,
            "failures": self.failures,
            "measured": self.measured,
            "seconds": round(self.seconds, 1),
        }

    def line(self) -> str:
        """Return one line of the table."""
        outcomes = {what: self.done.count(what) for what in sorted(set(self.done))}
        said = ", ".join(f"{number:,} {what}" for what, number in outcomes.items())
        said += "".join(f", {name} {value:g}" for name, value in self.measured.items())
        verdict = f"{len(self.failures)} FAILED" if self.failures else "held"
        return f"{self.part:8} {self.name:34} {len(self.done):9,} {verdict:>10} {self.seconds:7.0f} s  {said}"


def _line(error: BaseException) -> str:
    """Where it was raised."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{place.lineno} of {place.filename}"


class Tally:
    """All rows, printed as they come."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self.rows: list[Row] = []
        self._note = note
        self._last = time.monotonic()

    @contextmanager
    def row(self, part: str, name: str) -> Iterator[Row]:
        """A row, printed when the block ends; what the block raises is a failure of this row alone."""
        row = Row(part, name)
        self.rows.append(row)
        try:
            yield row
        except Exception as error:
            row.fail(f"{type(error).__name__}: {error} (line {_line(error)})")
        finally:
            row.ended.append(time.monotonic())
            self._note(row.line())
            for failure in row.failures[:SHOWN]:
                self._note(f"           {failure}")
            if len(row.failures) > SHOWN:
                self._note(f"           and {len(row.failures) - SHOWN} more")

    def progress(self, line: str) -> None:
        """Say how far it is, now and then."""
        now = time.monotonic()
        if now - self._last > LINE_SECONDS:
            self._last = now
            self._note(f"  ... {line}")

    @property
    def failed(self) -> int:
        """Number of failures."""
        return sum(len(row.failures) for row in self.rows)

    def summary(self) -> list[str]:
        """Return one line for each part."""
        lines = []
        for part in dict.fromkeys(row.part for row in self.rows):
            rows = [row for row in self.rows if row.part == part]
            done, failures = sum(len(row.done) for row in rows), sum(len(row.failures) for row in rows)
            seconds = sum(row.seconds for row in rows)
            lines.append(f"{part:8} {done:9,} disturbances, {failures} failed, {seconds:,.0f} s")
        return lines
