"""The limit of open files and connections of a process."""

from __future__ import annotations

import resource

import psutil

from ddrl.errors import UserError

KEPT_FREE = 64
"""Descriptors reserved for the process's own files: checkpoints, records, environments."""
WANTED = 8192
"""Many systems allow 1,024 unless a process asks for more."""


def make_room(connections: int) -> None:
    """Increase the limit of open files as far as useful and allowed.

    Raise UserError if the limit is too low for `connections` and `KEPT_FREE` more.
    """
    needed = psutil.Process().num_fds() + connections + KEPT_FREE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = [limit for limit in (max(needed, WANTED), hard) if limit != resource.RLIM_INFINITY]
    if soft != resource.RLIM_INFINITY and soft < min(allowed):
        soft = min(allowed)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft != resource.RLIM_INFINITY and soft < needed:
        raise UserError(f"this process may have {soft} files open, and its workers need {needed} (ulimit -n)")
