"""Members that are runs on Ray themselves, with learners and actors of their own: started for a segment, gone after it.

This process supervises each in a thread, as it does a run on Ray that is alone; one after the other, or several at
once. All are on one cluster: the population's own, or that of RAY_ADDRESS.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ddrl.errors import NonFiniteError
from ddrl.population.display import View
from ddrl.population.executors import MemberDisplay
from ddrl.population.member import Job, Outcome, Segment, diverged, interrupted
from ddrl.runtimes.ray.cluster import cluster
from ddrl.runtimes.ray.launch import num_cpus, plan
from ddrl.runtimes.ray.object_store import object_store_bytes
from ddrl.training.builder import Builder
from ddrl.training.config.run_config import RunConfig
from ddrl.training.records.display import Display

POLL_SECONDS = 0.25


@contextmanager
def ray_executor(config: RunConfig, view: View) -> Iterator[RayExecutor]:
    """Make room for as many members as train at once; on leaving, those that still train have saved and stopped."""
    assert config.population is not None
    parallel = config.population.parallel
    needed = object_store_bytes(Builder(config, torch.device("cpu")))
    with cluster(num_cpus=parallel * num_cpus(config), object_store_bytes=parallel * needed) as folder:
        made = RayExecutor(parallel, folder, view)
        try:
            yield made
        finally:
            made.close()


class RayExecutor:
    """`ddrl.population.executors.Executor` on learners and actors of Ray."""

    def __init__(self, parallel: int, folder: Path | None, view: View) -> None:
        """`folder` is that of an own cluster."""
        self._parallel = parallel
        self._folder = folder
        self._view = view
        self._busy: dict[int, SegmentRun] = {}
        """Member -> its segment."""
        self._ended: queue.SimpleQueue[SegmentRun] = queue.SimpleQueue()
        self._interrupted = False

    def has_room(self) -> bool:
        """Return whether fewer members train than may."""
        return len(self._busy) < self._parallel

    def begin(self, job: Job) -> None:
        """Start learners and actors, supervised by a thread."""
        display = MemberDisplay(self._view, job.member, lambda: len(self._busy))
        segment = SegmentRun(job, self._folder, self._parallel, display)
        if self._interrupted:
            segment.interrupt()
        self._busy[job.member] = segment
        segment.start(self._ended.put)

    def next_ended(self) -> Outcome | None:
        """Return how the first segment ends that does within a moment. Raise what its run does."""
        try:
            segment = self._ended.get(timeout=POLL_SECONDS)
        except queue.Empty:
            return None
        del self._busy[segment.member]
        return segment.result()

    def interrupt(self) -> None:
        """Ask the supervisors, which tell the learners; from a signal handler too."""
        self._interrupted = True
        for segment in list(self._busy.values()):
            segment.interrupt()

    def close(self) -> None:
        """Wait for those that still train, which is after an error of another one: they save and stop."""
        self.interrupt()
        for segment in self._busy.values():
            segment.join()


class SegmentRun:
    """One segment of one member, and the thread that supervises it."""

    def __init__(self, job: Job, folder: Path | None, parallel: int, display: Display) -> None:
        from ddrl.runtimes.ray.supervisor import RayRuntime  # imports Ray, which reads what `cluster` has set

        self._job = job
        self.member = job.member
        builder = Builder(job.config, torch.device("cpu"))
        started = plan(builder, job.directory, folder, [], part=Segment(job), runs_at_once=parallel)
        self._runtime = RayRuntime(started, display)
        self._thread: threading.Thread | None = None
        self._result: Any = None
        self._error: BaseException | None = None

    def start(self, ended: Callable[[SegmentRun], None]) -> None:
        """Supervise in a thread, which calls `ended` when `result` is there."""
        self._job.directory.mkdir(parents=True, exist_ok=True)  # the learner of rank 0 locks it

        def supervise() -> None:
            try:
                self._result = self._runtime.run()
            except BaseException as error:
                self._error = error
            ended(self)

        self._thread = threading.Thread(target=supervise, name=f"member-{self.member}", daemon=True)
        self._thread.start()

    def interrupt(self) -> None:
        """End the segment early, with a checkpoint, also before it has begun."""
        self._runtime.interrupt()

    def join(self) -> None:
        """Wait for the end."""
        if self._thread:
            self._thread.join()

    def result(self) -> Outcome:
        """Return how the segment ended. Raise what ended it, unless its numbers were not finite any more."""
        if isinstance(self._error, NonFiniteError):
            return diverged(self._job, self._error)
        if self._error:
            raise self._error
        if isinstance(self._result, Outcome):
            return self._result
        return interrupted(self._job)  # before a learner could say more
