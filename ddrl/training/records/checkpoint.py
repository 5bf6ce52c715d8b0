"""Checkpoints, written atomically and with a checksum; the two newest are kept, and the newest valid one is loaded.

A checkpoint is `<updates>.pt` beside `<updates>.sha256`. Both are moved to their places by rename, the hash last, so a
crash leaves either a complete checkpoint or one that is refused. Other processes may write parts of it, under the same
number in folders of their own; if its `beside` names the hash of a part, that part must have this hash.
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
"""Errors of reading that say nothing about the file's content."""


def save(directory: Path, updates: int, state: dict[str, Any]) -> Path:
    """Write `state` (tensors, numbers, texts, lists, dicts), then remove all but the newest two checkpoints.

    Remove temporary files of killed saves first, since each is as large as a checkpoint. Raise `UserError` if the disk
    refuses it; earlier checkpoints stay.
    """
    path = _path(directory, updates)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        remove_abandoned(directory)
        for file in (path, path.with_suffix(".sha256")):  # before one of the two replaces a file that is whole
            if file.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))
        with replacing(path.with_suffix(".sha256")) as checksums, replacing(path) as data:
            fill(data, lambda file: torch.save(state, file))
            checksums.write_text(_sha256(data), encoding="utf-8")  # before the renames, so that both fit, or none
    except OSError as error:
        raise _cannot_be_saved(path, error) from error
    for old in _newest_first(directory)[KEPT:]:
        with suppress(IsADirectoryError):  # a folder was not made by this program, and stays
            old.with_suffix(".sha256").unlink(missing_ok=True)
            old.unlink(missing_ok=True)
    return path


def _cannot_be_saved(path: Path, error: OSError) -> UserError:
    reason = str(file_error(error, error.filename or path))
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        with suppress(OSError):  # the folder is gone
            free = shutil.disk_usage(path.parent).free / 2**20
            reason = f"{os.strerror(error.errno)} ({free:,.0f} MiB are free)"
    before = "the checkpoint before it is whole" if any(path.parent.glob("*.sha256")) else "there is none before it"
    return UserError(f"{path}: cannot be saved: {reason}; {before}")


def load_newest(directory: Path) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the newest valid state, or None, and one line for each damaged checkpoint that was passed over."""
    damaged: list[str] = []
    return next((state for _, state in whole(directory, damaged.append)), None), damaged


def whole(directory: Path, complain: Callable[[str], object]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield path and state of every checkpoint that can be read, newest first; call `complain` for each other one."""
    for path in _newest_first(directory):
        state, problem = _read(path)
        if state is None:
            complain(passed_over(path, problem))
        else:
            yield path, state


def without_counterpart(path: Path, state: dict[str, Any], beside: Sequence[Path]) -> Path | None:
    """Return the first of the folders `beside` that lacks its part of a checkpoint, or None."""
    return next((other for other in beside if not _belongs(other / path.name, state)), None)


def passed_over(path: Path, problem: str) -> str:
    """Return the line for the user about a checkpoint that is passed over."""
    return f"{path}: {problem}; passed over"


def load(directory: Path, updates: int) -> dict[str, Any]:
    """Load one checkpoint. Raise ValueError if it is damaged."""
    state, problem = _read(_path(directory, updates))
    if state is None:
        raise ValueError(f"{_path(directory, updates)}: {problem}")
    return state


def set_aside(directory: Path, name: str) -> Path:
    """Rename a folder of checkpoints that is not to be continued; return its new path.

    Temporary files of killed saves in it are removed: nobody would look for them there again.
    """
    for folder in [directory, *(path for path in directory.rglob("*") if path.is_dir() and not path.is_symlink())]:
        remove_abandoned(folder)
    target = free_name(directory.with_name(f"{directory.name}-{name}"))
    directory.rename(target)
    return target


def free_name(path: Path) -> Path:
    """Return the first of `path`, `path-2`, `path-3`, ... that does not exist."""
    numbered = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(one for one in itertools.chain([path], numbered) if not one.exists())


def checksum(path: Path) -> str:
    """Return the recorded hash of a checkpoint."""
    return read_file(path.with_suffix(".sha256")).decode()


def rank_folder(directory: Path, rank: int) -> Path:
    """Return the folder in which a learner other than the first keeps its checkpoints of the run in `directory`."""
    return directory / "checkpoints" / f"rank{rank}"


def replay_folder(directory: Path) -> Path:
    """Return the folder in which a replay in a process of its own keeps its checkpoints."""
    return directory / "checkpoints" / "replay"


def newest_number(directory: Path) -> int:
    """Return the updates of the newest checkpoint in a folder, whether or not it is whole; -1 where there is none."""
    return next((int(path.stem) for path in _newest_first(directory)), -1)


def _path(directory: Path, updates: int) -> Path:
    return directory / f"{updates:012d}.pt"


def _read(path: Path) -> tuple[dict[str, Any] | None, str]:
    """Return a checkpoint's state, or None and what is wrong with it.

    Raise `UserError` if the system does not let it be read at present (permissions, network disks): it is not damaged,
    and a run that continued from an older one would lose training.
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
    except Exception as error:  # torch raises many kinds for truncated files and for other than plain data
        return None, f"cannot be read ({(str(error).splitlines() or [type(error).__name__])[0]})"
    return (state, "") if isinstance(state, dict) else (None, "holds no state")


def _is_whole(path: Path) -> bool:
    """Return whether a checkpoint matches its hash. Raise OSError if it cannot be read at present."""
    try:
        return path.is_file() and path.with_suffix(".sha256").is_file() and _sha256(path) == checksum(path)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in UNREADABLE:
            raise
        return False


def _belongs(part: Path, state: dict[str, Any]) -> bool:
    """Return whether a part is complete, and was saved with `state`, not by a later run under the same number."""
    wanted = state.get("beside", {}).get(part.parent.name)
    return _is_whole(part) and wanted in (None, checksum(part))


def _newest_first(directory: Path) -> list[Path]:
    found = [path for path in directory.glob("*.pt") if re.fullmatch(r"\d+", path.stem)]
    return sorted(found, key=lambda path: (int(path.stem), path), reverse=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
