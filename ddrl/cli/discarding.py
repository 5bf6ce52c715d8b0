"""`ddrl discard` and `ddrl keep`: reference runs go and come, and the ledger keeps count of those that go."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddrl.errors import UserError
from ddrl.papers.discarded import Discarded, place_of, read_ledger, row_of, write_ledger
from ddrl.papers.table_names import REFERENCE
from ddrl.system.files import read_file, write_whole
from ddrl.system.git import git, utc
from ddrl.system.text_files import parse_json, read_json

FILES = ("config.json", "curves.parquet", "lineage.parquet", "run.json")
"""The files of a run that are committed; `run.json` comes last."""
ASIDE = "discarded"
"""The folder of results, not committed, that discarded runs are moved into."""
HISTORY = (f"results/{REFERENCE}/*/*/*/*/seed*/run.json",)


def discard(runs: Sequence[Path], results: Path, reason: str, when: str) -> list[str]:
    """Move reference runs into `results/discarded`, each with a row in the ledger; return a line for each.

    Raise `UserError`, before anything is moved, for a directory that is no reference run, or without a reason.
    """
    if not reason.strip():
        raise UserError("--reason: is empty; allowed: why these runs are no longer evidence")
    root = (results / REFERENCE).resolve()
    for run in runs:
        if not run.resolve().is_relative_to(root) or not (run / "run.json").is_file():
            raise UserError(f"{run}: is no run below {results / REFERENCE}")
    rows = [row_of(place_of(run), read_json(run / "run.json"), when, reason, (), "") for run in runs]
    # The rows come first: where the move fails, a run counts once too often, and never once too little.
    write_ledger(results, [*read_ledger(results), *rows])
    return [f"{run} -> {_aside(run, results, when)}" for run in runs]


def _aside(run: Path, results: Path, when: str) -> Path:
    """Move a run out of the reference runs; return where it is then."""
    target = results / ASIDE / "/".join(place_of(run)) / when.replace(":", "")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(run, target)
    return target


def keep(runs: Sequence[Path], results: Path, reason: str, when: str) -> list[str]:
    """Copy finished runs to the reference runs; a run that is there already goes as with `discard`.

    Return a line for each. Raise `UserError`, before anything is copied, for a run that has not finished, and where one
    is replaced without a reason.
    """
    targets = [results / REFERENCE / "/".join(place_of(run)) for run in runs]
    for run, target in zip(runs, targets, strict=True):
        missing = next(
            (name for name in ("config.json", "curves.parquet", "run.json") if not (run / name).is_file()), ""
        )
        if missing:
            raise UserError(f"{run}: has no {missing}; allowed: runs that have finished")
        if read_json(run / "run.json").get("git_dirty"):
            raise UserError(f"{run}: was made with uncommitted changes; allowed: runs of a clean checkout")
        if run.resolve() == target.resolve():
            raise UserError(f"{run}: is a reference run already")
        if target.exists() and not reason.strip():
            raise UserError(f"{target}: exists; allowed with --reason, which says why it is replaced")
    lines = []
    for run, target in zip(runs, targets, strict=True):
        if target.exists():
            row = row_of(
                place_of(target), read_json(target / "run.json"), when, reason, ["/".join(place_of(run)[1:])], ""
            )
            write_ledger(results, [*read_ledger(results), row])
            _aside(target, results, when)
            lines.append(f"{target}: the run that was there is in the ledger")
        target.mkdir(parents=True)
        for name in FILES:
            if (run / name).is_file():
                write_whole(target / name, read_file(run / name))
        lines.append(f"{run} -> {target}")
    return lines


@dataclass(frozen=True)
class Change:
    """A run.json that a commit has added, removed or changed, with git's names of its content before and after."""

    letter: str
    before: str
    after: str
    place: tuple[str, ...]

    @property
    def group(self) -> tuple[str, ...]:
        """Everything of the place but the seed."""
        return self.place[:-1]


def unaccounted(results: Path) -> list[str]:
    """Return a line for each reference run that git's history has lost and the ledger lacks.

    Raise `UserError` where there is no history.
    """
    try:
        lost = from_history()
    except (OSError, subprocess.CalledProcessError):
        raise UserError("--check: this is no repository of git") from None
    known = Counter((row.place, row.started) for row in read_ledger(results))
    missing = Counter({(row.place, row.started): 1 for row in lost}) - known
    return [
        f"{'/'.join(place)}, begun {started or 'at an unknown time'}: was discarded and has no row in the ledger"
        for place, started in missing
    ]


def from_history() -> list[Discarded]:
    """Return a row for each reference run that a commit of git's history has removed or replaced, oldest first.

    A run that moved to another place, with the same manifest, is not discarded; nor is one whose manifest alone was
    edited, which began at the same time.
    """
    rows = []
    for commit, date, subject, changes in _commits():
        moved = {change.after for change in changes if change.letter == "A"}
        for change in changes:
            if change.letter == "A" or change.before in moved:
                continue
            old = _manifest(change.before)
            new = _manifest(change.after) if change.letter == "M" else {}
            if new and new.get("started") == old.get("started"):
                continue
            others = [one.place for one in changes if one.letter == "A" and one.group == change.group]
            replaced_by = ["/".join(place[1:]) for place in ([change.place] if new else others)]
            rows.append(row_of(change.place, old, date, subject, replaced_by, commit[:12]))
    return rows


def _commits() -> Iterator[tuple[str, str, str, list[Change]]]:
    """Yield each commit that changed reference runs, oldest first: its name, date (UTC), subject and changes."""
    said = git(
        "log",
        "--reverse",
        "--topo-order",
        "--no-merges",
        "--no-renames",
        "--raw",
        "--no-abbrev",
        "--format=commit %H %cI %s",
        "--",
        *HISTORY,
    )
    for text in said.split("\ncommit " if said.startswith("\n") else "commit ")[1:]:
        head, *lines = text.strip().splitlines()
        commit, date, subject = head.split(" ", 2)
        changes = []
        for line in filter(None, lines):
            facts, path = line.split("\t", 1)
            _, _, before, after, letter = facts.split()
            changes.append(Change(letter[0], before, after, tuple(path.split("/")[2:7])))
        yield commit, utc(date), subject, changes


def _manifest(name: str) -> Any:
    """Return the content of an object of git; nothing where it cannot be read."""
    try:
        return parse_json(git("cat-file", "blob", name))
    except (subprocess.CalledProcessError, UserError):
        return {}
