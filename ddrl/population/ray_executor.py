"""Members that are runs on Ray themselves: each segment starts its own learners and actors, and ends them.

This process supervises each such run in a thread. All are on one cluster: the population's own, or that of RAY_ADDRESS.
"""

from __future__ import annotations

import queue
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from ddrl.errors import NonFiniteError
from ddrl.population.display import MemberDisplay, View
from ddrl.population.member import Segment, SegmentOutcome
from ddrl.runtimes.ray.launch import plan
from ddrl.runtimes.ray.supervisor import RayRuntime
from ddrl.training.builder import Builder

POLL_SECONDS = 0.25


class RayExecutor:
    """`ddrl.population.executors.Executor` on learners and actors of Ray."""

    def __init__(self, parallel: int, folder: Path | None, view: View) -> None:
        """`folder` is that of an own cluster."""
        self._parallel = parallel
        self._folder = folder
        self._view = view
        self._supervisors = ThreadPoolExecutor(parallel, thread_name_prefix="member")
        self._busy: dict[Future[Any], tuple[Segment, RayRuntime]] = {}
        self._ended: queue.SimpleQueue[Future[Any]] = queue.SimpleQueue()
        self._interrupted = False

    def has_room(self) -> bool:
        """Return whether another member may train."""
        return len(self._busy) < self._parallel

    def begin(self, segment: Segment) -> None:
        """Start learners and actors, supervised by a thread."""
        builder, directory = Builder(segment.config, torch.device("cpu")), segment.directory
        started = plan(builder, directory, self._folder, [], part=segment, runs_at_once=self._parallel)
        runtime = RayRuntime(started, MemberDisplay(self._view, segment.member))
        directory.mkdir(parents=True, exist_ok=True)  # the learner of rank 0 locks it
        future = self._supervisors.submit(runtime.run)
        self._busy[future] = (segment, runtime)
        future.add_done_callback(self._ended.put)
        if self._interrupted:
            runtime.interrupt()

    def next_ended(self) -> SegmentOutcome | None:
        """Return the outcome of a segment that ends within `POLL_SECONDS`, or None. Raise what its run raised."""
        try:
            future = self._ended.get(timeout=POLL_SECONDS)
        except queue.Empty:
            return None
        segment, _ = self._busy.pop(future)
        try:
            result = future.result()
        except NonFiniteError as error:
            return segment.diverged(error)
        # without an outcome it was interrupted before the learners were built
        return result if isinstance(result, SegmentOutcome) else SegmentOutcome(segment.member, interrupted=True)

    def interrupt(self) -> None:
        """Ask the supervisors to interrupt their learners; may be called in a signal handler."""
        self._interrupted = True
        for _, runtime in list(self._busy.values()):
            runtime.interrupt()

    def close(self) -> None:
        """Interrupt the members that still train, which happens after an error of another one, and wait for them."""
        self.interrupt()
        self._supervisors.shutdown()
