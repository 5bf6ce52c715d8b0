"""What Ray's errors say, without its colours."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `ddrl.runtimes.ray.cluster` must set the environment before anything imports Ray
    from ray.exceptions import RayTaskError

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def traceback_of(error: RayTaskError) -> str:
    """Of the process where the error was raised."""
    return "Traceback of another process:\n" + plain(error)


def plain(error: BaseException) -> str:
    """Its text."""
    return _COLOUR.sub("", str(error)).strip()


def first_line(error: BaseException) -> str:
    """Of its text; its type where it has none."""
    return (plain(error).splitlines() or [type(error).__name__])[0].strip()
