"""The signals that stop a run, and what becomes of a run that cannot stop because an environment hangs.

A first signal asks: the run saves a checkpoint and ends with code 75. A second one, which schedulers like to send,
changes nothing. A third one ends the process at once, unless it comes within `PATIENCE_SECONDS` of the first.

What a run saves is whole: never a state that is half stepped. Where roles take turns in the main thread (runtime
serial, members of a population in turn, the final evaluation), an environment that hangs keeps that thread from ever
saving. There the process ends by itself once a call has been under way for `PATIENCE_SECONDS` after the signal, and
the newest checkpoint that was saved until then is what the next start goes on from. Elsewhere roles have threads or
processes of their own: the learner saves, and an actor that hangs is left behind.

Python runs its handlers between two steps of the main thread, so never while that is inside native code. Hence a thread
hears the signals too, through a pipe that the interpreter writes to at once. Native code that neither returns nor lets
other threads run (it holds the global lock) is beyond help: only SIGKILL ends it.
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
"""Of schedulers, a terminal's Ctrl-C, a terminal that is closed, and SLURM's `--signal`."""
PATIENCE_SECONDS = 10.0
POLL_SECONDS = 0.25
CHECKPOINTS = ("checkpoints/*.sha256", "members/*/checkpoints/*.sha256")


class Request:
    """A request to stop that may come before there is who can answer it."""

    def __init__(self) -> None:
        self._asked = False
        self._stop: Callable[[], None] | None = None

    def ask(self) -> None:
        """Stop, now or as soon as somebody can; from a signal handler too."""
        self._asked = True
        if self._stop:
            self._stop()

    def answer(self, stop: Callable[[], None]) -> None:
        """From now on `stop` is what stops."""
        self._stop = stop
        if self._asked:
            stop()


@contextmanager
def stopping(stop: Callable[[], None], directory: Path | None = None) -> Iterator[None]:
    """Any signal of `STOP` calls `stop` within the block; SIGHUP stays ignored where it was (`nohup`).

    Where it does not help, the process ends as this file's beginning says: with code 75 if there is a checkpoint in
    `directory` (None: nothing is ever saved), else as the signal would have ended it. To be used in the main thread.
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
        os.close(tell)  # the listener ends
        listener.join()
        os.close(heard)


def _listen(heard: int, numbers: list[signal.Signals], directory: Path | None) -> None:
    """Until the pipe is closed: count the signals, and end the process where it does not end by itself."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP)  # they are for the main thread
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
    """End the process now; say where the next start goes on."""
    say(f"ddrl: {why}; {next_start(directory)}" if directory else f"ddrl: {why}")
    settle()
    os._exit(TRY_AGAIN if directory is None or newest_checkpoint(directory) else 128 + number)


def newest_checkpoint(directory: Path) -> Path | None:
    """Return the newest whole checkpoint of a run, or of any member of a population; None where there is none."""
    found: list[tuple[float, Path]] = []
    for path in (path for pattern in CHECKPOINTS for path in directory.glob(pattern)):
        with suppress(FileNotFoundError):  # an old one, removed meanwhile
            found.append((path.stat().st_mtime, path.with_suffix(".pt")))
    return max(found)[1] if found else None


def next_start(directory: Path) -> str:
    """Return what the user should know of starting the run in `directory` again."""
    newest = newest_checkpoint(directory)
    return f"the same command goes on from {newest}" if newest else "no checkpoint yet: the same command begins anew"


@contextmanager
def deaf_children(*signals: signal.Signals) -> Iterator[None]:
    """Processes that are started within, and their own, never get these; one for this process waits until the end.

    Who stops a job, such as SLURM or a terminal, sends a signal to all of its processes at once. Those that would end
    are needed for the checkpoint with which the run itself answers.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
