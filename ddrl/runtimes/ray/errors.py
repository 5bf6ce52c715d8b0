"""The texts of Ray's errors, without colours, and the error of a process that is gone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ddrl.errors import UserError

if TYPE_CHECKING:  # `ddrl.runtimes.ray.cluster` must set the environment before anything imports Ray
    from ray.exceptions import RayTaskError

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def traceback_of(error: RayTaskError) -> str:
    """Return the traceback of the process where the error was raised."""
    return "Traceback of another process:\n" + plain(error)


def cause_of(error: RayTaskError, complain: Callable[[str], None]) -> BaseException:
    """Return the error that another process raised; show its traceback unless it is a UserError that needs none."""
    cause: BaseException = error.cause
    if not isinstance(cause, UserError) or cause.is_crash:
        complain(traceback_of(error))
    return cause


def plain(error: BaseException) -> str:
    """Return the text of an error."""
    return _COLOUR.sub("", str(error)).strip()


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or the name of its type where it has no text."""
    return (plain(error).splitlines() or [type(error).__name__])[0].strip()


@contextmanager
def connection_to(name: str) -> Iterator[None]:
    """Raise ConnectionError where the process that is asked in the block, `name` in the message, is gone."""
    from ray.exceptions import RayError, RayTaskError

    try:
        yield
    except RayTaskError:  # the process is there, and raised
        raise
    except RayError as error:
        raise ConnectionError(f"{name} is gone: {first_line(error)}") from error
