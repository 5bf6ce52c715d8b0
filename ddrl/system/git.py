"""Reads what git knows of a repository."""

from __future__ import annotations

import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path


def git(*arguments: str) -> str:
    """Return what a command of git says. Raise `CalledProcessError` where it fails, `OSError` without git.

    Variables such as GIT_DIR are removed, since they may name another repository.
    """
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(["git", *arguments], env=variables, capture_output=True, check=True)
    return done.stdout.decode(errors="replace")


def is_shallow(place: Path) -> bool:
    """Return whether the history of a folder's repository is cut off. Raise as `git`."""
    return git("-C", str(place), "rev-parse", "--is-shallow-repository").strip() == "true"


def utc(date: str) -> str:
    """Return a date with its zone (ISO 8601) in UTC, to the second."""
    return datetime.fromisoformat(date).astimezone(UTC).isoformat(timespec="seconds")


def now() -> str:
    """Return the time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
