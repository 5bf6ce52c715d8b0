"""What runs leave outside of their directories: temporary files, and shared memory that no process maps."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SHARED = Path("/dev/shm")


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
        mapped = _mapped() if new else ""
        return found + [name for name in sorted(new) if name not in mapped]

    try:
        yield left
    finally:
        tempfile.tempdir = None
        if own:
            os.environ.pop("TMPDIR")
            os.environ.update({"TMPDIR": before} if before else {})


def _shared() -> set[str]:
    return {str(path) for path in SHARED.rglob("*") if path.is_file()}


def _mapped() -> str:
    """Everything that any process of this user maps."""
    texts = []
    for path in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            texts.append(path.read_text())
    return "".join(texts)
