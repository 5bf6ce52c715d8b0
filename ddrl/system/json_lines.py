"""Files of JSON mappings, one per line, that a run appends to: reading them, and setting damaged lines aside.

The last line may be incomplete after a kill; that is not damage.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddrl.errors import using
from ddrl.system.config_differences import spelled
from ddrl.system.files import append, write_whole

MAX_NAMED = 5


@dataclass(frozen=True)
class Lines:
    """The lines of a file."""

    kept: tuple[tuple[bytes, dict[str, Any]], ...]
    """Each good line with its line break, and its mapping."""
    damaged: tuple[tuple[int, bytes], ...]
    """Number, from 1, and content of each damaged line."""
    repeated: int
    """The number of lines left out because they occurred before."""

    @property
    def content(self) -> bytes:
        """The kept lines as one text."""
        return b"".join(line for line, _ in self.kept)

    def describe(self) -> str:
        """Say which lines are damaged and how many are repeated; empty if none."""
        parts = []
        if self.damaged:
            numbers = spelled([str(number) for number, _ in self.damaged], MAX_NAMED)
            parts.append(f"line{'s' * (len(self.damaged) > 1)} {numbers} cannot be read")
        if self.repeated:
            parts.append(f"{self.repeated} line{'s are' if self.repeated > 1 else ' is'} there twice")
        return " and ".join(parts)


def split(content: bytes, is_record: Callable[[Any], bool], *, may_repeat: bool = False) -> Lines:
    """Split a file's content into lines, without an incomplete last one.

    `is_record` says whether a line's mapping is good. Unless `may_repeat`, of equal lines only the first is kept.
    """
    kept: list[tuple[bytes, dict[str, Any]]] = []
    damaged: list[tuple[int, bytes]] = []
    seen: set[bytes] = set()
    repeated = 0
    whole = content[: content.rfind(b"\n") + 1]
    for number, line in enumerate(whole.split(b"\n")[:-1], 1):
        line += b"\n"
        record = _parsed(line)
        if record is None or not is_record(record):
            damaged.append((number, line))
        elif line in seen and not may_repeat:
            repeated += 1
        else:
            seen.add(line)
            kept.append((line, record))
    return Lines(tuple(kept), tuple(damaged), repeated)


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line.decode())
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def aside_of(path: Path) -> Path:
    """Return the path of the file to which damaged lines of `path` are moved."""
    return path.with_name(f"{path.name}.damaged")


def rewrite(path: Path, kept: Sequence[bytes], damaged: Sequence[bytes]) -> None:
    """Append the damaged lines to `aside_of(path)`, then replace `path` by the kept lines."""
    with using(path):
        if damaged:
            with aside_of(path).open("ab", buffering=0) as file:
                append(aside_of(path), file, b"".join(damaged))
        write_whole(path, b"".join(kept))
