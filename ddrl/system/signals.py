"""The signals that stop a run, also where an environment hangs.

After a first signal the run saves a checkpoint and ends with code 75. A second one, which schedulers often send,
changes nothing. A third one ends the process at once, unless it comes within `PATIENCE_SECONDS` of the first.

A run never saves a half-made step. Where roles take turns in the main thread (runtime serial, members of a population
in turn, the final evaluation), an environment that hangs there prevents saving. Then the process ends by itself once
the call has lasted `PATIENCE_SECONDS` after the signal, and the next start continues from the newest checkpoint.
Elsewhere roles have threads or processes of their own: the learner saves, and an actor that hangs is left behind.

Python runs signal handlers in the main thread, and not while that is in native code. So another thread listens too,
through a pipe to which the interpreter writes each signal at once. Native code that hangs while it holds the
interpreter's lock can only be ended by SIGKILL.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ddrl.errors import TRY_AGAIN
from ddrl.system.calls import under_way
from ddrl.system.notes import say, settle

STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
"""Sent by schedulers, by Ctrl-C, by a terminal that is closed, and by SLURM's `--signal`."""
PATIENCE_SECONDS = 10.0
POLL_SECONDS = 0.25
CHECKPOINTS = ("checkpoints/*.sha256", "members/*/checkpoints/*.sha256")


class StopRequest:
    """A request to stop, which may come before there is something to stop."""

    def __init__(self) -> None:
        self._asked = False
        self._stop: Callable[[], None] | None = None

    def ask(self) -> None:
        """Stop now, or as soon as `answer` is called; safe in a signal handler."""
        self._asked = True
        if self._stop:
            self._stop()

    def answer(self, stop: Callable[[], None]) -> None:
        """Set the function that stops, and call it if the request has already come."""
        self._stop = stop
        if self._asked:
            stop()


@contextmanager
def stopping(stop: Callable[[], None], directory: Path | None = None) -> Iterator[None]:
    """Call `stop` at any signal of `STOP` while the block runs; SIGHUP stays ignored if it was (`nohup`).

    If `stop` does not help, end the process as the module's docstring says: with code 75 if `directory` is None
    (nothing is ever saved) or holds a checkpoint, else with 128 and the signal's number. Use it in the main thread
    only.
    """
    numbers = [one for one in STOP if not (one == signal.SIGHUP and signal.getsignal(one) is signal.SIG_IGN)]
    before = {number: signal.signal(number, lambda *_: stop()) for number in numbers}
    heard, tell = os.pipe()
    os.set_blocking(tell, False)
    wakeup = signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    listener = threading.Thread(target=_listen, args=(heard, numbers, directory), name="signals", daemon=True)
    listener.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(tell)  # ends the listener
        listener.join()
        os.close(heard)


def _listen(heard: int, numbers: list[signal.Signals], directory: Path | None) -> None:
    """Count the signals until the pipe is closed, and end the process if it does not end by itself."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP)  # the main thread handles them
    main = threading.main_thread().ident
    asked, first, count = 0.0, 0, 0
    while True:
        if select.select([heard], [], [], POLL_SECONDS if count else None)[0]:
            received = os.read(heard, 1)
            if not received:
                return
            if received[0] not in numbers:
                continue
            asked, first, count = (asked, first, count + 1) if count else (time.monotonic(), received[0], 1)
            if count == 2:
                say(f"stopping already; a third signal, after {PATIENCE_SECONDS:.0f} s, ends this at once")
        waited = time.monotonic() - asked
        if count and waited >= PATIENCE_SECONDS:
            if hanging := [call for call in under_way(PATIENCE_SECONDS) if call.thread == main]:
                _end(f"{hanging[0]}: ended without it", first, directory)
            if count > 2:
                _end("ended at once, as was asked three times", first, directory)


def _end(why: str, number: int, directory: Path | None) -> None:
    """End the process now, and say where the next start continues."""
    say(f"ddrl: {why}; {next_start(newest_checkpoint(directory))}" if directory else f"ddrl: {why}")
    settle()
    os._exit(TRY_AGAIN if directory is None or newest_checkpoint(directory) else 128 + number)


def newest_checkpoint(directory: Path) -> Path | None:
    """Return the newest complete checkpoint of a run or of any member of a population, or None."""
    found: list[tuple[float, Path]] = []
    for path in (path for pattern in CHECKPOINTS for path in directory.glob(pattern)):
        with suppress(FileNotFoundError):  # an old one, removed in the meantime
            found.append((path.stat().st_mtime, path.with_suffix(".pt")))
    return max(found)[1] if found else None


def next_start(newest: Path | None) -> str:
    """Say for the user from where a run continues when it is started again; `newest` is its newest checkpoint."""
    return f"the same command goes on from {newest}" if newest else "no checkpoint yet: the same command begins anew"


def stopped(env_frames: int, newest: Path | None) -> str:
    """Return the last line of a run that a signal has stopped after `env_frames`; `newest` as in `next_start`."""
    return f"stopped at {env_frames:,} frames, {'which are saved' if newest else 'not saved'}; {next_start(newest)}"


@contextmanager
def deaf_children(*signals: signal.Signals) -> Iterator[None]:
    """Block `signals` for processes started in the block, and their children; for this process, until the block ends.

    SLURM and terminals signal all processes of a job at once, but the run needs these processes for its checkpoint.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
