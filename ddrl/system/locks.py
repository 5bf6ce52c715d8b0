"""A lock that keeps two processes out of one run directory.

The holder of a lock writes into the lock file who it is: process, user, host, start, and the workflow that started it.
So another process can say for whom it waits. If a killed workflow has left a job behind, the next job of the same
user's workflow may end it: the old job gets SIGTERM, saves a checkpoint, and releases the lock.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Annotated

import psutil
from pydantic import ConfigDict, Field, TypeAdapter

from ddrl.errors import UserError, printable, using
from ddrl.system.files import remove_abandoned

POLL_SECONDS = 0.1
TAKEOVER_SECONDS = 30.0
"""The time for a process whose supervisor was killed to end, before its successor begins."""
LOOK_SECONDS = 1.0
"""Time between two readings of the holder while waiting."""
SAME_START_SECONDS = 1.0
"""The system's reports of one process's start differ by less than this."""
WORKFLOW = "DDRL_WORKFLOW"
"""Environment variable of a workflow's jobs: host, process id and start of the workflow, as JSON."""
LONGEST = 16_384
"""The number of characters of a lock file that are read."""
LONGEST_COMMAND = 1000


@dataclass(frozen=True)
class Started:
    """A process, named by host, id and start, since ids are used again."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)
    host: str
    pid: Annotated[int, Field(gt=1)]
    start: float
    """Seconds since 1970."""


@dataclass(frozen=True)
class Holder:
    """The holder of a lock, as the lock file says."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)
    process: Started
    user: int
    since: str
    command: str
    job: str
    """The number of its SLURM job, or empty."""
    workflow: Started | None
    """The workflow that started it."""

    def describe(self) -> str:
        """Return `process 12 on host n1 (SLURM job 7), since <time>: <command>`."""
        job = f" (SLURM job {self.job})" if self.job else ""
        line = f"process {self.process.pid} on host {self.process.host}{job}, since {self.since}: {self.command}"
        return printable(line)


_HOLDER, _STARTED = TypeAdapter(Holder), TypeAdapter(Started)


@contextmanager
def locked(directory: Path, wait: float = 0.0, note: Callable[[str], None] | None = None) -> Iterator[None]:
    """Hold the lock of a run directory while the block runs; the system releases it when the process dies.

    Wait for the lock for up to `wait` seconds, since a job may run on for a while on a node that a cluster has given
    up. `note` gets lines that say for whom it waits. Temporary files of dead processes are removed.
    """
    with open_lock(directory / "lock") as file:
        take_lock(file, directory, wait, note)
        remove_abandoned(directory)
        try:
            yield
        finally:
            _write(file, "")


def open_lock(path: Path) -> IO[str]:
    """Open a lock file without changing its content. Raise `UserError` if it cannot be opened."""
    with using(path):
        return path.open("a+", encoding="utf-8", errors="replace")


def take_lock(file: IO[str], directory: Path, wait: float, note: Callable[[str], None] | None = None) -> None:
    """Lock the open lock file of a run directory, and write into it who holds the lock.

    Say at once for whom it waits, and ask an orphan of this user's workflow to end, once. Raise `UserError` if another
    process still has the lock after `wait` seconds.
    """
    end, told, asked = time.monotonic() + wait, "", False
    look = time.monotonic()
    while not _taken(file):
        now = time.monotonic()
        if now >= end:
            found = read_holder(file)
            who = f": {found.describe()}" if found else ""
            raise UserError(f"{directory}: another process is training in this run directory{who}")
        if now >= look:
            look = now + LOOK_SECONDS
            holder = read_holder(file)
            who = holder.describe() if holder else "a process that has not said who it is"
            if note and who != told:
                note(f"{directory}: waiting for up to {end - now:,.0f} s for {who}")
            told = who
            if holder and not asked and end_orphan(holder, file):
                asked = True
                if note:
                    note(f"{directory}: the workflow that started it is gone; it was asked to save and end (SIGTERM)")
        time.sleep(POLL_SECONDS)
    me = Holder(
        process=_started(os.getpid()),
        user=os.getuid(),
        since=datetime.now(UTC).isoformat(timespec="seconds"),
        command=" ".join(psutil.Process().cmdline())[:LONGEST_COMMAND],
        job=os.environ.get("SLURM_JOB_ID", ""),
        workflow=_workflow(),
    )
    _write(file, json.dumps(asdict(me), ensure_ascii=False) + "\n")


def announce_workflow() -> None:
    """Tell the jobs that this process will start that it is their workflow."""
    os.environ[WORKFLOW] = json.dumps(asdict(_started(os.getpid())))


def read_holder(file: IO[str]) -> Holder | None:
    """Return the holder that a lock file names, or None if that cannot be read."""
    try:
        file.seek(0)
        return _HOLDER.validate_json(file.read(LONGEST))
    except (OSError, ValueError):
        return None


def end_orphan(holder: Holder, file: IO[str]) -> bool:
    """Send SIGTERM to the holder of a lock if it is certainly our own orphan; return whether it was sent.

    All must hold: both processes are jobs of workflows, on this host, of this user; this one's workflow runs and can be
    seen from here, and the holder's is gone; a process with the holder's id and start exists, belongs to this user, and
    has this very lock file open.
    """
    mine = _workflow()
    if mine is None or not _runs(mine) or holder.workflow is None or holder.user != os.getuid():
        return False
    here = socket.gethostname()
    if holder.process.host != here or holder.workflow.host != here or _runs(holder.workflow):
        return False
    try:
        descriptor = os.pidfd_open(holder.process.pid)  # from here on the id cannot become another process's
    except OSError:
        return False
    try:
        if not (_runs(holder.process) and _has_open(holder.process.pid, file)):
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGTERM)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _taken(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write(file: IO[str], text: str) -> None:
    """Replace the content of a lock file, if the disk allows: the lock itself does not depend on it."""
    with suppress(OSError):
        file.seek(0)
        file.truncate()
        file.write(text)
        file.flush()


def _workflow() -> Started | None:
    """Return the workflow that started this process."""
    try:
        return _STARTED.validate_json(os.environ.get(WORKFLOW, ""))
    except ValueError:
        return None


def _started(pid: int) -> Started:
    return Started(socket.gethostname(), pid, psutil.Process(pid).create_time())


def _runs(process: Started) -> bool:
    """Return whether this process of this host is running, and not a later one with its id."""
    try:
        found = psutil.Process(process.pid)
        same = abs(found.create_time() - process.start) < SAME_START_SECONDS
        return same and found.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _has_open(pid: int, file: IO[str]) -> bool:
    """Return whether a process belongs to this user and has the file open."""
    try:
        found = psutil.Process(pid)
        ours = os.fstat(file.fileno())
        return found.uids().real == os.getuid() and any(_is_at(one.path, ours) for one in found.open_files())
    except psutil.Error:
        return False


def _is_at(path: str, wanted: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(path), wanted)
    except OSError:
        return False
