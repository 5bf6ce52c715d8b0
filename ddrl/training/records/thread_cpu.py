"""CPU seconds of this process by the role of its threads, which runtime `threads` names after their roles."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import psutil

from ddrl.types import Metrics

ROLES: Mapping[str, tuple[str, ...]] = {
    "actor": ("actor",),
    "inference": ("inference",),
    "learner": ("learner", "trainer", "prefetch"),
}
"""Role -> prefixes of its threads' names. Threads that share a gradient are named as the learner."""
NATIVE, REST = "environment", "other"
METRICS = tuple(f"{role}_thread_cpu_seconds" for role in (*ROLES, NATIVE, REST))


def cpu_by_role() -> Metrics:
    """Return `METRICS`: CPU seconds since the process began, without threads that have ended.

    Threads that Python did not start count as environments' own, since torch starts none here; environments without
    own threads count as the actor. The rest is the main thread, evaluations and writers.
    """
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    found = dict.fromkeys((*ROLES, NATIVE, REST), 0.0)
    for thread in psutil.Process().threads():
        found[_role(names.get(thread.id))] += thread.user_time + thread.system_time
    return {f"{role}_thread_cpu_seconds": seconds for role, seconds in found.items()}


def _role(name: str | None) -> str:
    if name is None:
        return NATIVE
    return next((role for role, starts in ROLES.items() if name.startswith(starts)), REST)
