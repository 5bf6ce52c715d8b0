"""The texts of Ray's errors, without colours, and the error of a process that is gone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `ddrl.runtimes.ray.cluster` must set the environment before anything imports Ray
    from ray.exceptions import RayTaskError

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def traceback_of(error: RayTaskError) -> str:
    """Return the traceback of the process where the error was raised."""
    return "Traceback of another process:\n" + plain(error)


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
