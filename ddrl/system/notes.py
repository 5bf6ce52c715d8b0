"""Progress, notes and complaints on standard error, whose failure never ends a run.

A pipe may be closed (`ddrl train ... 2>&1 | head -1`), a terminal too, or a log's disk may be full.
"""

from __future__ import annotations

import errno
import os
import select
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any

PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EAGAIN, errno.EINTR)
"""Errors that may be over at the next line; after any other, standard error is given up."""
STANDARD_ERROR = 2


def say(text: str, *, end: str = "\n") -> None:
    """Write `text` to standard error; raise nothing if that fails."""
    if sys.stderr is not None:  # None: it was closed when the process began
        with ignoring_write_errors():
            print(text, end=end, file=sys.stderr, flush=True)


class StreakNote:
    """Says `text` once, when something has happened `length` times in a row."""

    def __init__(self, length: int, text: str) -> None:
        self._length, self._text = length, text
        self._streak = 0
        self._said = False

    def note(self, happened: bool) -> None:
        """Count one more time, at which it happened or not."""
        self._streak = self._streak + 1 if happened else 0
        if self._streak == self._length and not self._said:
            say(self._text)
            self._said = True


def say_traceback(error: BaseException) -> None:
    """Write the traceback of `error` as `say` does."""
    say("".join(traceback.format_exception(error)), end="")


@contextmanager
def ignoring_write_errors() -> Iterator[None]:
    """Ignore errors of writing to standard error; if the error will last, redirect standard error to /dev/null."""
    try:
        yield
    except (OSError, ValueError) as error:  # a closed file raises ValueError
        if getattr(error, "errno", None) not in PASSING and not isinstance(error, UnicodeError):
            _discard_standard_error()


def settle() -> None:
    """Flush standard error, or drop what it holds.

    Otherwise the interpreter fails to flush it at exit, and changes the exit code.
    """
    try:
        if sys.stderr is not None:
            sys.stderr.flush()
    except (OSError, ValueError):
        _discard_standard_error()


def keep_numbers() -> None:
    """Open /dev/null for each of standard input, output and error that was closed when the process began (`2>&-`).

    Otherwise the next opened file gets its number, and libraries would write their messages into that file.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= STANDARD_ERROR:
        os.set_inheritable(number, True)
    os.close(number)


def has_reader(stream: IO[Any]) -> bool:
    """Return whether `stream` may still have a reader: False for a pipe or socket whose other end is closed."""
    try:
        poll = select.poll()
        poll.register(stream.fileno(), 0)
    except (OSError, ValueError):  # no file behind it
        return True
    return not any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def _discard_standard_error() -> None:
    """Redirect standard error of this process, and of those it starts from now on, to /dev/null."""
    with suppress(OSError):  # with no descriptor left, the next line fails like this one and is ignored as well
        nowhere = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (for as long as the process lives)
        try:
            os.dup2(nowhere.fileno(), sys.stderr.fileno())
        except (OSError, ValueError):  # standard error has no descriptor, or is closed
            sys.stderr = nowhere
        else:
            nowhere.close()


class SafeStandardError:
    """The present standard error as a file whose writes never fail, for libraries that write to a file."""

    def __init__(self) -> None:
        stream: Any = sys.stderr
        self._stream = getattr(stream, "rich_proxied_file", stream)
        self.encoding = getattr(self._stream, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        """Write `text`, if possible; return its length."""
        if self._stream is not None:
            with ignoring_write_errors():
                self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush, if possible."""
        if self._stream is not None:
            with ignoring_write_errors():
                self._stream.flush()

    def isatty(self) -> bool:
        """Return whether it is a terminal."""
        try:
            return bool(self._stream.isatty())
        except (AttributeError, ValueError):  # there is none, or it is closed
            return False

    def fileno(self) -> int:
        """Return the file descriptor. Raise OSError if there is none."""
        return int(self._stream.fileno())
