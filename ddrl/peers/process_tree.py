"""The CPU time and the memory of a process and of all that it has started."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Self

import psutil

POLL_SECONDS = 0.2


class ProcessTree:
    """Watches a process and its descendants in a thread, until the block ends."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._cpu: dict[tuple[int, float], float] = {}
        self._members: dict[tuple[int, float], psutil.Process] = {}
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="process tree", daemon=True)
        self.peak_mib = 0.0
        """The largest sum of memory seen; what processes share counts once (proportional set sizes)."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of all processes so far, also of those that have ended.

        What a process used after it was last looked at, `POLL_SECONDS` before its end at most, is missing.
        """
        self._look()
        return sum(self._cpu.values())

    def kill(self) -> None:
        """End all processes that were ever seen in the tree."""
        self._look()
        for process in self._members.values():
            with suppress(psutil.Error):
                process.kill()

    def _watch(self) -> None:
        while not self._stop.wait(POLL_SECONDS):
            self._look(memory=True)

    def _look(self, *, memory: bool = False) -> None:
        """Read the times, and with `memory` the sizes, of all processes of the tree."""
        with self._lock:
            with suppress(psutil.Error):
                for process in (self._root, *self._root.children(recursive=True)):
                    self._members.setdefault((process.pid, process.create_time()), process)
            total = 0.0
            for key, process in self._members.items():
                with suppress(psutil.Error):
                    with process.oneshot():
                        if not process.is_running():
                            continue
                        times = process.cpu_times()
                        self._cpu[key] = times.user + times.system
                    if memory:
                        total += process.memory_full_info().pss
            self.peak_mib = max(self.peak_mib, total / 2**20)
