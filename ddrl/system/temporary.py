"""Temporary folders that outlive a killed process are removed by the next one. No torch here.

A folder belongs to whoever holds the lock in it: process ids say nothing where containers share a /tmp.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path
from typing import IO

LOCK = "lock"


def claim(folder: Path) -> IO[str]:
    """Locks a folder until the file that is returned is closed, or the process ends, however it ends."""
    lock = (folder / "new").open("w", encoding="utf-8")
    fcntl.flock(lock, fcntl.LOCK_EX)
    (folder / "new").rename(folder / LOCK)  # at no time is there a lock that is free
    return lock


def remove_left(parent: Path, prefix: str) -> None:
    """Removes the folders of that name which were claimed, and whose process is gone."""
    for folder in parent.glob(f"{prefix}*"):
        _remove_if_left(folder)


def _remove_if_left(folder: Path) -> None:
    try:
        if folder.lstat().st_uid != os.geteuid():
            return
        with (folder / LOCK).open(encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    except OSError:  # it is in use, is being made, or belongs to somebody else
        return
