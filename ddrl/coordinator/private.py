"""Folders that nobody but this user can enter: for Unix sockets, and for what meets on one machine.

Who finds a socket in such a folder knows that a process of the same user has put it there.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
from pathlib import Path

from ddrl.errors import UserError

LONGEST_SOCKET = 107
"""Bytes of a Unix socket's path that Linux takes."""
SOCKET = "socket"
"""The name of one that is alone in its folder."""
OTHERS = stat.S_IRWXG | stat.S_IRWXO
_TRIED = ("/tmp", "/var/tmp", "/dev/shm")
"""Where folders are made if TMPDIR is too long, or has characters that a socket's address gives another meaning."""
_PLAIN = re.compile(r"/[\w./-]*", re.ASCII)


def private_folder(prefix: str) -> Path:
    """Make a new folder with room for a socket's path in it. Raise UserError where there is none for it."""
    return Path(tempfile.mkdtemp(prefix=prefix, dir=parent_for(LONGEST_SOCKET - len(f"/{prefix}12345678/{SOCKET}"))))


def parent_for(longest: int) -> Path:
    """Return the temporary directory, or another one where its path is odd or has more than `longest` bytes."""
    for parent in (tempfile.gettempdir(), *_TRIED):
        fits = len(os.fsencode(parent)) <= longest and _PLAIN.fullmatch(parent)
        if fits and os.access(parent, os.W_OK | os.X_OK) and not _replaceable(Path(parent)):
            return Path(parent)
    raise UserError(f"TMPDIR: no folder for sockets among {', '.join((tempfile.gettempdir(), *_TRIED))}")


def check_private(folder: Path) -> None:
    """Raise UserError unless a folder is this user's and only this user can enter it, or put another in its place."""
    try:
        found = folder.lstat()
    except OSError as error:
        raise UserError(f"{folder}: {(error.strerror or 'cannot be read').lower()}") from None
    if not stat.S_ISDIR(found.st_mode):
        raise UserError(f"{folder}: no folder; a socket must be in one that only you can enter")
    if found.st_uid != os.geteuid():
        raise UserError(f"{folder}: it belongs to user {found.st_uid}; a socket must be in a folder of your own")
    if found.st_mode & OTHERS:
        raise UserError(
            f"{folder}: others may enter it (mode {stat.S_IMODE(found.st_mode):o}); a socket must be in a folder "
            "that only you can enter: mkdir -m 700"
        )
    if open_to_all := _replaceable(folder.parent):
        raise UserError(f"{folder}: others may put another folder in its place, since all may write to {open_to_all}")


def check_own_socket(path: Path) -> None:
    """Raise UserError where a socket that is there is not this user's, or its folder not private."""
    check_private(path.parent)
    if path.exists() and path.lstat().st_uid != os.geteuid():
        raise UserError(f"{path}: it belongs to user {path.lstat().st_uid}, not to you")


def _replaceable(folder: Path) -> Path | None:
    """A folder on the way whose entries anybody may rename; /tmp, which is sticky, is none."""
    for one in (folder.absolute(), *folder.absolute().parents):
        try:
            mode = one.stat().st_mode
        except OSError:
            continue
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return one
    return None
