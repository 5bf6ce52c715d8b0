"""Finds run directories: the one that a path means, or all below some folders."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from ddrl.errors import UserError

CURVES = ("curves.parquet", "curves.jsonl")
"""The curves of a finished run, and those that a run is writing."""
CONFIGS = ("config.json", "member.json")
"""The configuration of a run, and of a member of a population."""
_FILES = (*CURVES, *CONFIGS, "run.json", "policy.safetensors")
_SHOWN = 3


def folder_of(path: Path) -> Path:
    """Return the folder that `path` means: itself, or that of a run's file."""
    return path.parent if path.name in _FILES and path.is_file() else path


def the_run(path: Path) -> Path:
    """Return the run directory that `path` means: itself, or the folder of a run's file.

    Raise UserError where it is none, with the runs that are below or above it.
    """
    folder = folder_of(path)
    if (folder / CONFIGS[0]).exists():
        return folder
    if not path.exists():
        raise UserError(f"{path}: no such folder")
    around = [one for one in islice(folder.absolute().parents, 2) if (one / CONFIGS[0]).exists()]
    around += islice(_below(folder), _SHOWN + 1)
    shown = ", ".join(map(str, around[:_SHOWN])) + (", ..." if len(around) > _SHOWN else "")
    raise UserError(f"{path}: is no run directory (it has no config.json)" + (f"; allowed: {shown}" if shown else ""))


def find(paths: Sequence[Path]) -> list[Path]:
    """Return the run directories at or below `paths`, each once. Raise UserError for a path without any."""
    found: dict[Path, Path] = {}
    for path in paths:
        if not path.exists():
            raise UserError(f"{path}: no such folder")
        runs = list(_below(folder_of(path)))
        if not runs:
            raise UserError(f"{path}: holds no run (no folder with config.json and curves.parquet or curves.jsonl)")
        for run in runs:
            found.setdefault(run.resolve(), run)
    return list(found.values())


def _below(path: Path) -> Iterator[Path]:
    """Yield run directories; what a run keeps below its own directory is not looked into.

    Links are followed, but no folder is looked into twice: a link may lead to a folder above it.
    """
    seen = set()
    for folder, folders, files in os.walk(path, followlinks=True):
        if (real := os.path.realpath(folder)) in seen:
            folders.clear()
            continue
        seen.add(real)
        if {*CURVES} & {*files} and {*CONFIGS} & {*files}:
            folders.clear()
            yield Path(folder)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
