"""`ddrl register`: appends the plans in force to the register of each paper, and reads older ones from git's history.

A plan that is not in the register counts as none: the run of a claim whose plan was registered later says so
(`ddrl.analysis.verdicts.plans`).
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from ddrl.errors import UserError
from ddrl.papers.experiments import load_experiments
from ddrl.papers.ground_rules import EVERY, SETTING, ground_rules, missing, removed, to_register
from ddrl.papers.plan_dates import misdated
from ddrl.papers.plans import REGISTER, Registered, appended, in_force, read_register, write_register
from ddrl.system.files import read_file
from ddrl.system.git import git, is_shallow, now, utc
from ddrl.system.text_files import parse_yaml, read_yaml

FILES = ("paper.yaml", "experiments.yaml")
APPEND_ONLY = "2026-11-27T14:15:00+00:00"
"""The time from which on every change of a register in git's history appends rows and does nothing else."""
PARTS = ("claims", "milestones", "prices")
"""The keys of paper.yaml that a plan depends on."""
GROUND_PARTS = ("cells", "evidence")
"""Those that ground rules depend on; of a claim only its variants count, which are part of its test."""


def register(folders: Sequence[Path]) -> list[str]:
    """Append the plans in force that the registers lack; return a line for each register that has grown."""
    lines = []
    for folder in folders:
        known = read_register(folder)
        added = list(appended(known, to_register(folder), now(), ""))
        if added:
            path = write_register(folder, [*known, *added])
            names = ", ".join(dict.fromkeys(row.claim for row in added))
            lines.append(f"{path}: {len(added)} plans registered ({names}); commit it before the runs begin")
    return lines


def unregistered(folders: Sequence[Path]) -> list[str]:
    """Return a line for each plan or ground rule that is not the newest row of its key and scale in the register.

    So has each record of tuning that was removed.
    """
    lines = []
    for folder in folders:
        path = folder / REGISTER
        for (key, scale), digest in missing(folder).items():
            said = f"'{key}' is {digest}" if scale == EVERY else f"claim '{key}' at scale {scale} has the plan {digest}"
            lines.append(f"{path}: {said}, which is not registered")
        for name, key in removed(read_register(folder), load_experiments(folder)):
            said = f"recorded tuning of experiment '{name}' was removed ({key}); records are only added"
            lines.append(f"{folder / 'experiments.yaml'}: {said}")
    return lines


def rewritten(folders: Sequence[Path], since: str = APPEND_ONLY) -> list[str]:
    """Return a line for each register of which a row was changed, removed or backdated, as git's history shows.

    Each committed version from `since` on must be the beginning of the next one, and the last one that of the file as
    it is now; dates are those that git allows. Raise `UserError` where there is no whole history.
    """
    lines = []
    for folder in folders:
        path = folder / REGISTER
        before, of = "", ""
        for commit, text in _versions(folder, since):
            if not text.startswith(before):
                lines.append(f"{path}: commit {commit} changed or removed rows that {of} had; rows are only appended")
            before, of = text, commit
        now_there = read_file(path).decode() if path.exists() else ""
        if not now_there.startswith(before):
            lines.append(f"{path}: rows differ from those of commit {of}; rows are only appended")
        lines += misdated(folder, read_register(folder))
        lines += unfounded(folder)
    return lines


def _versions(folder: Path, since: str) -> Iterator[tuple[str, str]]:
    """Yield the register of a paper at each commit that changed it from `since` on, oldest first."""
    where = ("-C", str(folder))
    try:
        shallow = is_shallow(folder)
        said = git(*where, "log", "--first-parent", "--reverse", "--format=%H %cI", "--", REGISTER)
    except (OSError, subprocess.CalledProcessError):
        raise UserError(f"{folder}: is in no repository of git, so nobody can see if rows were changed") from None
    if shallow:
        raise UserError(f"{folder}: the history of git is cut off (shallow), so nobody can see if rows were changed")
    for line in said.splitlines():
        commit, date = line.split()
        if utc(date) < since:
            continue
        there = git(*where, "ls-tree", "--name-only", commit, "--", REGISTER)
        yield commit[:12], git(*where, "show", f"{commit}:./{REGISTER}") if there else ""


def from_history(folders: Sequence[Path]) -> list[str]:
    """Write the registers of papers that have none, as git's history has them; return a line for each.

    Raise `UserError` where there is one, since rows are only appended.
    """
    lines = []
    for folder in folders:
        if (folder / REGISTER).exists():
            raise UserError(f"{folder / REGISTER}: exists; allowed with --history: papers without a register")
        rows = history(folder)
        rows += history(folder, GROUND_PARTS)
        lines.append(f"{write_register(folder, rows)}: {len(rows)} plans")
    return lines


def history(folder: Path, parts: Sequence[str] = PARTS) -> list[Registered]:
    """Return each plan (or, for `GROUND_PARTS`, each ground rule) of a paper that git's history has, oldest first.

    Each has the commit that brought it, and its date. What an older file says is what today's code reads in its
    `parts`. A commit whose files it cannot read brings no row.
    """
    rows: list[Registered] = []
    for commit, date in _commits(folder):
        try:
            found = _ground_rules_at(folder, commit) if parts == GROUND_PARTS else _at(folder, commit, parts)
            rows += appended(rows, found, date, commit[:12])
        except (subprocess.CalledProcessError, UserError):
            continue
    return rows


def _at(folder: Path, commit: str, parts: Sequence[str]) -> dict[tuple[str, str], str]:
    """Return the plans or the ground rules of a paper as its files were at a commit. Raise as `_restore`."""
    with tempfile.TemporaryDirectory() as place:
        then = Path(place) / folder.name
        then.mkdir()
        _restore(folder, commit, then, parts)
        return ground_rules(then) if "evidence" in parts else in_force(then)


def _ground_rules_at(folder: Path, commit: str) -> dict[tuple[str, str], str]:
    """Return the ground rules of a paper as its files were at a commit; of cells that are unreadable today, none."""
    try:
        return _at(folder, commit, GROUND_PARTS)
    except UserError:
        found = _at(folder, commit, ("evidence",))
        return {key: digest for key, digest in found.items() if key[0].startswith(SETTING)}


def unfounded(folder: Path) -> list[str]:
    """Return a line for each newest ground rule of a register that is not what the commit it names has."""
    newest = {(row.claim, row.scale): row for row in read_register(folder) if row.scale == EVERY}
    by_commit: dict[str, list[Registered]] = {}
    for row in newest.values():
        by_commit.setdefault(row.commit, []).append(row)
    lines = []
    for commit in filter(None, by_commit):
        try:
            found = _ground_rules_at(folder, commit)
        except (subprocess.CalledProcessError, UserError):
            found = {}
        lines += [
            f"{folder / REGISTER}: '{row.claim}' is {row.digest}, which is not what commit {commit} has"
            for row in by_commit[commit]
            if found.get((row.claim, EVERY)) != row.digest
        ]
    return lines


def _commits(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the commits that changed the claims or experiments of a paper, oldest first, with their dates in UTC."""
    try:
        said = git("-C", str(folder), "log", "--reverse", "--topo-order", "--format=%H %cI", "--", *FILES)
    except (OSError, subprocess.CalledProcessError):
        raise UserError(f"{folder}: is in no repository of git; allowed without --history") from None
    for line in said.splitlines():
        commit, date = line.split()
        yield commit, utc(date)


def _restore(folder: Path, commit: str, then: Path, parts: Sequence[str]) -> None:
    """Write the files of a paper as they were at a commit, but for what is not in the `parts` of paper.yaml.

    Raise `CalledProcessError` where a file was not there, and `UserError` where it has no claims to read.
    """
    texts = {name: git("-C", str(folder), "show", f"{commit}:./{name}") for name in FILES}
    today, old = read_yaml(folder / "paper.yaml"), parse_yaml(texts["paper.yaml"])
    claims = old.get("claims") if isinstance(old, dict) else None
    if not isinstance(claims, list) or not all(isinstance(claim, dict) for claim in claims):
        raise UserError(f"{folder}: commit {commit}: paper.yaml has no claims")
    for name in parts:
        today.pop(name, None)
    today |= {name: old[name] for name in parts if name in old}
    for claim in claims:
        claim.pop("stated", None)  # a date that claims had before there was a register
    (then / "paper.yaml").write_text(json.dumps(today), encoding="utf-8")
    (then / "experiments.yaml").write_text(texts["experiments.yaml"], encoding="utf-8")
