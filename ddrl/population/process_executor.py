"""Members that train at once, serial or in threads: processes of Ray on this machine, each with one segment at a time.

They are bound to the node of the supervisor, since they write the run directory. Where there are GPUs they share them.
A process that dies is replaced, and its segment goes on from the member's newest checkpoint.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ddrl.coordinator.program import STOPPING_SECONDS
from ddrl.coordinator.restarts import RestartPolicy, gives_up
from ddrl.errors import UserError
from ddrl.population.display import View
from ddrl.population.executors import MemberDisplay
from ddrl.population.member import Job, LocalSegment, Outcome, interrupted
from ddrl.runtimes.ray.cluster import Pulse, cluster, gone_error, log_tail, what_is_gone
from ddrl.runtimes.ray.errors import first_line, plain, traceback_of
from ddrl.system.calls import watched
from ddrl.training.config.run_config import RunConfig
from ddrl.training.records import checkpoint
from ddrl.training.records.display import Relay
from ddrl.training.records.recorder import Counts

POLL_SECONDS = 0.25
OBJECT_STORE_BYTES = 128 * 2**20
"""Members send numbers, and no tensors."""


class MemberProcess:
    """A process that trains segments; its methods run in threads beside each other."""

    def __init__(self) -> None:
        from ddrl.runtimes.ray.serialization import prepare_process
        from ddrl.system.allocator import keep_freed_memory

        prepare_process()
        keep_freed_memory()
        self._segment: LocalSegment | None = None
        self._interrupted = False
        self._lock = threading.Lock()
        self._relay = Relay()

    def pid(self) -> int:
        """Return the process's number."""
        return os.getpid()

    def train(self, job: Job) -> Outcome:
        """Train one segment."""
        with self._lock:
            self._relay.counts = None  # not those of the member before
            segment = self._segment = LocalSegment(job, self._relay)
            if self._interrupted:
                segment.interrupt()
        with watched(self._relay.note):
            return segment.train()

    def interrupt(self) -> None:
        """End the segment early, with a checkpoint, also one that is yet to come."""
        with self._lock:
            self._interrupted = True
            if self._segment:
                self._segment.interrupt()

    def status(self) -> tuple[Counts | None, list[str]]:
        """Return how far the member is, once it has made an update, and lines for the user since the last call."""
        return self._relay.counts, self._relay.take_notes()


@contextmanager
def process_executor(config: RunConfig, view: View) -> Iterator[ProcessExecutor]:
    """Start processes for as many members as train at once, on a cluster of their own or the one of RAY_ADDRESS."""
    assert config.population is not None
    parallel, cpus = config.population.parallel, _cpus(config)
    with cluster(num_cpus=parallel * cpus, object_store_bytes=OBJECT_STORE_BYTES):
        made = ProcessExecutor(parallel, cpus, _gpus(config, parallel, cpus), view)
        try:
            yield made
        finally:
            made.kill()


def _cpus(config: RunConfig) -> int:
    """Return the slots of one member."""
    topology = config.topology
    return 1 if topology.runtime == "serial" else topology.num_actors + topology.learner_threads


def _gpus(config: RunConfig, parallel: int, cpus: int) -> float:
    """Return the GPUs of one member: a fraction where several share one. Raise UserError where there is no room."""
    import ray

    own = ray.get_runtime_context().get_node_id()
    (here,) = (node["Resources"] for node in ray.nodes() if node["NodeID"] == own)  # type: ignore[no-untyped-call]
    if here.get("CPU", 0) < parallel * cpus:
        raise UserError(
            f"this node of the Ray cluster has {here.get('CPU', 0):.0f} CPUs; {parallel} members at once need "
            f"{parallel} x {cpus} (keys population.parallel, topology.num_actors, topology.learner_threads)"
        )
    gpus = 0 if config.device == "cpu" else int(here.get("GPU", 0))
    return 1.0 / math.ceil(parallel / gpus) if gpus else 0.0


class ProcessExecutor:
    """`ddrl.population.executors.Executor` on processes of Ray."""

    def __init__(self, parallel: int, cpus: int, gpus: float, view: View) -> None:
        import ray

        from ddrl.runtimes.ray.placement import on_this_node

        self._view = view
        remote: Any = ray.remote  # Ray's own stubs know no concurrency
        options = {"num_cpus": cpus, "num_gpus": gpus, "max_concurrency": 4, "scheduling_strategy": on_this_node()}
        self._member_process = remote(**options)(MemberProcess)
        self._free: list[Any] = [self._member_process.remote() for _ in range(parallel)]
        self._busy: dict[Any, tuple[Any, Job, Any]] = {}
        """Reference to an outcome -> process, job, reference to the process's number."""
        self._policy = RestartPolicy()
        self._interrupt_asked = False
        self._interrupt_told: float | None = None
        self._pulse = Pulse()

    def has_room(self) -> bool:
        """Return whether a process is free."""
        return bool(self._free)

    def begin(self, job: Job) -> None:
        """Begin a segment in a free process."""
        self._set_to_work(self._free.pop(), job)

    def _set_to_work(self, process: Any, job: Job) -> None:
        self._busy[process.train.remote(job)] = (process, job, process.pid.remote())

    def interrupt(self) -> None:
        """Have `next_ended` tell the processes: a signal handler may not talk to Ray."""
        self._interrupt_asked = True

    def next_ended(self) -> Outcome | None:
        """Return how the first segment ends that does within a moment; replace a process that died."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        if self._interrupt_asked and self._interrupt_told is None:
            self._interrupt_told = time.monotonic()
            for process, _, _ in self._busy.values():
                process.interrupt.remote()
        ended, _ = ray.wait(list(self._busy), num_returns=1, timeout=POLL_SECONDS)
        self._look()
        if what := self._pulse.gone():
            raise gone_error(what, "members go on from their newest checkpoints")
        if not ended:
            return self._without_waiting()
        process, job, pid = self._busy.pop(ended[0])
        try:
            outcome: Outcome = ray.get(ended[0])
        except RayTaskError as error:
            cause = error.cause
            if not isinstance(cause, UserError) or cause.is_crash:
                self._view.complain(traceback_of(error))
            raise cause from None
        except RayError as error:
            return self._replace(process, job, pid, error)
        self._free.append(process)
        return outcome

    def _without_waiting(self) -> Outcome | None:
        """Give up a member that does not stop; return None while it may."""
        import ray

        if self._interrupt_told is None or time.monotonic() - self._interrupt_told < STOPPING_SECONDS:
            return None
        process, job, _ = self._busy.pop(next(iter(self._busy)))
        ray.kill(process, no_restart=True)
        self._view.complain(f"member {job.member}: has not stopped within {STOPPING_SECONDS:.0f} s, and is given up")
        return interrupted(job)

    def _replace(self, process: Any, job: Job, pid: Any, error: Exception) -> Outcome | None:
        """Let a segment whose process died go on in a new one. Raise UserError where several died at it."""
        import ray
        from ray.exceptions import RayError

        if what := what_is_gone():
            raise gone_error(what, "members go on from their newest checkpoints")
        deaths = self._policy.died(job.member, (job.segment, checkpoint.newest_number(job.directory / "checkpoints")))
        try:
            words = log_tail(ray.get(pid, timeout=2.0))
        except RayError:  # it died before it said who it is
            words = ""
        self._view.complain(f"{words}\n{plain(error)}".strip())
        reason = first_line(error)
        if gives_up(deaths):
            raise UserError(
                f"member {job.member}: its process died {deaths} times in a row without a checkpoint ({reason})"
            )
        ray.kill(process, no_restart=True)
        if self._interrupt_asked:
            self._view.note(f"member {job.member}: its process died ({reason}) while the population was stopping")
            return interrupted(job)
        self._view.note(f"member {job.member}: its process died ({reason}); it goes on from its newest checkpoint")
        self._set_to_work(self._member_process.remote(), job)
        return None

    def _look(self) -> None:
        """Show how far the members are that answer at once."""
        import ray
        from ray.exceptions import RayError

        asked = {process.status.remote(): job.member for process, job, _ in self._busy.values()}
        answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=POLL_SECONDS) if asked else ([], [])
        for reference in answered:
            try:
                counts, notes = ray.get(reference)
            except RayError:  # `next_ended` finds it
                continue
            display = MemberDisplay(self._view, asked[reference], lambda: len(self._busy))
            if counts is not None:
                display.show(counts, {})
            for line in notes:
                display.note(line)

    def kill(self) -> None:
        """End all processes."""
        import ray

        for process in [*self._free, *(process for process, _, _ in self._busy.values())]:
            ray.kill(process, no_restart=True)
