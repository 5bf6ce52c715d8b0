"""Says since when a row of a register of plans counts, by what git's history shows, and which plans a commit had.

A date in a file is what its author wrote. So a row counts from the later of its own date and the date of the commit
that added it, and never from before the rows above it. A row that names a commit was read from that commit's files
(`ddrl register --history`), and counts from the commit's date: if it came with the first version of its register, or
before `RECONSTRUCTED`. A row that is not committed yet counts from its own date on, but not from before the rows above
it. Where git has no whole history (an archive, a shallow clone), the dates in the file count. No pandas here.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from csv import reader
from dataclasses import astuple, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ddrl.papers.plans import REGISTER, Registered, read_register
from ddrl.system.git import git, is_shallow, utc

RECONSTRUCTED = "2026-11-27T18:00:00+00:00"
"""The time until which rows that name an older commit were added to the registers of this project."""
_COMMIT = "commit "


class Version(NamedTuple):
    """A register as one commit has it."""

    date: str
    """The committer's date, in UTC."""
    rows: frozenset[tuple[str, str]]
    """Claim and digest of each row."""


def dated(directory: Path) -> list[Registered]:
    """Return the rows of a paper's register, each with the date from which on it counts."""
    rows = read_register(directory)
    added = additions(directory) if rows else {}
    first = min(added.values(), default="")
    counted, floor = [], ""
    for row in rows:
        commit = added.get(astuple(row), "")
        named = read_from_history(row, commit, first)
        date = row.date if named else max(row.date, commit, floor)
        floor = max(floor, commit, "" if named else date)
        counted.append(replace(row, date=date))
    return counted


def read_from_history(row: Registered, added: str, first: str) -> bool:
    """Return whether a row may name an older commit; `first` is the date of the first commit of the register.

    `added` is that of the commit that added the row. Both are empty where the register is not committed.
    """
    return bool(row.commit) and (added == first or "" < added < RECONSTRUCTED)


def additions(directory: Path) -> Mapping[tuple[str, ...], str]:
    """Return row -> date of the first commit that added it (UTC), of all rows that a register ever had.

    Return nothing where git has no whole history of it.
    """
    try:
        if _shallow(directory.resolve()):
            return {}
        asked = ("log", "-m", "--patch", "--unified=0", "--no-color", "--no-ext-diff", f"--format={_COMMIT}%cI")
        said = git("-C", str(directory), *asked, "--", REGISTER)
    except (OSError, subprocess.CalledProcessError):
        return {}
    found: dict[tuple[str, ...], str] = {}
    date = ""
    for line in said.splitlines():
        if line.startswith(_COMMIT):
            date = utc(line.removeprefix(_COMMIT))
        elif line.startswith("+") and not line.startswith("+++"):
            row = tuple(next(reader([line[1:]]), ()))
            found[row] = min(date, found.get(row, date))
    return found


def at_commit(directory: Path, sha: str) -> Version | None:
    """Return the register of a paper as a commit has it; None where git does not know the commit, or it has none."""
    return _version(directory.resolve(), sha)


@cache
def _version(directory: Path, sha: str) -> Version | None:
    where = ("-C", str(directory))
    try:
        date = git(*where, "show", "--no-patch", "--format=%cI", f"{sha}^{{commit}}").strip()
        lines = git(*where, "show", f"{sha}:./{REGISTER}").splitlines()
    except (OSError, subprocess.CalledProcessError):
        return None
    return Version(utc(date), frozenset((row[0], row[2]) for row in reader(lines) if len(row) > 2))


@cache
def _shallow(directory: Path) -> bool:
    return is_shallow(directory)


def misdated(directory: Path, rows: Sequence[Registered]) -> Iterable[str]:
    """Yield a line for each row of a register whose date or commit git's history does not allow."""
    path = directory / REGISTER
    added = additions(directory)
    first = min(added.values(), default="")
    dates = _dates(directory, sorted({row.commit for row in rows if row.commit}))
    last = ""
    for line, row in enumerate(rows, start=2):
        where = f"{path}: line {line}: key '{row.claim}'"
        if not row.commit:
            if row.date < last:
                yield f"{where} is dated {row.date}, before a row above it ({last}); rows are only appended"
            last = max(last, row.date)
        elif not read_from_history(row, added.get(astuple(row), ""), first):
            yield f"{where} names commit {row.commit}; allowed: none, since the row was added later"
        elif dates.get(row.commit) != row.date:
            known = dates.get(row.commit, "not known to git")
            yield f"{where} is dated {row.date}; its commit {row.commit} is {known}"


def _dates(directory: Path, commits: Sequence[str]) -> dict[str, str]:
    """Return commit -> its date in UTC, of those that git knows."""
    found = {}
    for commit in commits:
        try:
            said = git("-C", str(directory), "show", "--no-patch", "--format=%cI", f"{commit}^{{commit}}")
        except subprocess.CalledProcessError:
            continue
        found[commit] = utc(said.strip())
    return found
