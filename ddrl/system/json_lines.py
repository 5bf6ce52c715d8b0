"""Files that a run appends to, a JSON mapping a line: what was damaged in them is set aside, and named.

The last line may be cut short by a kill; it is no damage. No torch here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddrl.errors import using
from ddrl.system.files import append, write_whole

MAX_NAMED = 5


@dataclass(frozen=True)
class Lines:
    """What a file holds."""

    kept: tuple[tuple[bytes, dict[str, Any]], ...]
    """Each line with its end, and the mapping in it; of lines that are the same, the first."""
    damaged: tuple[tuple[int, bytes], ...]
    """Number from 1, and content, of lines that are no such mapping."""
    repeated: int

    @property
    def content(self) -> bytes:
        """Of the lines that are kept."""
        return b"".join(line for line, _ in self.kept)

    def describe(self) -> str:
        """Which lines are damaged or repeated; empty where none is."""
        parts = []
        if self.damaged:
            numbers = [str(number) for number, _ in self.damaged]
            more = f" and {len(numbers) - MAX_NAMED} more" if len(numbers) > MAX_NAMED else ""
            parts.append(f"line{'s' * (len(numbers) > 1)} {', '.join(numbers[:MAX_NAMED])}{more} cannot be read")
        if self.repeated:
            parts.append(f"{self.repeated} line{'s are' if self.repeated > 1 else ' is'} there twice")
        return " and ".join(parts)


def split(content: bytes, is_record: Callable[[Any], bool], *, may_repeat: bool = False) -> Lines:
    """The lines of a file's content; what follows the last line's end is left out.

    `is_record`: of what a line holds. With `may_repeat`, lines that are the same are all kept.
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
    """Where damaged lines of a file go."""
    return path.with_name(f"{path.name}.damaged")


def rewrite(path: Path, kept: Sequence[bytes], damaged: Sequence[bytes]) -> None:
    """Makes `path` of the lines to be kept; those that are damaged are added to `aside_of(path)` before."""
    with using(path):
        if damaged:
            with aside_of(path).open("ab", buffering=0) as file:
                append(aside_of(path), file, b"".join(damaged))
        write_whole(path, b"".join(kept))
