"""The one exception a user is meant to read: what is wrong, where, and what is allowed."""

from __future__ import annotations

import difflib
import errno
import os
import signal
import stat
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

OF_FILES = frozenset(
    getattr(errno, name)
    for name in (
        *("ENOENT", "ENOTDIR", "EISDIR", "EEXIST", "ENOTEMPTY", "ENAMETOOLONG", "ELOOP", "EXDEV"),  # what stands there
        "ESPIPE",  # of `NO_FILE`
        *("EACCES", "EPERM", "EROFS", "ETXTBSY", "EBUSY"),  # what is allowed
        *("ENOSPC", "EDQUOT", "EFBIG", "EMFILE", "ENFILE"),  # what there is room for
        *("EIO", "ESTALE", "ENODEV", "ENXIO", "ETIMEDOUT", "ENOTCONN", "EREMOTEIO"),  # what the disk or network does
    )
)
"""Errors of the operating system that speak of a file, a folder or the disk they are on."""
NO_FILE = "is a pipe or a device, not a file"
_REASONS = {
    errno.ENOENT: "no such file or folder",
    errno.EEXIST: "exists, and is no folder",
    errno.ENOTDIR: "a part of this path is a file, not a folder",
    errno.EISDIR: "is a folder, not a file",
    errno.ESPIPE: NO_FILE,
}

TRY_AGAIN = 75
"""EX_TEMPFAIL: schedulers retry it."""


class UserError(Exception):
    """Bad input: the command line prints the message as one line, without a traceback, and exits with 2."""

    is_crash = False
    """It speaks of an environment that raised: the command line prints the traceback of its cause above the line."""
    names_command = False
    """Its message begins with a command such as `ddrl train`: the command line puts no `ddrl:` before it."""
    status = 2
    """The exit code; `TRY_AGAIN` where the input is fine, and the same command may go on another time."""


def crash(name: str, error: BaseException | None) -> UserError:
    """Return what ends a run where an environment raised `error`; `name` is what `Builder.describe` returns."""
    try:
        said = str(error)
    except Exception as unsayable:
        said = f"its text cannot be made ({type(unsayable).__name__})"
    line = " ".join(f"{name}: {type(error).__name__}: {said}".split())
    user_error = UserError(printable(line, "?"))
    user_error.is_crash = True
    return user_error


def ends_the_program(error: BaseException) -> bool:
    """Return whether the user has asked for `error`: the KeyboardInterrupt of a Ctrl-C that nobody else handles.

    Any other is a failure of what was called, also what is no `Exception`: an environment that calls `sys.exit` would
    end a run with its own status and without results, and one that raises KeyboardInterrupt would look like the user.
    """
    handled_by_python = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    in_main_thread = threading.current_thread() is threading.main_thread()
    return isinstance(error, KeyboardInterrupt) and handled_by_python and in_main_thread


class Command(NamedTuple):
    """A command that was typed, as what an error is `about`."""

    words: str
    """Such as `ddrl train`."""

    def __str__(self) -> str:
        """Return the words."""
        return self.words


@contextmanager
def about(subject: Path | str | Command) -> Iterator[None]:
    """Put a file's name, a place in it, or a command before what the block says is wrong with its content."""
    try:
        yield
    except UserError as error:
        named = UserError(f"{subject}: {error}")
        named.is_crash, named.status = error.is_crash, error.status
        named.names_command = isinstance(subject, Command)
        raise named from error.__cause__


def printable(text: str, instead: str = " ") -> str:
    """Return `text` with `instead` for each letter that a terminal might obey."""
    return "".join(letter if letter.isprintable() else instead for letter in text)


def unknown_name(kind: str, name: object, allowed: Iterable[str], *, where: str = "", hint: str = "") -> UserError:
    """Return the error of a name that is not in `allowed`, with the place, the closest match and what is allowed.

    `hint` is what was meant, where that is known better than by the letters.
    """
    names = sorted(allowed)
    by_letters = {one.lower(): one for one in names}
    close = [hint] if hint else [by_letters[one] for one in difflib.get_close_matches(str(name).lower(), by_letters, 1)]
    hint = f" (did you mean '{close[0]}'?)" if close else ""
    place = f"{where}: " if where else ""
    shown = ", ".join(names) if len(names) <= 70 else ", ".join(names[:70]) + ", ..."
    return UserError(f"{place}unknown {kind} '{name}'{hint}; allowed: {shown}")


def file_error(error: OSError, file: Path | str | None = None) -> UserError:
    """Return one line of what the operating system says of a file; `file`: where the error does not name it."""
    named = file or error.filename2 or error.filename
    reason = os.strerror(error.errno) if error.errno is not None else str(error)
    return UserError(f"{named}: {_REASONS.get(error.errno or 0, reason[:1].lower() + reason[1:])}")


@contextmanager
def using(file: Path | str) -> Iterator[None]:
    """Raise one line about `file` where the operating system refuses it in the block (see `is_of_a_file`).

    Raise UserError, before the block, where a pipe or a device stands there: to open it may wait for ever.
    """
    with suppress(OSError):
        mode = os.stat(file).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise UserError(f"{file}: {NO_FILE}")
    try:
        yield
    except OSError as error:
        if error.errno not in OF_FILES:
            raise
        raise file_error(error, file) from error


def is_of_a_file(error: BaseException) -> bool:
    """Return whether the operating system refused a file or folder, for a reason outside of the program.

    Any other error is one of the program, and keeps its traceback: of another type, without a file's name, or of a
    kind that no disk, folder or permission explains.
    """
    return isinstance(error, OSError) and error.errno in OF_FILES and error.filename is not None


class NonFiniteError(ArithmeticError):
    """A quantity of training became NaN or infinite; the message names it and its value."""


class Closed(Exception):
    """The run is over; raised to all that wait for experience or parameters."""
