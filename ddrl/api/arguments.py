"""Checks of what public functions are given: an argument of another kind is one line that names it.

NumPy's numbers and arrays become Python's, so that a sweep may run over `np.arange` or `np.logspace`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ddrl.errors import UserError, file_error, is_of_a_file
from ddrl.system.wording import shortened


@contextmanager
def one_line() -> Iterator[None]:
    """Raise UserError, in the function that this decorates, where the operating system refuses a file or folder."""
    try:
        yield
    except OSError as error:
        if not is_of_a_file(error):
            raise
        raise file_error(error) from error


def refused(name: str, allowed: str, value: object) -> UserError:
    """Return the error of an argument of another kind than is allowed."""
    return UserError(f"{name} must be {allowed} (got {shortened(repr(value))})")


def plain(value: Any) -> Any:
    """Return a value with Python's numbers and lists in place of NumPy's, at every depth."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


def integer(name: str, value: object, least: int = 0) -> int:
    """Return an integer. Raise UserError for anything else, also for one below `least`."""
    found = plain(value)
    if not isinstance(found, int) or isinstance(found, bool) or found < least:
        raise refused(name, f"an integer of at least {least}", value)
    return found


def flag(name: str, value: object) -> bool:
    """Return True or False. Raise UserError for anything else."""
    found = plain(value)
    if not isinstance(found, bool):
        raise refused(name, "True or False", value)
    return found


def path(name: str, value: object, others: str = "") -> Path:
    """Return a path; `others` says what else may be given. Raise UserError for what is none."""
    found = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(found, str) or "\0" in found or not found:
        raise refused(name, f"a path{others}", value)
    return Path(found)
