"""How many files and connections a process may have open: enough for its workers, and some left for its own files."""

from __future__ import annotations

import resource

import psutil

from ddrl.errors import UserError

KEPT_FREE = 64
"""For a process's own files (checkpoints, records, environments), whoever connects."""
WANTED = 8192
"""Many systems allow 1,024 until a process asks for more."""


def make_room(connections: int) -> None:
    """Raise the limit of open files as far as is useful and allowed.

    Raise UserError where so many connections would leave less than `KEPT_FREE` for others.
    """
    needed = psutil.Process().num_fds() + connections + KEPT_FREE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = [limit for limit in (max(needed, WANTED), hard) if limit != resource.RLIM_INFINITY]
    if soft != resource.RLIM_INFINITY and soft < min(allowed):
        soft = min(allowed)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft != resource.RLIM_INFINITY and soft < needed:
        raise UserError(f"this process may have {soft} files open, and its workers need {needed} (ulimit -n)")
