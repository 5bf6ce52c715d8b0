"""What runs leave outside of their directories: temporary files, and shared memory that no process maps."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SHARED = Path("/dev/shm")
MAPPED_SECONDS = 3.0
"""Within which whoever has made a segment maps it: other programs of the machine make theirs meanwhile."""


@contextmanager
def watched(folder: Path, *, own: bool) -> Iterator[Callable[[], list[str]]]:
    """Give what is forked in the block a temporary folder, where it may have its `own`.

    Ray's sockets need short paths and stay where they are. The value returns what was left since the last call, and
    removes it from the folder.
    """
    before, known = os.environ.get("TMPDIR"), _shared()
    folder.mkdir(parents=True, exist_ok=True)
    if own:
        os.environ["TMPDIR"], tempfile.tempdir = str(folder), None

    def left() -> list[str]:
        found = [str(path) for path in folder.iterdir()]
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        new = _shared() - known
        known.update(new)
        end = time.monotonic() + MAPPED_SECONDS
        while (nobodys := _unmapped(new)) and time.monotonic() < end:
            time.sleep(0.1)
        return found + sorted(nobodys)

    try:
        yield left
    finally:
        tempfile.tempdir = None
        if own:
            os.environ.pop("TMPDIR")
            os.environ.update({"TMPDIR": before} if before else {})


def _shared() -> set[str]:
    return {str(path) for path in SHARED.rglob("*") if path.is_file()}


def _unmapped(names: set[str]) -> set[str]:
    """Which of these segments are still there and no process of this user maps."""
    there = names & _shared()
    texts = []
    for path in Path("/proc").glob("[0-9]*/maps") if there else ():
        with suppress(OSError):
            texts.append(path.read_text())
    mapped = "".join(texts)
    return {name for name in there if name not in mapped}
