"""Measurements of what crosses the wire between actors and a learner, wherever the network is.

Shards of a parameter server in processes of their own count as the learner: gradients go there instead.
"""

from __future__ import annotations

import threading
from collections import deque

import numpy as np

from ddrl.types import Metrics

KEPT = 10_000
"""The number of newest measurements that are kept; learners of other ranks than 0 are never asked for theirs."""


def recent() -> deque[float]:
    """Return an empty deque that keeps the newest `KEPT` measurements."""
    return deque(maxlen=KEPT)


class Traffic:
    """Bytes, steps and waits, added up over all workers of a learner."""

    def __init__(self, frame_skip: int) -> None:
        self._frame_skip = frame_skip
        self._lock = threading.Lock()
        self._bytes = [0, 0]
        self.agent_steps = 0
        """Steps of all workers, since the beginning."""
        self._frames = 0
        self._waited = recent()
        self.seconds_waited = 0.0
        """Seconds that workers have waited for actions, since the beginning, summed over them."""
        self._cpu: dict[int, float] = {}

    def received(
        self, worker: int, size: int, agent_steps: int, cpu_seconds: float, *, waited: float | None = None
    ) -> None:
        """Count a message of `size` bytes with so many steps, from a worker that has used so many CPU seconds.

        `waited`: seconds until the worker had its actions, if it asked for any.
        """
        with self._lock:
            self._bytes[0] += size
            self.agent_steps += agent_steps
            self._frames += agent_steps * self._frame_skip
            self._cpu[worker] = cpu_seconds
            if waited is not None:
                self._waited.append(waited)
                self.seconds_waited += waited

    def sent(self, size: int) -> None:
        """Count a message of `size` bytes, of actions or of parameters."""
        with self._lock:
            self._bytes[1] += size

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds of all workers, each since its beginning."""
        with self._lock:
            return sum(self._cpu.values())

    def take(self) -> Metrics:
        """Return what was measured since the last call; nothing if no step came.

        Bytes are per environment frame, round trips in milliseconds; `worker_cpu_seconds` is since the beginning.
        """
        with self._lock:
            (received, sent), frames, waited = self._bytes, self._frames, self._waited
            self._bytes, self._frames, self._waited = [0, 0], 0, recent()
            cpu = sum(self._cpu.values())
        if not frames:
            return {}
        metrics = {
            "wire_bytes_per_frame_to_learner": received / frames,
            "wire_bytes_per_frame_from_learner": sent / frames,
            "worker_cpu_seconds": cpu,
        }
        for percent in (50, 99) if waited else ():
            metrics[f"round_trip_ms_p{percent}"] = 1000 * float(np.percentile(waited, percent))
        return metrics
