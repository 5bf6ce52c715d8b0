"""Atomic file writes (a temporary file, fsync, rename), and reading and finding files."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO, cast

import psutil

from ddrl.errors import NO_FILE


def read_file(path: Path) -> bytes:
    """Return the content of a file. Raise OSError if it cannot be read or `refuse_pipe` refuses it."""
    refuse_pipe(path)
    return path.read_bytes()


def refuse_pipe(path: Path) -> None:
    """Raise OSError (`NO_FILE`) if `path` is a pipe or a device, since opening one may block for ever.

    Those below /dev and /proc are allowed: a shell passes `<(...)` as such a path.
    """
    mode = os.stat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) and path.parts[:2] not in (("/", "dev"), ("/", "proc")):
        raise OSError(errno.ESPIPE, NO_FILE, str(path))


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path for the block to write to, and move it to `path` if the block raises no error.

    After an error the temporary file is removed, and the old file is unchanged. An OSError names `path`, also that of
    a full disk, which names no file.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        _flush(temporary)
        os.replace(temporary, path)
        _flush(path.parent)  # so that the rename is on the disk too
    except OSError as error:
        if error.errno is None or error.filename not in (None, str(temporary), temporary):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_atomically(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Replace `path` atomically by what `write` writes into an open file. Raise OSError as `fill`."""
    with replacing(path) as temporary:
        fill(temporary, write)


def fill(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Create a file with what `write` writes. Raise the disk's OSError, also where torch makes another error of it."""
    with path.open("wb") as file:
        disk = _Disk(file)
        try:
            write(cast(BinaryIO, disk))
            file.flush()
        except Exception:
            if disk.refused is not None:
                raise disk.refused from None
            raise


class _Disk:
    """An open file that remembers the first OSError of a write."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.refused: OSError | None = None

    def write(self, content: Any) -> int:
        """Write to the file."""
        try:
            return self._file.write(content)
        except OSError as error:
            self.refused = self.refused or error
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def append(path: Path, file: FileIO, content: bytes) -> None:
    """Append all of `content` to an unbuffered file, or nothing of it. Raise OSError that names `path`."""
    start = os.fstat(file.fileno()).st_size
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[file.write(rest) :]
    except OSError as error:
        os.ftruncate(file.fileno(), start)
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_whole(path: Path, content: bytes) -> None:
    """Replace `path` atomically by `content`; make its folder if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda file: file.write(content))


def below(root: Path, name: str, lost: Callable[[Path, OSError], Any] = lambda path, error: None) -> list[Path]:
    """Return the files called `name` in `root` and the folders below, sorted; links to folders are followed.

    Each folder is visited once, so a circle of links does no harm. `lost` is called for each folder that cannot be
    read, each broken link, and each folder called `name`.
    """
    found: list[Path] = []
    visited: set[tuple[int, int]] = set()
    for folder, folders, files in os.walk(
        root, followlinks=True, onerror=lambda error: lost(Path(error.filename), error)
    ):
        here = os.stat(folder)
        if (here.st_dev, here.st_ino) in visited:
            folders.clear()
            continue
        visited.add((here.st_dev, here.st_ino))
        folders.sort()
        path = Path(folder, name)
        if name in folders:
            lost(path, IsADirectoryError(errno.EISDIR, "is a folder, not a file", str(path)))
        for path in (Path(folder, file) for file in files):
            if path.is_symlink() and not path.exists():
                lost(path, FileNotFoundError(errno.ENOENT, "leads nowhere", str(path)))
            elif path.name == name:
                found.append(path)
    return sorted(found)


def remove_abandoned(folder: Path) -> None:
    """Remove temporary files of `replacing` in `folder` whose process no longer runs.

    Only for folders that one machine alone writes to: processes of other machines seem not to run.
    """
    for path in folder.glob(".*.tmp"):
        process = path.suffixes[-2][1:] if len(path.suffixes) > 1 else ""
        if process.isdecimal() and not psutil.pid_exists(int(process)):
            path.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
