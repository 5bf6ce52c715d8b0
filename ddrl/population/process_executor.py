"""Members that train at once with runtime serial or threads: each in a process of Ray on this machine.

The processes are bound to the supervisor's node, since they write the run directory. GPUs are shared among them. A
process that dies is replaced, and its segment continues from the member's newest checkpoint.
"""

from __future__ import annotations

import math
import os
import time
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from ddrl.coordinator.program import STOPPING_SECONDS
from ddrl.coordinator.restarts import RestartPolicy, gives_up
from ddrl.errors import UserError
from ddrl.population.display import MemberDisplay, View
from ddrl.population.member import Segment, SegmentOutcome, train_locally
from ddrl.runtimes.ray.cluster import Pulse, gone_error, last_words, what_is_gone
from ddrl.runtimes.ray.errors import cause_of, first_line, plain
from ddrl.runtimes.ray.placement import on_this_node, resources_here
from ddrl.runtimes.ray.serialization import prepare_process
from ddrl.system.allocator import keep_freed_memory
from ddrl.system.calls import watched
from ddrl.system.signals import StopRequest
from ddrl.training.records import checkpoint
from ddrl.training.records.display import Relay
from ddrl.training.records.recorder import Counts

POLL_SECONDS = 0.25


class MemberProcess:
    """A process that trains segments; several threads call its methods at once."""

    def __init__(self) -> None:
        prepare_process()
        keep_freed_memory()
        self._request = StopRequest()
        self._relay = Relay()

    def pid(self) -> int:
        """Return the id of the process."""
        return os.getpid()

    def train(self, segment: Segment) -> SegmentOutcome:
        """Train one segment."""
        self._relay.counts = None  # not those of the member before
        with watched(self._relay.note):
            return train_locally(segment, self._relay, self._request)

    def interrupt(self) -> None:
        """End the present segment and later ones early, with a checkpoint."""
        self._request.ask()

    def status(self) -> tuple[Counts | None, list[str]]:
        """Return the member's counts (None before its first update), and the lines for the user since the last call."""
        return self._relay.counts, self._relay.take_notes()


def _gpus(device: str, parallel: int, cpus: int) -> float:
    """Return the GPUs of one member: a fraction if members share one. Raise UserError if the node has too few CPUs."""
    here = resources_here()
    if here.get("CPU", 0) < parallel * cpus:
        raise UserError(
            f"this node of the Ray cluster has {here.get('CPU', 0):.0f} CPUs; {parallel} members at once need "
            f"{parallel} x {cpus} (keys population.parallel, topology.num_actors, topology.learner_threads)"
        )
    gpus = 0 if device == "cpu" else int(here.get("GPU", 0))
    return 1.0 / math.ceil(parallel / gpus) if gpus else 0.0


class ProcessExecutor:
    """`ddrl.population.executors.Executor` on processes of Ray."""

    def __init__(self, device: str, parallel: int, cpus: int, view: View) -> None:
        """Start processes for as many members as train at once, each with so many CPUs. Raise as `_gpus` does."""
        self._view = view
        remote: Any = ray.remote  # Ray's own stubs know no concurrency
        self._member_process = remote(
            num_cpus=cpus,
            num_gpus=_gpus(device, parallel, cpus),
            max_concurrency=4,
            scheduling_strategy=on_this_node(),
        )(MemberProcess)
        self._free: list[Any] = [self._member_process.remote() for _ in range(parallel)]
        self._busy: dict[Any, tuple[Any, Segment, Any]] = {}
        """Reference to an outcome -> process, segment, reference to the id of the process."""
        self._policy = RestartPolicy()
        self._interrupt_asked = False
        self._interrupt_told: float | None = None
        self._pulse = Pulse()

    def has_room(self) -> bool:
        """Return whether a process is free."""
        return bool(self._free)

    def begin(self, segment: Segment) -> None:
        """Begin a segment in a free process."""
        self._begin_in(self._free.pop(), segment)

    def _begin_in(self, process: Any, segment: Segment) -> None:
        self._busy[process.train.remote(segment)] = (process, segment, process.pid.remote())

    def interrupt(self) -> None:
        """Let `next_ended` interrupt the processes: a signal handler must not call Ray."""
        self._interrupt_asked = True

    def next_ended(self) -> SegmentOutcome | None:
        """Return the outcome of a segment that ends within `POLL_SECONDS`, or None; replace a process that died."""
        if self._interrupt_asked and self._interrupt_told is None:
            self._interrupt_told = time.monotonic()
            for process, _, _ in self._busy.values():
                process.interrupt.remote()
        ended, _ = ray.wait(list(self._busy), num_returns=1, timeout=POLL_SECONDS)
        self._look()
        if what := self._pulse.gone():
            raise gone_error(what, "the same command goes on with all members")
        if not ended:
            return self._give_up()
        process, segment, pid = self._busy.pop(ended[0])
        try:
            outcome: SegmentOutcome = ray.get(ended[0])
        except RayTaskError as error:
            raise cause_of(error, self._view.complain) from None
        except RayError as error:
            return self._replace(process, segment, pid, error)
        self._free.append(process)
        return outcome

    def _give_up(self) -> SegmentOutcome | None:
        """Kill a member that has not stopped in time after an interrupt; return None if there is still time."""
        if self._interrupt_told is None or time.monotonic() - self._interrupt_told < STOPPING_SECONDS:
            return None
        process, segment, _ = self._busy.pop(next(iter(self._busy)))
        ray.kill(process, no_restart=True)
        late = f"has not stopped within {STOPPING_SECONDS:.0f} s, and is given up"
        self._view.complain(f"member {segment.member}: {late}")
        return SegmentOutcome(segment.member, interrupted=True)

    def _replace(self, process: Any, segment: Segment, pid: Any, error: Exception) -> SegmentOutcome | None:
        """Continue a segment whose process died in a new one. Raise UserError if too many died without a checkpoint."""
        if what := what_is_gone():
            raise gone_error(what, "the same command goes on with all members")
        member, checkpoints = segment.member, segment.directory / "checkpoints"
        newest = checkpoint.newest_number(checkpoints)
        deaths = self._policy.died(member, (segment.number, newest))
        self._view.complain(f"{last_words([pid])}\n{plain(error)}".strip())
        died = f"member {member}: its process died"
        reason = first_line(error)
        if gives_up(deaths):
            raise UserError(f"{died} {deaths} times in a row without a checkpoint ({reason})")
        ray.kill(process, no_restart=True)
        if self._interrupt_asked:
            self._view.note(f"{died} ({reason}) while the population was stopping")
            return SegmentOutcome(member, interrupted=True)
        going = "goes on from its newest checkpoint" if newest >= 0 else "has no checkpoint yet, and begins anew"
        self._view.note(f"{died} ({reason}); it {going}")
        self._begin_in(self._member_process.remote(), segment)
        return None

    def _look(self) -> None:
        """Show how far the members are that answer within `POLL_SECONDS`."""
        asked = {process.status.remote(): segment.member for process, segment, _ in self._busy.values()}
        answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=POLL_SECONDS) if asked else ([], [])
        for reference in answered:
            try:
                counts, notes = ray.get(reference)
            except RayError:  # `next_ended` replaces it
                continue
            display = MemberDisplay(self._view, asked[reference])
            if counts is not None:
                display.show(counts, {})
            for line in notes:
                display.note(line)

    def close(self) -> None:
        """End all processes."""
        for process in [*self._free, *(process for process, _, _ in self._busy.values())]:
            ray.kill(process, no_restart=True)
