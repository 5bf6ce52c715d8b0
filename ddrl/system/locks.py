"""Keeps two processes out of one run directory, and says who is in it.

Whoever holds a lock writes into the lock file who that is: process, user, host, since when, and the workflow that has
started it. So another process can say at once whom it waits for. Where a killed workflow has left its job behind, the
next job of the same user's workflow may end that one: it gets SIGTERM, saves a checkpoint, and lets go of the lock.
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
from typing import IO

import psutil

from ddrl.errors import UserError, printable, using
from ddrl.system.files import remove_abandoned

POLL_SECONDS = 0.1
LOOK_SECONDS = 1.0
"""How often who waits looks again who holds the lock."""
SAME_START_SECONDS = 1.0
"""What the system says of a process's start differs by less, from one time to another."""
WORKFLOW = "DDRL_WORKFLOW"
"""Environment variable of a workflow's jobs: host, process id and start of the workflow, as JSON."""
LONGEST = 16_384
"""Characters of a lock file that are read."""
LONGEST_COMMAND = 1000


@dataclass(frozen=True)
class Started:
    """A process: its number alone may have been another one's before."""

    host: str
    pid: int
    start: float
    """In seconds since 1970."""


@dataclass(frozen=True)
class Holder:
    """Who has a lock, as the lock file says."""

    process: Started
    user: int
    since: str
    command: str
    job: str
    """Number of the SLURM job that it is of; empty: of none."""
    workflow: Started | None
    """The workflow that has started it."""

    def describe(self) -> str:
        """Return `process 12 on host n1 (SLURM job 7), since <time>: <command>`."""
        job = f" (SLURM job {self.job})" if self.job else ""
        line = f"process {self.process.pid} on host {self.process.host}{job}, since {self.since}: {self.command}"
        return printable(line)


@contextmanager
def locked(directory: Path, wait: float = 0.0, note: Callable[[str], None] | None = None) -> Iterator[None]:
    """Keeps two processes out of one run directory; the system releases the lock of a dead holder,
    and what that one was writing is removed.

    Waits for the lock up to `wait` seconds: where a cluster gives up a node, the job may run on there for a while.
    `note` takes a line that says whom it waits for.
    """
    with open_lock(directory / "lock") as file:
        take_lock(file, directory, wait, note)
        remove_abandoned(directory)
        try:
            yield
        finally:
            _write(file, "")


def open_lock(path: Path) -> IO[str]:
    """Open a lock file and leave what its holder has written. Raise `UserError` where it cannot be opened."""
    with using(path):
        return path.open("a+", encoding="utf-8", errors="replace")


def take_lock(file: IO[str], directory: Path, wait: float, note: Callable[[str], None] | None = None) -> None:
    """Locks an open file of a run directory, and writes into it who has the lock.

    Says at once whom it waits for. An orphan of this user's workflow is asked to end, once. Raises `UserError` where
    somebody else has the lock for `wait` seconds more.
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
    _write(file, json.dumps(asdict(_myself()), ensure_ascii=False) + "\n")


def announce_workflow() -> None:
    """Tells the jobs that this process will start that it is their workflow."""
    os.environ[WORKFLOW] = json.dumps(asdict(_started(os.getpid())))


def read_holder(file: IO[str]) -> Holder | None:
    """Return who has written into a lock file; None where that cannot be read."""
    try:
        file.seek(0)
        said = json.loads(file.read(LONGEST))
        process, workflow = Started(**said.pop("process")), said.pop("workflow")
        holder = Holder(process=process, workflow=Started(**workflow) if workflow else None, **said)
        return holder if _is_sound(holder) else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def end_orphan(holder: Holder, file: IO[str]) -> bool:
    """Send SIGTERM to the holder of a lock if it is our own orphan beyond doubt; return whether it was sent.

    All must hold: both are jobs of workflows, on this host, of this user; this one's workflow can be seen from here,
    and the holder's is gone; a process of the holder's number and start exists, belongs to this user, and has this very
    lock file open.
    """
    mine = _workflow()
    if mine is None or not _runs(mine) or holder.workflow is None or holder.user != os.getuid():
        return False
    here = socket.gethostname()
    if holder.process.host != here or holder.workflow.host != here or _runs(holder.workflow):
        return False
    try:
        descriptor = os.pidfd_open(holder.process.pid)  # from here on the number cannot become another process's
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
    """Into a lock file; a full disk costs others the words, not this process its lock."""
    with suppress(OSError):
        file.seek(0)
        file.truncate()
        file.write(text)
        file.flush()


def _myself() -> Holder:
    return Holder(
        process=_started(os.getpid()),
        user=os.getuid(),
        since=datetime.now(UTC).isoformat(timespec="seconds"),
        command=" ".join(psutil.Process().cmdline())[:LONGEST_COMMAND],
        job=os.environ.get("SLURM_JOB_ID", ""),
        workflow=_workflow(),
    )


def _workflow() -> Started | None:
    """The one that has started this process."""
    try:
        workflow = Started(**json.loads(os.environ.get(WORKFLOW, "")))
    except (ValueError, TypeError):
        return None
    return workflow if _is_process(workflow) else None


def _started(pid: int) -> Started:
    return Started(socket.gethostname(), pid, psutil.Process(pid).create_time())


def _runs(process: Started) -> bool:
    """Whether this very process of this host goes on, not a later one with its number."""
    try:
        found = psutil.Process(process.pid)
        same = abs(found.create_time() - process.start) < SAME_START_SECONDS
        return same and found.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _has_open(pid: int, file: IO[str]) -> bool:
    """Whether a process of this user has the file open."""
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


def _is_process(one: Started) -> bool:
    return type(one.pid) is int and one.pid > 1 and type(one.start) in (int, float) and isinstance(one.host, str)


def _is_sound(holder: Holder) -> bool:
    texts = (holder.since, holder.command, holder.job)
    processes = [holder.process, *([holder.workflow] if holder.workflow else [])]
    return type(holder.user) is int and all(map(_is_process, processes)) and all(isinstance(one, str) for one in texts)
