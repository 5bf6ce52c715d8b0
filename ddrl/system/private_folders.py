"""Folders that only this user can enter, for Unix sockets: a socket in one is certainly this user's own."""

from __future__ import annotations

import grp
import os
import pwd
import re
import stat
import tempfile
from pathlib import Path

from ddrl.errors import UserError

LONGEST_SOCKET = 107
"""The longest path, in bytes, that Linux allows for a Unix socket."""
SOCKET = "socket"
"""The file name of a socket that is alone in its folder."""
OTHERS = stat.S_IRWXG | stat.S_IRWXO
_TRIED = ("/tmp", "/var/tmp", "/dev/shm")
"""Parents tried if TMPDIR is too long, or has characters with a meaning in a socket's address."""
_PLAIN = re.compile(r"/[\w./-]*", re.ASCII)


def private_folder(prefix: str) -> Path:
    """Make a new folder whose path is short enough for a socket in it. Raise UserError if there is no place for it."""
    return Path(tempfile.mkdtemp(prefix=prefix, dir=parent_for(LONGEST_SOCKET - len(f"/{prefix}12345678/{SOCKET}"))))


def parent_for(longest: int) -> Path:
    """Return the first suitable directory of TMPDIR and `_TRIED`: private, and with at most `longest` bytes."""
    for parent in (tempfile.gettempdir(), *_TRIED):
        fits = len(os.fsencode(parent)) <= longest and _PLAIN.fullmatch(parent)
        if fits and os.access(parent, os.W_OK | os.X_OK) and not _replaceable(Path(parent)):
            return Path(parent)
    raise UserError(f"TMPDIR: no folder for sockets among {', '.join((tempfile.gettempdir(), *_TRIED))}")


def check_private(folder: Path) -> None:
    """Raise UserError unless a folder is this user's, and only this user can enter or replace it."""
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
    if open_to_others := _replaceable(folder.parent):
        raise UserError(
            f"{folder}: others may put another folder in its place, since they may write to {open_to_others}"
        )


def check_own_socket(path: Path) -> None:
    """Raise UserError if an existing socket is not this user's, or its folder is not private."""
    check_private(path.parent)
    if path.exists() and path.lstat().st_uid != os.geteuid():
        raise UserError(f"{path}: it belongs to user {path.lstat().st_uid}, not to you")


def _replaceable(folder: Path) -> Path | None:
    """Return the first of a folder and its parents whose entries another user may rename, or None.

    Root is trusted, and so is the owner of the root folder (in a container with users of its own). In a sticky folder,
    such as /tmp, other users cannot rename entries.
    """
    trusted = {0, os.geteuid(), Path("/").stat().st_uid}
    for one in (folder.absolute(), *folder.absolute().parents):
        try:
            found = one.stat()
        except OSError:
            continue
        mode = found.st_mode
        by_group = mode & stat.S_IWGRP and not _is_own_group(found.st_gid)
        if found.st_uid not in trusted or ((mode & stat.S_IWOTH or by_group) and not mode & stat.S_ISVTX):
            return one
    return None


def _is_own_group(number: int) -> bool:
    """Return whether a group has no members but this user and root."""
    if number == 0:
        return True
    try:
        group, user = grp.getgrgid(number), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
