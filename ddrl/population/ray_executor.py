"""Members that are runs on Ray themselves, with learners and actors of their own: started for a segment, gone after it.

This process supervises each in a thread, as it does a run on Ray that is alone; one after the other, or several at
once. All are on one cluster: the population's own, or that of RAY_ADDRESS.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
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
from ddrl.training.records.recorder import Counts

POLL_SECONDS = 0.25


@contextmanager
def ray_members(config: RunConfig, view: View) -> Iterator[RayExecutor]:
    """Room for as many members as train at once; on leaving, those that still train have saved and stopped."""
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
    """`ddrl.population.executors.Executor` on learners and actors of Ray; its methods are called by one thread."""

    def __init__(self, parallel: int, folder: Path | None, view: View) -> None:
        """`folder` is that of an own cluster."""
        self._parallel = parallel
        self._folder = folder
        self._view = view
        self._busy: dict[int, SegmentRun] = {}
        """Member -> its turn."""
        self._events: queue.SimpleQueue[Callable[[], Outcome | None]] = queue.SimpleQueue()
        """What the turns' threads leave to this one: to show something, or to end a turn."""
        self._interrupted = False

    def has_room(self) -> bool:
        """Whether fewer train than may."""
        return len(self._busy) < self._parallel

    def begin(self, job: Job) -> None:
        """Starts learners and actors, in a thread."""
        turn = SegmentRun(job, self._folder, self._parallel, partial(self._later, job.member))
        if self._interrupted:
            turn.interrupt()
        self._busy[job.member] = turn
        turn.start(lambda: self._events.put(partial(self._end, turn)))

    def _later(self, member: int, what: str, *about: Any) -> None:
        self._events.put(partial(getattr(self, f"_{what}"), member, *about))

    def _note(self, member: int, line: str) -> None:
        MemberDisplay(self._view, member).note(line)

    def _complain(self, member: int, text: str) -> None:
        self._view.complain(f"member {member}: {text}")

    def _show(self, member: int, status: dict[str, Any]) -> None:
        for line in status["notes"]:
            self._note(member, line)
        self._view.show(member, Counts(*status["counts"]), len(self._busy))

    def _end(self, turn: SegmentRun) -> Outcome:
        del self._busy[turn.member]
        return turn.result()

    def next_ended(self) -> Outcome | None:
        """The first that ends within a moment. Raises what its run does."""
        try:
            event = self._events.get(timeout=POLL_SECONDS)
        except queue.Empty:
            return None
        return event()

    def interrupt(self) -> None:
        """Asks the supervisors, which tell the learners; from a signal handler too."""
        self._interrupted = True
        for turn in list(self._busy.values()):
            turn.interrupt()

    def close(self) -> None:
        """Waits for those that still train, which is after an error of another one: they save and stop."""
        self.interrupt()
        for turn in self._busy.values():
            turn.join()


class SegmentRun:
    """One segment of one member, and the thread that supervises it."""

    def __init__(self, job: Job, folder: Path | None, parallel: int, later: Callable[..., None]) -> None:
        """`later` takes (note, complain or show, what about), from the turn's thread."""
        from ddrl.runtimes.ray.supervisor import RayRuntime  # imports Ray, which reads what `cluster` has set

        self._job = job
        self.member = job.member
        builder = Builder(job.config, torch.device("cpu"))
        self._runtime = RayRuntime(
            plan(builder, job.directory, folder, [], part=Segment(job), runs_at_once=parallel),
            note=partial(later, "note"),
            complain=partial(later, "complain"),
            show=partial(later, "show"),
            accepted=lambda: None,
        )
        self._thread: threading.Thread | None = None
        self._result: Any = None
        self._error: BaseException | None = None

    def start(self, ended: Callable[[], None]) -> None:
        """Calls `ended` from the thread when `result` is there."""
        self._job.directory.mkdir(parents=True, exist_ok=True)  # the learner that leads locks it

        def supervise() -> None:
            try:
                self._result = self._runtime.run()
            except BaseException as error:
                self._error = error
            ended()

        self._thread = threading.Thread(target=supervise, name=f"member-{self.member}", daemon=True)
        self._thread.start()

    def interrupt(self) -> None:
        """Ends the segment early, with a checkpoint, also before it has begun."""
        self._runtime.interrupt()

    def join(self) -> None:
        """Waits for the end."""
        if self._thread:
            self._thread.join()

    def result(self) -> Outcome:
        """How the segment ended. Raises what ended it, unless its numbers were not finite any more."""
        if isinstance(self._error, NonFiniteError):
            return diverged(self._job, self._error)
        if self._error:
            raise self._error
        if isinstance(self._result, Outcome):
            return self._result
        return interrupted(self._job)  # before a learner could say more
