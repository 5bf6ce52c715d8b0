"""Files that are whole or not there: written beside their place, flushed to disk, renamed. No torch here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside `path`: what the block writes there stands at `path` once the block has ended without an error.

    After an error nothing is left of it, and the old file is as it was.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        _flush(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    _flush(path.parent)  # the rename itself


def write_atomically(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """`path` with what `write` puts into an open file."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        write(file)


def write_whole(path: Path, content: bytes) -> None:
    """`path` with `content`; its folder is made where there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda file: file.write(content))


def remove_abandoned(folder: Path) -> None:
    """Removes what processes of this machine that were killed in `replacing` have left in `folder`.

    For folders that only one machine writes to: a process of another one would look as if it were gone.
    """
    for path in folder.glob(".*.tmp"):
        process = path.suffixes[-2][1:] if len(path.suffixes) > 1 else ""
        if process.isdecimal() and not _runs(int(process)):
            path.unlink(missing_ok=True)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        return True
    return True


def _flush(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
