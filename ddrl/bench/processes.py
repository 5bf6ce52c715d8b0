"""CPU time of this process and of those that it started, such as the games of ViZDoom."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import psutil


def family() -> dict[int, float]:
    """Return CPU seconds of this process and its descendants, by process; those that have ended are not counted."""
    own = psutil.Process()
    return _seconds([own, *own.children(recursive=True)])


def descendants() -> dict[int, float]:
    """Return CPU seconds of the descendants alone, as `family`."""
    return _seconds(psutil.Process().children(recursive=True))


def spent(before: Mapping[int, float], after: Mapping[int, float]) -> float:
    """Return the CPU seconds between two looks, of the processes of the second one."""
    return sum(used - before.get(process, 0.0) for process, used in after.items())


def _seconds(processes: list[psutil.Process]) -> dict[int, float]:
    used: dict[int, float] = {}
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            used[process.pid] = times.user + times.system
    return used
