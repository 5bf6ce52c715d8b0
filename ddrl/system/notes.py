"""What the user reads in passing, on standard error. A reader that goes away ends the display, never what is shown.

Each line of progress, each note and each complaint goes through here: `ddrl train ... 2>&1 | head -1` closes the pipe
after one line, a terminal is closed, a log's disk is full. None of it may end a training that has days behind it.
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
"""Errors that may be over when the next line comes; after any other there is no reader any more."""
STANDARD_ERROR = 2


def say(text: str, *, end: str = "\n") -> None:
    """Write `text` to standard error, as it is; nothing is raised where nobody can read it."""
    if sys.stderr is not None:  # None: it was closed when the process began
        with unread_is_fine():
            print(text, end=end, file=sys.stderr, flush=True)


def say_traceback(error: BaseException) -> None:
    """Write the traceback of `error` as `say` does."""
    say("".join(traceback.format_exception(error)), end="")


@contextmanager
def unread_is_fine() -> Iterator[None]:
    """Let pass what writing to a standard error raises that takes nothing; a lost reader is replaced by nobody."""
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: of a file that is closed
        if getattr(error, "errno", None) not in PASSING and not isinstance(error, UnicodeError):
            _write_to_nobody()


def settle() -> None:
    """Write what is still kept for standard error, or drop it.

    Otherwise the interpreter tries once more at its end, fails, and makes another exit code of it.
    """
    try:
        if sys.stderr is not None:
            sys.stderr.flush()
    except (OSError, ValueError):
        _write_to_nobody()


def keep_numbers() -> None:
    """Open what was closed of standard input, output and error when the process began (`2>&-`), on nothing.

    Otherwise the next file that is opened gets the number, and what libraries write there stands in a curve.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= STANDARD_ERROR:
        os.set_inheritable(number, True)
    os.close(number)


def has_reader(stream: IO[Any]) -> bool:
    """Return whether somebody may still read `stream`: False for a pipe, or a socket, whose other end is closed."""
    try:
        poll = select.poll()
        poll.register(stream.fileno(), 0)
    except (OSError, ValueError):  # no file behind it
        return True
    return not any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def _write_to_nobody() -> None:
    """Standard error of this process, and of those that it starts from now on, goes nowhere."""
    with suppress(OSError):  # without a file that is free, the next line fails, and is passed over, as this one
        nowhere = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (for as long as the process lives)
        try:
            os.dup2(nowhere.fileno(), sys.stderr.fileno())
        except (OSError, ValueError):  # there is no file behind it, or it is closed
            sys.stderr = nowhere
        else:
            nowhere.close()


class Lasting:
    """Standard error, as it is when this is made, as a file whose writes never fail: for who writes by itself."""

    def __init__(self) -> None:
        stream: Any = sys.stderr
        self._stream = getattr(stream, "rich_proxied_file", stream)
        self.encoding = getattr(self._stream, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        """Write `text`, if somebody reads it; return its length."""
        if self._stream is not None:
            with unread_is_fine():
                self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush, if somebody reads it."""
        if self._stream is not None:
            with unread_is_fine():
                self._stream.flush()

    def isatty(self) -> bool:
        """Return whether it is a terminal."""
        try:
            return bool(self._stream.isatty())
        except (AttributeError, ValueError):  # there is none, or it is closed
            return False

    def fileno(self) -> int:
        """Return the number of the file behind it. Raise OSError where there is none."""
        return int(self._stream.fileno())
