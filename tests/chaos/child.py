"""Commands of `ddrl` in processes that are forked from this one, which has imported what they need.

A start costs a hundredth of a second instead of three. This process itself must run nothing that makes threads.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

POLL_SECONDS = 0.005
ENDS_SECONDS = 120.0
"""After which a command that should have ended counts as hung."""


def warm() -> None:
    """Import what every run needs."""
    import pandas  # noqa: F401
    import torch  # noqa: F401

    import ddrl.population.controller
    import ddrl.training.run  # noqa: F401
    from ddrl import algorithms

    for name in algorithms.NAMES:
        algorithms.load(name)
    names = [(thread / "comm").read_text().strip() for thread in Path("/proc/self/task").iterdir()]
    others = [name for name in names[1:] if name != "jemalloc_bg_thd"]  # of pyarrow; it sees to its own after a fork
    if others:
        print(f"chaos: this process has threads {', '.join(others)}; what it forks may hang", file=sys.stderr)


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int | None
    """Negative: the signal; None: it went on for too long, and was killed."""
    said: str
    seconds: float

    @property
    def complaint(self) -> str:
        """What is wrong with how it ended, where a user may see 0, 2 and 75; empty: nothing."""
        last = (self.said.strip().splitlines() or [""])[-1][:200]
        if self.code is None:
            return f"hung: {last}"
        if "Traceback (most recent call last)" in self.said:
            return f"exit {self.code} with a traceback: {last}"
        if self.code not in (0, 2, 75):
            return f"exit {self.code}: {last}"
        if self.code == 2 and not last.startswith("ddrl: "):
            return f"exit 2 without a line: {last}"
        return ""


class Child:
    """A command in a session of its own; what it prints goes to a file."""

    def __init__(self, arguments: Sequence[object], log: Path, before: Callable[[], None] | None = None) -> None:
        """`before` is called in the child: it may break things there."""
        self._log, self._started = log, time.monotonic()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _become([str(one) for one in arguments], log, before)
        self._code: int | None = None

    def poll(self) -> bool:
        """Return whether it has ended."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code is not None

    def kill(self) -> None:
        """SIGKILL to it and to all of its session's group."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def family(self) -> list[psutil.Process]:
        """Return it and what it has started."""
        with suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self.pid)
            return [parent, *parent.children(recursive=True)]
        return []

    def end(self, seconds: float = ENDS_SECONDS) -> Ended:
        """Wait until it has ended; kill it where that takes too long."""
        limit = time.monotonic() + seconds
        hung = False
        while not self.poll():
            if time.monotonic() > limit:
                hung = True
                self.kill()
            time.sleep(POLL_SECONDS)
        said = self._log.read_text(errors="replace") if self._log.exists() else ""
        return Ended(None if hung else self._code, said, time.monotonic() - self._started)


def _become(arguments: list[str], log: Path, before: Callable[[], None] | None) -> None:
    """Be the command; never returns."""
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with log.open("wb") as file, open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # noqa: SIM115
        if before:
            before()
        from ddrl import cli

        code = cli.main(arguments)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def run(arguments: Sequence[object], log: Path, before: Callable[[], None] | None = None) -> Ended:
    """Return how a command ended."""
    return Child(arguments, log, before).end()
