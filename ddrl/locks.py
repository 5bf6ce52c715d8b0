"""Keeps two processes out of one run directory."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ddrl.errors import UserError, using
from ddrl.files import remove_abandoned

POLL_SECONDS = 0.1


@contextmanager
def locked(directory: Path, wait: float = 0.0) -> Iterator[None]:
    """Keeps two processes out of one run directory; the system releases the lock of a dead holder, and what
    that one was writing is removed.

    Waits for the lock up to `wait` seconds: where a cluster gives up a node, the job may run on there for a while.
    """
    with using(directory / "lock"):
        file = (directory / "lock").open("w", encoding="utf-8")
    with file:
        take_lock(file, directory, wait)
        remove_abandoned(directory)
        yield


def take_lock(file: IO[str], directory: Path, wait: float) -> None:
    """Locks an open file of a run directory. Raises `UserError` where somebody else has it for `wait` seconds more."""
    end = time.monotonic() + wait
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                raise UserError(f"{directory}: another process is training in this run directory") from None
            time.sleep(POLL_SECONDS)
        else:
            return
