"""`ddrl discard` and `ddrl keep`: reference runs go and come, and the ledger keeps count of those that go."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddrl.errors import UserError
from ddrl.papers.discarded import Discarded, place_of, read_ledger, row_of, write_ledger
from ddrl.papers.table_names import REFERENCE
from ddrl.system.files import read_file, write_whole
from ddrl.system.git import git, is_shallow, utc
from ddrl.system.text_files import parse_json, read_json

FILES = ("config.json", "curves.parquet", "lineage.parquet", "run.json")
"""The files of a run that are committed; `run.json` comes last."""
NOT_ALWAYS = ("lineage.parquet",)
"""Those of `FILES` that not every run has."""
ASIDE = "discarded"
"""The folder of results, not committed, that discarded runs are moved into."""
HISTORY = f"{REFERENCE}/*/*/*/*/seed*/run.json"
"""The manifests of reference runs, from the folder of results."""


def discard(runs: Sequence[Path], results: Path, reason: str, when: str) -> list[str]:
    """Move reference runs into `results/discarded`, each with a row in the ledger; return a line for each.

    Raise `UserError`, before anything is moved, for a directory that is no reference run, or without a reason.
    """
    if not reason.strip():
        raise UserError("--reason: is empty; allowed: why these runs are no longer evidence")
    root = (results / REFERENCE).resolve()
    for run in runs:
        inside = run.resolve().is_relative_to(root) and (run / "run.json").is_file()
        if not inside or run.resolve() != root.joinpath(*place_of(run)):
            raise UserError(f"{run}: is no run below {results / REFERENCE}")
    _check_once(runs)
    rows = [row_of(place_of(run), _read(run / "run.json"), when, reason, (), "") for run in runs]
    # The rows come first: where the move fails, a run counts once too often, and never once too little.
    write_ledger(results, [*read_ledger(results), *rows])
    return [f"{run} -> {_aside(run, results, when)}" for run in runs]


def _read(path: Path) -> dict[str, Any]:
    """Return a manifest. Raise `UserError` where it is damaged."""
    manifest = read_json(path)
    if not isinstance(manifest, dict) or not isinstance(manifest.get("config", {}), dict):
        raise UserError(f"{path}: is no manifest of a run; allowed: JSON with key 'config'")
    return manifest


def _check_once(runs: Sequence[Path]) -> None:
    """Raise `UserError` where two of `runs` have one place among the reference runs."""
    for place, number in Counter(map(place_of, runs)).items():
        if number > 1:
            raise UserError(f"{'/'.join(place)}: is given {number} times; allowed: each run once")


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
    _check_once(runs)
    targets = [results / REFERENCE / "/".join(place_of(run)) for run in runs]
    for run, target in zip(runs, targets, strict=True):
        _check_kept(run, target, reason)
    read_ledger(results)
    lines = []
    for run, target in zip(runs, targets, strict=True):
        if target.exists():
            replaced_by = "/".join(place_of(run)[1:])
            row = row_of(place_of(target), _read(target / "run.json"), when, reason, [replaced_by], "")
            write_ledger(results, [*read_ledger(results), row])
            _aside(target, results, when)
            lines.append(f"{target}: the run that was there is in the ledger")
        target.mkdir(parents=True)
        for name in FILES:
            if (run / name).is_file():
                write_whole(target / name, read_file(run / name))
        lines.append(f"{run} -> {target}")
    return lines


def _check_kept(run: Path, target: Path, reason: str) -> None:
    """Raise `UserError` where a run cannot become the reference run at `target`."""
    for name in FILES:
        if name not in NOT_ALWAYS and not (run / name).is_file():
            raise UserError(f"{run}: has no {name}; allowed: runs that have finished")
    if _read(run / "run.json").get("git_dirty"):
        raise UserError(f"{run}: was made with uncommitted changes; allowed: runs of a clean checkout")
    if run.resolve() == target.resolve():
        raise UserError(f"{run}: is a reference run already")
    if (target / "run.json").is_file():
        _read(target / "run.json")
    elif target.exists():
        raise UserError(f"{target}: has no run.json; restore it, or remove the folder")
    if target.exists() and not reason.strip():
        raise UserError(f"{target}: exists; allowed with --reason, which says why it is replaced")


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
    """Return a line for each run whose row in the ledger is missing, is one too many, or is of a reference run.

    A row is missing where git's history has lost a reference run. It is one too many where neither git's history nor
    the folder of discarded runs has a run for it.

    Raise `UserError` where there is no whole history.
    """
    try:
        shallow, lost = is_shallow(results), from_history(results)
    except (OSError, subprocess.CalledProcessError):
        raise UserError(f"{results}: is in no repository of git, so nobody can see which runs were lost") from None
    if shallow:
        raise UserError(f"{results}: the history of git is cut off (shallow), so nobody can see which runs were lost")
    known = Counter((row.place, row.started) for row in read_ledger(results))
    gone = Counter((row.place, row.started) for row in lost)
    surplus = known - (gone | Counter(_runs(results / ASIDE, "*/*/*/*/seed*/*/run.json")))
    said = {
        "was discarded and has no row in the ledger": Counter(dict.fromkeys(gone, 1)) - known,
        "has more rows in the ledger than runs that were discarded": surplus,
        "is in the ledger, and is a reference run again": known
        & Counter(_runs(results / REFERENCE, "*/*/*/*/seed*/run.json")),
    }
    return [
        f"{'/'.join(place)}, begun {started or 'at an unknown time'}: {what}"
        for what, found in said.items()
        for place, started in found
    ]


def _runs(folder: Path, manifests: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield place and start of each run below a folder, given the pattern of its manifests."""
    for path in sorted(folder.glob(manifests)):
        row = row_of(path.relative_to(folder).parts[:5], _read(path), "", "", (), "")
        yield row.place, row.started


def from_history(results: Path) -> list[Discarded]:
    """Return a row for each reference run that a commit of git's history has removed or replaced, oldest first.

    A run that moved to another place, with the same manifest, is not discarded; nor is one whose manifest alone was
    edited, which began at the same time. A merge counts where it removes what no commit of either side has removed.
    """
    rows = _removals(results, _commits(results, "--no-merges"))
    known = {(row.place, row.started) for row in rows}
    for row in _removals(results, _commits(results, "--merges", "--full-history", "-m")):
        if (row.place, row.started) not in known:
            known.add((row.place, row.started))
            rows.append(row)
    return rows


def _removals(results: Path, commits: Iterable[tuple[str, str, str, list[Change]]]) -> list[Discarded]:
    """Return a row for each run that one of the commits has removed or replaced."""
    rows = []
    for commit, date, subject, changes in commits:
        moved = {change.after for change in changes if change.letter == "A"}
        for change in changes:
            if change.letter == "A" or change.before in moved:
                continue
            old = _manifest(results, change.before)
            new = _manifest(results, change.after) if change.letter == "M" else {}
            if new and new.get("started") == old.get("started"):
                continue
            others = [one.place for one in changes if one.letter == "A" and one.group == change.group]
            replaced_by = ["/".join(place[1:]) for place in ([change.place] if new else others)]
            rows.append(row_of(change.place, old, date, subject, replaced_by, commit[:12]))
    return rows


def _commits(results: Path, *which: str) -> Iterator[tuple[str, str, str, list[Change]]]:
    """Yield each commit that changed reference runs, oldest first: its name, date (UTC), subject and changes.

    `which`: options of `git log` that choose commits; with `-m` a merge comes once for each side.
    """
    order = ("--reverse", "--topo-order", "--no-renames", *which)
    shown = ("--raw", "--no-abbrev", "--relative", "--format=%x00%H %cI %s")
    said = git("-C", str(results), "log", *order, *shown, "--", HISTORY)
    for text in said.split("\0")[1:]:
        head, *lines = text.strip().splitlines()
        commit, date, subject = head.split(" ", 2)
        changes = []
        for line in filter(None, lines):
            facts, path = line.split("\t", 1)
            _, _, before, after, letter = facts.split()
            changes.append(Change(letter[0], before, after, tuple(path.split("/")[1:6])))
        yield commit, utc(date), subject, changes


def _manifest(results: Path, name: str) -> Any:
    """Return the content of an object of git; nothing where it cannot be read."""
    try:
        return parse_json(git("-C", str(results), "cat-file", "blob", name))
    except (subprocess.CalledProcessError, UserError):
        return {}
