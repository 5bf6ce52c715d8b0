"""Joins the finished runs of several result folders, as those of two clusters, where they are runs of the same thing.

Each run is judged by itself: one that is damaged is named and left out, and the others go on. Between whole runs all is
checked before anything is copied: what is compared later on must have been trained by one version of an algorithm, with
one configuration, on one protocol. A run that is in two folders must have the same records in both.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import pandas as pd

from ddrl.analysis.runs.flags import flatten
from ddrl.analysis.runs.run_data import Fault, try_run
from ddrl.cli.inspection import problems
from ddrl.errors import UserError
from ddrl.system.files import read_file, replacing
from ddrl.system.locks import locked
from ddrl.training.config.run_config import parse_run_config, to_json
from ddrl.training.records.recorder import TIMING_METRICS

FILES = ("config.json", "curves.parquet", "run.json")
"""Of a run, in the order they are copied in: results come after the configuration, as the workflow expects."""
RESULTS = FILES[1:]
"""With neither of them a directory holds a run that has not finished, which is nothing to speak of."""
LEVELS = 6
"""Folders between a folder of results and a run's files: scale, paper, experiment, variant, environment, seed."""


@dataclass(frozen=True)
class Found:
    """A finished run in one of the folders."""

    folder: Path
    place: tuple[str, ...]
    """Scale, paper, experiment, variant, environment, seed."""
    manifest: Mapping[str, Any]

    @property
    def setting(self) -> dict[str, Any]:
        """Dotted keys of its configuration, without the seed; keys that are younger than the run at their defaults."""
        return flatten({**to_json(parse_run_config(self.manifest["config"])), "seed": None})


@dataclass(frozen=True)
class Merged:
    """What came of it."""

    copied: tuple[Path, ...]
    """Run directories in the target that are new."""
    present: int
    """Runs that the target has already, with the same records."""
    skipped: tuple[str, ...]
    """Runs that are not whole, each with the reason."""
    failed: tuple[str, ...] = ()
    """Whole runs that the target did not take, each with the reason."""


def merge(sources: Sequence[Path], target: Path, *, dry_run: bool = False) -> Merged:
    """Copies the finished runs of `sources` that `target` lacks; with `dry_run` only says what it would do.

    Raises: UserError where a folder holds no run or none is whole, where the target is no folder, where runs that
    belong together have different protocols, versions or configurations, and where one run has different records in two
    places. Then nothing has been copied.
    """
    _check_target(target)
    skipped: list[str] = []
    here = _finished(target, skipped) if target.is_dir() else []
    damaged_here = len(skipped)
    found = list(here)
    for source in sources:
        before = len(skipped)
        runs = _finished(source, skipped)
        if not runs and len(skipped) == before:
            raise UserError(
                f"{source}: holds no finished run (scale/paper/experiment/variant/environment/seed/run.json)"
            )
        found += runs
    if len(found) == len(here) and len(skipped) > damaged_here:
        raise UserError(f"no run is whole of {len(skipped) - damaged_here}; the first: {skipped[damaged_here]}")
    _check_alike(found)
    wanted = {run.place: run for run in here}
    present, new = 0, []
    for run in found[len(here) :]:
        known = wanted.setdefault(run.place, run)
        if known is run:
            new.append(run)
        else:
            _check_same(known, run)
            present += 1
    copied, failed = [], []
    for run in new:
        directory = target.joinpath(*run.place)
        reason = _why_not(directory) or ("" if dry_run else _copied(run.folder, directory))
        if reason:
            failed.append(f"{run.folder}: {reason}")
        else:
            copied.append(directory)
    return Merged(tuple(copied), present, tuple(skipped), tuple(failed))


def _check_target(target: Path) -> None:
    """Raises UserError where the target, or what should be a folder above it, is something else."""
    above = next((path for path in (target, *target.parents) if os.path.lexists(path)), None)
    if above is not None and not above.is_dir():
        raise UserError(f"--into {target}: {above} is no folder")


def _finished(folder: Path, skipped: list[str]) -> list[Found]:
    """The whole runs of a folder; of others that have results the reason goes to `skipped`."""
    runs = []
    for directory in _directories(folder, LEVELS, skipped):
        place = directory.relative_to(folder).parts
        found = _judged(directory, place)
        if isinstance(found, str):
            skipped.append(f"{directory}: {found}")
        elif found is not None:
            runs.append(Found(directory, place, found))
    return runs


def _directories(folder: Path, levels: int, skipped: list[str]) -> Iterator[Path]:
    """What is named as a run's directory, `levels` below `folder`; folders that cannot be read go to `skipped`."""
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


def _judged(directory: Path, place: tuple[str, ...]) -> Mapping[str, Any] | str | None:
    """The manifest of a whole run, or in one line what is wrong with it; None where it has not finished.

    What no check foresees is wrong with this run, too: it must not keep the others from being copied.
    """
    try:
        if not directory.is_dir():
            return "is no folder"
        if not any(os.path.lexists(directory / name) for name in RESULTS):
            return None
        for name in FILES:
            if not (directory / name).is_file():  # a pipe, for one, would be waited for
                return f"{name}: {'is no file' if (directory / name).exists() else 'no such file'}"
        _, paper, experiment, variant, _, _ = place
        found = try_run(directory, "run", paper, experiment, variant)
        if isinstance(found, Fault):
            return f"{found.file.name}: {found.detail}"
        return next(problems(directory), None) or found.manifest
    except Exception as error:
        return f"cannot be read: {type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _check_alike(runs: Sequence[Found]) -> None:
    """One protocol for each task of a paper's scale; one version and one setting for each variant on it."""
    for what, group_of, value_of in (
        ("protocol", lambda run: (*run.place[:2], run.place[4]), lambda run: {"": run.manifest["protocol"]}),
        ("algorithm_version", lambda run: run.place[:5], lambda run: {"": run.manifest["algorithm_version"]}),
        ("configuration", lambda run: run.place[:5], lambda run: run.setting),
    ):
        first: dict[tuple[str, ...], Found] = {}
        for run in runs:
            known = first.setdefault(group_of(run), run)
            if difference := _difference(value_of(known), value_of(run)):
                raise UserError(f"{known.folder} and {run.folder} cannot be merged: different {what}: {difference}")


def _difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """The first key that differs, with both values; empty where none does."""
    for key in sorted(one.keys() | other.keys()):
        if one.get(key) != other.get(key):
            return f"{key} {json.dumps(one.get(key))} and {json.dumps(other.get(key))}".strip()
    return ""


def _check_same(one: Found, other: Found) -> None:
    left, right = (_records(run.folder) for run in (one, other))
    if not left.equals(right):
        raise UserError(f"{one.folder} and {other.folder} are the same run with different records; keep one of them")


def _records(folder: Path) -> pd.DataFrame:
    """Without how long it took."""
    table = pd.read_parquet(BytesIO(read_file(folder / "curves.parquet"))).drop(columns="seconds")
    return table[~table["metric"].isin(TIMING_METRICS)].reset_index(drop=True)


def _why_not(directory: Path) -> str:
    """What speaks against copying a run to `directory`, where the target has no whole one; empty if nothing does."""
    if os.path.lexists(directory) and not directory.is_dir():
        return f"{directory} is no folder"
    if any(os.path.lexists(directory / name) for name in RESULTS):
        return f"{directory} holds a damaged run; remove it, or merge into another folder"
    return ""


def _copied(source: Path, directory: Path) -> str:
    """Copies a run; returns in one line why that failed, or nothing. Not beside a process that trains there."""
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
