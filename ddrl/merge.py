"""Joins the finished runs of several result folders, as those of two clusters, where they are runs of the same thing.

All is checked before anything is copied: what is compared later on must have been trained by one version of an
algorithm, with one configuration, on one protocol. A run that is in two folders must have the same records in both.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ddrl.analysis.experiments import MANIFESTS
from ddrl.analysis.flags import flatten
from ddrl.config import parse_run_config, to_json
from ddrl.errors import UserError
from ddrl.files import replacing
from ddrl.inspection import problems
from ddrl.record import TIMING_METRICS

FILES = ("config.json", "curves.parquet", "run.json")
"""Of a run, in the order they are copied in: results come after the configuration, as the workflow expects."""


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


def merge(sources: Sequence[Path], target: Path, *, dry_run: bool = False) -> Merged:
    """Copies the finished runs of `sources` that `target` lacks; with `dry_run` only says what it would do.

    Raises: UserError where a folder holds no finished run, where runs that belong together have different protocols,
    versions or configurations, and where one run has different records in two places. Then nothing has been copied.
    """
    skipped: list[str] = []
    here = _finished(target, skipped) if target.is_dir() else []
    found = list(here)
    for source in sources:
        runs = _finished(source, skipped) if source.is_dir() else []
        if not runs:
            raise UserError(
                f"{source}: holds no finished run (scale/paper/experiment/variant/environment/seed/run.json)"
            )
        found += runs
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
    copied = [target.joinpath(*run.place) for run in new]
    if not dry_run:
        for run, directory in zip(new, copied, strict=True):
            _copy(run.folder, directory)
    return Merged(tuple(copied), present, tuple(skipped))


def _finished(folder: Path, skipped: list[str]) -> list[Found]:
    """The whole runs of a folder; of others the reason goes to `skipped`."""
    runs = []
    for path in sorted(folder.glob(MANIFESTS)):
        reason = next(problems(path.parent), None)
        if reason is None:
            place = path.parent.relative_to(folder).parts
            runs.append(Found(path.parent, place, json.loads(path.read_text(encoding="utf-8"))))
        else:
            skipped.append(f"{path.parent}: {reason}")
    return runs


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
    table = pd.read_parquet(folder / "curves.parquet").drop(columns="seconds")
    return table[~table["metric"].isin(TIMING_METRICS)].reset_index(drop=True)


def _copy(source: Path, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        with replacing(directory / name) as temporary:
            shutil.copyfile(source / name, temporary)
