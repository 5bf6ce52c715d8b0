"""Temporary folders that a later process removes if their own process was killed.

A folder belongs to the process that holds the lock in it. Process ids would not do: containers may share a /tmp.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import IO

LOCK = "lock"


def claim(folder: Path) -> IO[str]:
    """Lock a folder until the returned file is closed or the process ends."""
    lock = (folder / "new").open("w", encoding="utf-8")
    fcntl.flock(lock, fcntl.LOCK_EX)
    (folder / "new").rename(folder / LOCK)  # renamed after locking, so that the lock file is never seen unlocked
    return lock


def remove_left(parent: Path, prefix: str) -> None:
    """Remove this user's folders in `parent` with this prefix whose process is gone."""
    for folder in parent.glob(f"{prefix}*"):
        with suppress(OSError):  # it is in use, or being made, or cannot be read
            if folder.lstat().st_uid == os.geteuid():
                with (folder / LOCK).open(encoding="utf-8") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
