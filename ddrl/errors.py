"""The one exception a user is meant to read: what is wrong, where, and what is allowed."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterable


class UserError(Exception):
    """Bad input: the command line prints the message as one line, without a traceback, and exits with 2."""


def unknown_name(kind: str, name: object, allowed: Iterable[str], *, where: str = "") -> UserError:
    """A `UserError` for a name that is not in `allowed`: names the place, the closest match and what is allowed."""
    names = sorted(allowed)
    close = difflib.get_close_matches(str(name), names, n=1)
    hint = f" (did you mean '{close[0]}'?)" if close else ""
    place = f"{where}: " if where else ""
    shown = ", ".join(names) if len(names) <= 70 else ", ".join(names[:70]) + ", ..."
    return UserError(f"{place}unknown {kind} '{name}'{hint}; allowed: {shown}")


def exit_code(command: Callable[[], int | None]) -> int:
    """What a command line returns: the command's own code (None: 0), or 2 after one line for a `UserError`."""
    try:
        return command() or 0
    except UserError as error:
        print(f"ddrl: {error}", file=sys.stderr)
        return 2


class Closed(Exception):
    """The run is over: whoever waited on a store or on parameters should end."""
