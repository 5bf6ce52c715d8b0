"""`ddrl merge`: copies the finished runs of several folders of results, such as those of two clusters, into one.

A damaged run is named and left out. Whole runs are compared before anything is copied: a new run and those that it
belongs to must have one version of the algorithm, one configuration and one protocol. A run that is in two folders must
have the same records in both. Runs whose files are the same here and there, as committed ones are, are not read.
"""

from __future__ import annotations

import filecmp
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from ddrl.analysis.runs.flags import flatten
from ddrl.analysis.runs.run_data import RunFault, try_run
from ddrl.cli.inspection import problems
from ddrl.errors import UserError
from ddrl.system.files import read_file, replacing
from ddrl.system.locks import locked
from ddrl.system.parquet import read_frame
from ddrl.system.wording import shortened
from ddrl.training.config.run_config import parse_run_config, to_json
from ddrl.training.records.recorder import TIMING_METRICS

FILES = ("config.json", "curves.parquet", "run.json")
"""The files of a run in the order of copying: results come after the configuration, as the workflow expects."""
RESULTS = FILES[1:]
"""A directory with neither of them holds a run that has not finished, which is left out without a word."""
LEVELS = 6
"""The number of folders above a run's files: scale, paper, experiment, variant, environment, seed."""


@dataclass(frozen=True)
class Found:
    """A finished run in one of the folders."""

    folder: Path
    place: tuple[str, ...]
    """Scale, paper, experiment, variant, environment, seed."""
    manifest: Mapping[str, Any]

    @property
    def task(self) -> tuple[str, ...]:
        """Return scale, paper, task and the settings of the environment, which determine the protocol."""
        return (*self.place[:2], self.place[4], json.dumps(self.manifest["config"]["environment"], sort_keys=True))

    @cached_property
    def setting(self) -> dict[str, Any]:
        """The configuration by dotted key, without the seed. Keys that are newer than the run have their defaults."""
        return flatten({**to_json(parse_run_config(self.manifest["config"])), "seed": None})


@dataclass(frozen=True)
class Merged:
    """The outcome of a merge: new run directories, runs that were there, and runs left out, each with the reason.

    `skipped` runs are not whole; `failed` runs are whole but could not be copied.
    """

    copied: tuple[Path, ...]
    present: int
    skipped: tuple[str, ...]
    failed: tuple[str, ...]


def merge(sources: Sequence[Path], target: Path, *, dry_run: bool = False) -> Merged:
    """Copy the finished runs of `sources` that `target` lacks; with `dry_run` only report what would be copied.

    Raise UserError, before anything is copied, where a folder holds no run or none is whole, where the target is no
    folder, where runs that belong together have different protocols, versions or configurations, and where one run has
    different records in two places.
    """
    above = next((path for path in (target, *target.parents) if os.path.lexists(path)), None)
    if above is not None and not above.is_dir():
        raise UserError(f"--into {target}: {above} is no folder")
    if missing := next((source for source in sources if not source.is_dir()), None):
        raise UserError(f"{missing}: no such folder")  # before anything is read, which may take minutes
    found: list[Found] = []
    damaged: list[str] = []
    present = 0
    for source in sources:
        runs, reasons, alike = _finished(source, beside=target)
        if not (runs or reasons or alike):
            raise UserError(
                f"{source}: holds no finished run (scale/paper/experiment/variant/environment/seed/run.json)"
            )
        found += runs
        damaged += reasons
        present += alike
    if damaged and not found and not present:
        raise UserError(f"no run is whole of {len(damaged)}; the first: {damaged[0]}")
    here, damaged_here, _ = _finished(target) if found else ([], [], 0)
    _check_alike(here, found)
    wanted = {run.place: run for run in here}
    new = []
    for run in found:
        known = wanted.setdefault(run.place, run)
        if known is run:
            new.append(run)
        else:
            if not _records(known.folder).equals(_records(run.folder)):
                same = f"{known.folder} and {run.folder} are the same run with different records"
                raise UserError(f"{same}; keep one of them")
            present += 1
    copied, failed = [], []
    for run in new:
        directory = target.joinpath(*run.place)
        if reason := _copy(run.folder, directory, dry_run=dry_run):
            failed.append(f"{run.folder}: {reason}")
        else:
            copied.append(directory)
    return Merged(tuple(copied), present, (*damaged_here, *damaged), tuple(failed))


def _finished(folder: Path, beside: Path | None = None) -> tuple[list[Found], list[str], int]:
    """Return the whole runs of a folder, and for each other run that has results why it is left out.

    Runs with the same files in `beside` are only counted.
    """
    runs: list[Found] = []
    skipped: list[str] = []
    alike = 0
    for directory in _directories(folder, LEVELS, skipped):
        place = directory.relative_to(folder).parts
        if beside is not None and _same_files(directory, beside.joinpath(*place)):
            alike += 1
            continue
        manifest = _manifest(directory, place)
        if isinstance(manifest, str):
            skipped.append(f"{directory}: {manifest}")
        elif manifest is not None:
            runs.append(Found(directory, place, manifest))
    return runs, skipped, alike


def _same_files(one: Path, other: Path) -> bool:
    """Return whether both directories hold all files of a run, with the same content."""
    try:
        return all(filecmp.cmp(one / name, other / name, shallow=False) for name in FILES)
    except OSError:
        return False


def _directories(folder: Path, levels: int, skipped: list[str]) -> Iterator[Path]:
    """Return the run directories `levels` below `folder`; append to `skipped` the folders that cannot be read."""
    if levels == 0:
        yield folder
        return
    try:
        names = sorted(os.listdir(folder)) if folder.is_dir() else []
    except OSError as error:
        skipped.append(f"{folder}: cannot be read: {error.strerror}")
        return
    for name in names:
        if levels > 1 or name.startswith("seed"):
            yield from _directories(folder / name, levels - 1, skipped)


def _manifest(directory: Path, place: tuple[str, ...]) -> Mapping[str, Any] | str | None:
    """Return the manifest of a whole run, or one line on what is wrong with it; None where it has not finished.

    Any other exception is a fault of this run, too: it must not keep the others from being copied.
    """
    try:
        if not directory.is_dir():
            return "is no folder"
        if not any(os.path.lexists(directory / name) for name in RESULTS):
            return None
        for name in FILES:
            if not (directory / name).is_file():  # reading a pipe, for example, would wait forever
                return f"{name}: {'is no file' if (directory / name).exists() else 'no such file'}"
        _, paper, experiment, variant, _, _ = place
        found = try_run(directory, "run", paper, experiment, variant)
        if isinstance(found, RunFault):
            return f"{found.file.name}: {found.detail}"
        return next(problems(directory), None) or found.manifest
    except Exception as error:
        return f"cannot be read: {type(error).__name__}: {shortened(error)}"


_COMPARED: Mapping[str, tuple[Callable[[Found], tuple[str, ...]], Callable[[Found], Mapping[str, Any]]]] = {
    "protocol": (lambda run: run.task, lambda run: {"": run.manifest["protocol"]}),
    "algorithm_version": (lambda run: run.place[:5], lambda run: {"": run.manifest["algorithm_version"]}),
    "configuration": (lambda run: run.place[:5], lambda run: run.setting),
}
"""What is compared -> which runs must have the same, and what of a run."""


def _check_alike(here: Sequence[Found], found: Sequence[Found]) -> None:
    """Raise UserError where a run of `found` differs from another one that it is compared with.

    In a paper's scale, a task with the same settings has one protocol, and a variant has one configuration for a task.
    Two runs of `here` are not compared: they were together before.
    """
    for what, (group_of, value_of) in _COMPARED.items():
        first: dict[tuple[str, ...], Found] = {}
        for run in here:
            first.setdefault(group_of(run), run)
        for run in found:
            known = first.setdefault(group_of(run), run)
            if difference := _difference(value_of(known), value_of(run)):
                raise UserError(f"{known.folder} and {run.folder} cannot be merged: different {what}: {difference}")


def _difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Return the first key that differs, with both values; an empty text where none does."""
    for key in sorted(one.keys() | other.keys()):
        if one.get(key) != other.get(key):
            return f"{key} {json.dumps(one.get(key))} and {json.dumps(other.get(key))}".strip()
    return ""


def _records(folder: Path) -> pd.DataFrame:
    """Return the records of a run without its times."""
    table = read_frame(read_file(folder / "curves.parquet")).drop(columns="seconds")
    return table[~table["metric"].isin(TIMING_METRICS)].reset_index(drop=True)


def _copy(source: Path, directory: Path, *, dry_run: bool) -> str:
    """Copy a run to `directory`, which holds no whole one, unless a process trains there.

    Return one line on why that failed, or an empty text; with `dry_run` why it cannot be tried.
    """
    if os.path.lexists(directory) and not directory.is_dir():
        return f"{directory} is no folder"
    if any(os.path.lexists(directory / name) for name in RESULTS):
        return f"{directory} holds a damaged run; remove it, or merge into another folder"
    if dry_run:
        return ""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with locked(directory) if (directory / "lock").exists() else nullcontext():
            for name in FILES:
                with replacing(directory / name) as temporary:
                    shutil.copyfile(source / name, temporary)
    except OSError as error:
        return f"cannot be copied: {error.filename or directory}: {error.strerror}"
    except UserError as error:
        return f"cannot be copied: {error}"
    return ""
