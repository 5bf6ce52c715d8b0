"""Checkpoints: atomic, checksummed, two kept; the newest valid one wins.

A checkpoint is `<updates>.pt` beside `<updates>.sha256`. The hash is written after the data, both by rename, so a
crash leaves either a whole checkpoint or one that is not believed. Other processes may write parts of it, under the
same number in folders of their own; where its `beside` names the hash of a part, that part must be this very one.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from ddrl.errors import UserError, file_error
from ddrl.system.files import fill, read_file, remove_abandoned, replacing

KEPT = 2
UNREADABLE = tuple(
    getattr(errno, name)
    for name in ("EACCES", "EPERM", "EIO", "ESTALE", "ETIMEDOUT", "ENOTCONN", "EREMOTEIO", "EMFILE", "ENFILE")
)
"""Errors of reading that say nothing of what the file holds."""


def save(directory: Path, updates: int, state: dict[str, Any]) -> Path:
    """Writes `state` (tensors, numbers, texts, lists, dicts); then removes all but the newest two.

    Before, it removes what a save that was killed has left: as large as a checkpoint, and one for each kill. Raises
    `UserError` where the disk does not take it; what was saved before stays.
    """
    path = _path(directory, updates)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        remove_abandoned(directory)
        with replacing(path.with_suffix(".sha256")) as checksums, replacing(path) as data:
            fill(data, lambda file: torch.save(state, file))
            checksums.write_text(_sha256(data), encoding="utf-8")  # before either takes its place: both fit, or none
    except OSError as error:
        raise _cannot_be_saved(path, error) from error
    for _, old in list(_newest_first(directory))[KEPT:]:
        with suppress(IsADirectoryError):  # no work of this program; it stays
            old.with_suffix(".sha256").unlink(missing_ok=True)
            old.unlink(missing_ok=True)
    return path


def _cannot_be_saved(path: Path, error: OSError) -> UserError:
    reason = str(file_error(error, error.filename or path))
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        with suppress(OSError):  # a folder that is gone is on no disk
            free = shutil.disk_usage(path.parent).free / 2**20
            reason = f"{os.strerror(error.errno)} ({free:,.0f} MiB are free)"
    before = "the checkpoint before it is whole" if any(path.parent.glob("*.sha256")) else "there is none before it"
    return UserError(f"{path}: cannot be saved: {reason}; {before}")


def load_newest(directory: Path) -> tuple[dict[str, Any] | None, list[str]]:
    """The newest valid state (None where there is none) and one line for each damaged checkpoint passed over."""
    damaged: list[str] = []
    return next((state for _, state in whole(directory, damaged.append)), None), damaged


def whole(directory: Path, complain: Callable[[str], object]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Every checkpoint that can be read, newest first, and its state; of each other one `complain` is told a line."""
    for _, path in _newest_first(directory):
        state, problem = _read(path)
        if state is None:
            complain(passed_over(path, problem))
        else:
            yield path, state


def without_counterpart(path: Path, state: dict[str, Any], beside: Sequence[Path]) -> Path | None:
    """The first of the folders `beside` that lacks the part which belongs to a checkpoint; None: there is none."""
    return next((other for other in beside if not _belongs(other / path.name, state)), None)


def passed_over(path: Path, problem: str) -> str:
    """One line for the user."""
    return f"{path}: {problem}; passed over"


def load(directory: Path, updates: int) -> dict[str, Any]:
    """One checkpoint. Raises ValueError where it is damaged."""
    state, problem = _read(_path(directory, updates))
    if state is None:
        raise ValueError(f"{_path(directory, updates)}: {problem}")
    return state


def set_aside(directory: Path, name: str) -> Path:
    """Renames a folder of checkpoints that is not to be continued; returns where it went. Nothing is deleted."""
    target = free_name(directory.with_name(f"{directory.name}-{name}"))
    directory.rename(target)
    return target


def free_name(path: Path) -> Path:
    """`path`, or where that exists the first of `path-2`, `path-3`, ... that does not."""
    return next(one for one in _numbered(path) if not one.exists())


def _numbered(path: Path) -> Iterator[Path]:
    yield path
    for number in itertools.count(2):
        yield path.with_name(f"{path.name}-{number}")


def checksum(path: Path) -> str:
    """Of a whole checkpoint."""
    return read_file(path.with_suffix(".sha256")).decode()


def rank_folder(directory: Path, rank: int) -> Path:
    """Where a learner other than the first keeps its checkpoints of the run in `directory`."""
    return directory / "checkpoints" / f"rank{rank}"


def replay_folder(directory: Path) -> Path:
    """Where a replay in a process of its own does."""
    return directory / "checkpoints" / "replay"


def holds_any(directory: Path) -> bool:
    """Whether there is a checkpoint, valid or not, in the folder or in that of a rank within."""
    return any(directory.rglob("*.pt"))


def newest_number(directory: Path) -> int:
    """Return the updates of the newest checkpoint in a folder, whether or not it is whole; -1 where there is none."""
    return next((updates for updates, _ in _newest_first(directory)), -1)


def _path(directory: Path, updates: int) -> Path:
    return directory / f"{updates:012d}.pt"


def _read(path: Path) -> tuple[dict[str, Any] | None, str]:
    """A checkpoint's state, or None and what is wrong with it.

    Raises `UserError` where the system does not let it be read now: what a permission or a network's disk keeps back is
    not damaged, and a run that went back behind it would lose what it has.
    """
    try:
        if not path.is_file():
            return None, "is no file"
        if not _is_whole(path):
            return None, "checksum does not match"
        state = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        if error.errno in UNREADABLE:
            reason = os.strerror(error.errno or 0).lower()
            raise UserError(
                f"{path}: {reason}; make it readable, or remove it to go on from the checkpoint before it"
            ) from error
        return None, f"cannot be read ({error.strerror})"
    except Exception as error:  # torch raises many kinds for files that are cut, or hold more than plain data
        return None, f"cannot be read ({(str(error).splitlines() or [type(error).__name__])[0]})"
    return (state, "") if isinstance(state, dict) else (None, "holds no state")


def _is_whole(path: Path) -> bool:
    """Raises OSError where it cannot be read now."""
    try:
        return path.is_file() and path.with_suffix(".sha256").is_file() and _sha256(path) == checksum(path)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in UNREADABLE:
            raise
        return False


def _belongs(part: Path, state: dict[str, Any]) -> bool:
    """Whether a part is whole, and the one that `state` was written with: a later run may write its number again."""
    wanted = state.get("beside", {}).get(part.parent.name)
    return _is_whole(part) and wanted in (None, checksum(part))


def _newest_first(directory: Path) -> Iterator[tuple[int, Path]]:
    found = [(int(path.stem), path) for path in directory.glob("*.pt") if re.fullmatch(r"\d+", path.stem)]
    yield from sorted(found, reverse=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
