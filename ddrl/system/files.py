"""Files that are whole or not there: written beside their place, flushed to disk, renamed. No torch here."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO, cast

from ddrl.errors import NO_FILE


def read_file(path: Path) -> bytes:
    """All of a file. Raises OSError where it cannot be read, or as `refuse_pipe`."""
    refuse_pipe(path)
    return path.read_bytes()


def refuse_pipe(path: Path) -> None:
    """Raises OSError (`NO_FILE`) where a pipe or a device stands, since to open one may wait for ever.

    Those below /dev and /proc, which a shell makes of `<(...)`, are allowed.
    """
    mode = os.stat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) and path.parts[:2] not in (("/", "dev"), ("/", "proc")):
        raise OSError(errno.ESPIPE, NO_FILE, str(path))


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside `path`: what the block writes there stands at `path` once the block has ended without an error.

    After an error nothing is left of it, and the old file is as it was. An OSError names `path`: that of a full disk
    would name no file.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        _flush(temporary)
        os.replace(temporary, path)
        _flush(path.parent)  # the rename itself
    except OSError as error:
        if error.errno is None or error.filename not in (None, str(temporary), temporary):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_atomically(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """`path` with what `write` puts into an open file. Raises what the disk refused, whatever `write` makes of it."""
    with replacing(path) as temporary:
        fill(temporary, write)


def fill(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """A new file, with what `write` puts into it. Raises what the disk refused: torch makes a RuntimeError of it."""
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
    """An open file that keeps what was refused of it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.refused: OSError | None = None

    def write(self, content: Any) -> int:
        """As that of the file."""
        try:
            return self._file.write(content)
        except OSError as error:
            self.refused = self.refused or error
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def append(path: Path, file: FileIO, content: bytes) -> None:
    """All of `content` at the end of an unbuffered file, or none of it. Raises OSError that names `path`."""
    start = os.fstat(file.fileno()).st_size
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[file.write(rest) :]
    except OSError as error:
        os.ftruncate(file.fileno(), start)
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_whole(path: Path, content: bytes) -> None:
    """`path` with `content`; its folder is made where there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda file: file.write(content))


def below(root: Path, name: str, lost: Callable[[Path, OSError], Any] = lambda path, error: None) -> list[Path]:
    """Every file of that name in `root` and the folders below it, sorted; links to folders are followed.

    A folder that several links lead to is visited once, so that one which leads to a folder around it ends nothing.
    `lost`: told of each folder that cannot be read, each link that leads nowhere, and each folder of that name.
    """
    found: list[Path] = []
    visited: set[tuple[int, int]] = set()

    def tell(error: OSError) -> None:
        lost(Path(error.filename), error)

    for folder, folders, files in os.walk(root, followlinks=True, onerror=tell):
        here = os.stat(folder)
        if (here.st_dev, here.st_ino) in visited:
            folders.clear()
            continue
        visited.add((here.st_dev, here.st_ino))
        folders.sort()
        if name in folders:
            lost(
                Path(folder, name), IsADirectoryError(errno.EISDIR, "is a folder, not a file", str(Path(folder, name)))
            )
        for path in (Path(folder, file) for file in files):
            if path.is_symlink() and not path.exists():
                lost(path, FileNotFoundError(errno.ENOENT, "leads nowhere", str(path)))
            elif path.name == name:
                found.append(path)
    return sorted(found)


def remove_abandoned(folder: Path) -> None:
    """Removes what processes of this machine that were killed in `replacing` have left in `folder`.

    For folders that only one machine writes to: a process of another one would look as if it were gone.
    """
    for path in folder.glob(".*.tmp"):
        process = path.suffixes[-2][1:] if len(path.suffixes) > 1 else ""
        if process.isdecimal() and not _runs(int(process)):
            path.unlink(missing_ok=True)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        return True
    return True


def _flush(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
