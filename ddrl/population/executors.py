"""Executors train segments: one after the other in this process, or several at once in processes of Ray.

`ddrl.population.process_executor` has a process for each member that trains at once, `ddrl.population.ray_executor`
processes for the learners and actors of each.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Protocol

import torch

from ddrl.population.display import MemberDisplay, View
from ddrl.population.member import Segment, SegmentOutcome, train_locally
from ddrl.runtimes.ray.cluster import cluster
from ddrl.runtimes.ray.launch import num_cpus, object_store_bytes
from ddrl.system.signals import StopRequest
from ddrl.training.builder import Builder
from ddrl.training.config.run_config import RunConfig

PROCESSES_BYTES = 128 * 2**20
"""Enough shared memory for what members in a process each send: numbers, no tensors."""


class Executor(Protocol):
    """Trains segments, and returns their outcomes in the order in which they end; one thread calls its methods."""

    def has_room(self) -> bool:
        """Return whether `begin` may be called."""

    def begin(self, segment: Segment) -> None:
        """Begin a segment."""

    def next_ended(self) -> SegmentOutcome | None:
        """Return the next outcome, or None if there is none yet. Raise what a member raised."""

    def interrupt(self) -> None:
        """End all segments early, with checkpoints; may be called in a signal handler."""


class SerialExecutor:
    """Trains members in turn, in this process."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._segment: Segment | None = None
        self._request = StopRequest()
        self.interrupt = self._request.ask

    def has_room(self) -> bool:
        """Return whether no segment was begun."""
        return self._segment is None

    def begin(self, segment: Segment) -> None:
        """Keep a segment, which `next_ended` trains."""
        self._segment = segment

    def next_ended(self) -> SegmentOutcome:
        """Train the segment that was begun."""
        assert self._segment is not None
        outcome = train_locally(self._segment, MemberDisplay(self._view, self._segment.member), self._request)
        self._segment = None
        return outcome


@contextmanager
def executor_on_ray(config: RunConfig, view: View) -> Iterator[Executor]:
    """Make room for as many members as train at once, on a cluster of their own or the one of RAY_ADDRESS.

    At the end, wait until the runs on Ray have saved and stopped, or end the processes of the members.
    """
    assert config.population is not None
    parallel, topology = config.population.parallel, config.topology
    if topology.runtime == "ray":
        cpus, memory = num_cpus(config), parallel * object_store_bytes(Builder(config, torch.device("cpu")))
    else:
        cpus = 1 if topology.runtime == "serial" else topology.num_actors + topology.learner_threads
        memory = PROCESSES_BYTES
    with cluster(num_cpus=parallel * cpus, object_store_bytes=memory) as folder:
        # These import Ray, which reads what `cluster` has set.
        from ddrl.population.process_executor import ProcessExecutor
        from ddrl.population.ray_executor import RayExecutor

        members: RayExecutor | ProcessExecutor
        if topology.runtime == "ray":
            members = RayExecutor(parallel, folder, view)
        else:
            members = ProcessExecutor(config.device, parallel, cpus, view)
        with closing(members):
            yield members
