"""The processes of runtime `ray` that learn. Each has a store and parameters, which actors use by messages.

A message waits while the queue is full and then at the schedule's gate. Unrolls and parameters travel through the
object store: written there once, read in place. The learner copies unrolls once, into a batch.

Actors import this file too, to unpickle a learner's handle, so it imports torch for type checking only.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import psutil
import ray

from ddrl.errors import Closed
from ddrl.runtimes.ray import rendezvous as meetings
from ddrl.runtimes.ray.messages import NO_TRAFFIC, Beside, Episodes, Reply, Sent, ShardTraffic, Status
from ddrl.runtimes.ray.rendezvous import Met, Rendezvous
from ddrl.runtimes.ray.serialization import prepare_process
from ddrl.system.calls import watched
from ddrl.types import Begun, Episode, Experience, Gradients

if TYPE_CHECKING:
    import torch

    from ddrl.coordinator.shared_parameters import LiveParameters
    from ddrl.inference.endpoint import Endpoint
    from ddrl.runtimes.ray.launch import MemberSegment
    from ddrl.training.records.display import Relay
    from ddrl.training.run import Run


SHARDS = -1
"""The number under which the CPU seconds of parameter shards are counted, beside those of the actors."""


class BuiltLearner(NamedTuple):
    """A learner of any rank."""

    run: Run
    relay: Relay  # the display of the run
    part: MemberSegment | None  # of the training, which it carries out; None: all of it
    lock: Any  # the file that locks the run directory while this exists; of rank 0


MakeLearner = Callable[[int, Met | None, Beside, Callable[[Episode], None]], BuiltLearner]
"""(rank, rendezvous of the ranks or None, processes beside it, function that sends an episode to rank 0) -> learner."""


class LearnerProcess:
    """The process of one learner. Methods run in groups of threads, so that waiting actors delay no other call."""

    _learner: BuiltLearner  # set by `build`

    def __init__(self, rank: int, num_actors: int, make: MakeLearner) -> None:
        prepare_process()
        self._rank = rank
        self._make = make
        self._met: Met | None = None
        self._rank0: Any = None
        self._ready = threading.Event()
        self._lock = threading.Lock()
        self._shared: tuple[int, Any] | None = None
        self._restarts = [-1] * num_actors
        self._delivered = [0] * num_actors
        self._begun: dict[tuple[int, int], Begun] = {}

    def pid(self) -> int:
        """Return the process ID."""
        return os.getpid()

    def open_meeting(self, folder: Path | None) -> Rendezvous:
        """Return where several ranks meet; called on rank 0. `folder` is that of an own cluster."""
        if folder:
            return meetings.open_in(folder)
        meeting, self._met = meetings.open_at(_own_address())
        return meeting

    def build(self, meeting: Rendezvous | None, rank0: Any, beside: Beside) -> None:
        """Build the learner. `rank0` is the process of rank 0, which records the episodes of all ranks."""
        if meeting is not None:
            sum_over(_own_address() if meeting.host else "127.0.0.1")
            self._met = self._met or meetings.join(meeting)
        self._rank0 = rank0 if self._rank else None
        self._learner = self._make(self._rank, self._met, beside, lambda episode: self._record([episode]))

    def resume(self, updates: int | None, actor_restarts: int) -> tuple[int | None, int, int]:
        """Continue from the checkpoint with `updates`; on rank 0 from the newest that all ranks have, or anew.

        `actor_restarts` may be more than the checkpoint's. Return updates (None: anew), resumes and actor restarts.
        """
        run, part = self._run, self._learner.part
        if part:
            updates = part.resume(run, self._learner.relay.note, updates)
        elif not run.rank:
            updates = run.resume()
        elif updates is not None:
            run.resume_at(updates)
        run.actor_restarts = max(run.actor_restarts, actor_restarts)
        self._ready.set()
        return updates, run.resumes, run.actor_restarts

    def count_restarts(self, number: int) -> None:
        """Set how many actors were replaced so far; called on rank 0."""
        self._run.actor_restarts = number

    def learn(self) -> Any:
        """Train to the end of the run or of the part; return the exit reason, or what `Part.train` returns."""
        run, part = self._run, self._learner.part
        with watched(run.records.note):
            return part.train(run) if part else run.train()

    def interrupt(self) -> None:
        """End the training early, with a checkpoint."""
        self._ready.wait()
        self._run.interrupt()

    def status(self) -> Status:
        """Return the progress of the run. Each line for the user is returned once."""
        node, relay = self._run.node, self._learner.relay
        return Status(
            counts=node.counts,
            latest=relay.latest,
            notes=relay.take_notes(),
            insert_waited=node.queue.insert_waited,
            pull_waited=node.params.pull_waited,
            sample_waited=node.queue.sample_waited,
            environments_waited=node.environments_waited,
            delivered=list(self._unrolls),
        )

    def delivered(self, actor: int) -> int:
        """Return how many unrolls an actor has delivered. Unlike `status`, this takes no lines for the user."""
        return self._unrolls[actor]

    @property
    def _unrolls(self) -> list[int]:
        remote = self._run.remote
        return self._delivered if remote is None else remote.delivered

    @ray.method(concurrency_group="exchange")
    def endpoint(self) -> Endpoint:
        """Return where the inference service listens; wait until it is open."""
        assert self._run.remote is not None
        return self._run.remote.endpoint()

    @ray.method(concurrency_group="exchange")
    def begin(self, actor: int, restart: int) -> int:
        """Register a new process of an actor; return the index of the unroll that is expected from it."""
        self._ready.wait()
        with self._lock:
            if self._begun.pop((actor, self._restarts[actor]), None):
                self._live_parameters.abandon()
            self._restarts[actor] = restart
            return self._delivered[actor]

    @ray.method(concurrency_group="exchange")
    def begin_update(self, actor: int, restart: int) -> Begun | None:
        """Begin an update that shards in other processes apply; wait while a checkpoint is written.

        `exchange` must follow with the gradient's numbers. Return None in the same cases as `exchange`.
        """
        if self._restarts[actor] != restart:
            return None
        try:
            begun = self._live_parameters.begin()
        except Closed:
            return None
        with self._lock:
            if self._restarts[actor] == restart:
                self._begun[actor, restart] = begun
                return begun
        self._live_parameters.abandon()
        return None

    @ray.method(concurrency_group="exchange")
    def exchange(
        self,
        actor: int,
        restart: int,
        unroll: Sent | None,
        episodes: Episodes,
        known: int,
        unroll_index: int | None,
        cpu_seconds: float,
        shard_traffic: ShardTraffic = NO_TRAFFIC,
    ) -> Reply:
        """Insert an unroll (if any), then wait for the parameters that unroll `unroll_index` (if any) may begin with.

        Return None where the run is over for this actor, or another process has taken its place.
        """
        if self._restarts[actor] != restart:
            return None
        try:
            if episodes:
                self._record(episodes)
            if unroll is not None:
                self._take(actor, restart, unroll, cpu_seconds, shard_traffic.sent)
                self._delivered[actor] += 1
            elif unroll_index is not None:  # the unrolls before it went to a replay process
                self._delivered[actor] = unroll_index
            if shard_traffic.cpu_seconds:
                self._run.node.traffic.sent(shard_traffic.received)
                self._run.node.traffic.received(SHARDS, 0, 0, shard_traffic.cpu_seconds)
            if unroll_index is None:
                return known, None
            version, tensors, _ = self._run.params.acquire(unroll_index)
        except Closed:
            return None
        if version == known or not tensors:
            return version, None
        self._run.node.traffic.sent(sum(tensor.nbytes for tensor in tensors))
        return version, self._share(version, tensors)

    @ray.method(concurrency_group="exchange")
    def record_episodes(self, episodes: Episodes) -> None:
        """Record the episodes of actors of another rank; called on rank 0."""
        self._ready.wait()
        self._record(episodes)

    @ray.method(concurrency_group="exchange")
    def tell(self, line: str) -> None:
        """Tell the user of something that happened at an actor."""
        if self._rank0 is None:
            self._learner.relay.note(line)
        else:
            self._rank0.tell.remote(line)

    def _take(self, actor: int, restart: int, sent: Sent, cpu_seconds: float, sent_to_shards: int) -> None:
        """Take an unroll, a replay's experience, or a gradient, which other processes' shards may have applied."""
        if isinstance(sent, Gradients):
            with self._lock:
                begun = self._begun.pop((actor, restart), None)
            if begun or sent.tensors:  # else a new process has taken the actor's place just now
                self._run.node.traffic.received(actor, sent.nbytes + sent_to_shards, sent.steps, cpu_seconds)
            if begun:
                self._live_parameters.finish(sent, begun)
            elif sent.tensors:
                self._live_parameters.apply(sent)
            return
        valid = sent.unroll.valid if isinstance(sent, Experience) else sent.valid
        self._run.node.traffic.received(actor, sent.nbytes, valid.numel(), cpu_seconds)
        cast(Any, self._run.queue).insert(sent)

    @property
    def _run(self) -> Run:
        return self._learner.run

    @property
    def _live_parameters(self) -> LiveParameters:
        """The parameters that gradients are applied to; used only with algorithms whose actors send gradients."""
        return cast("LiveParameters", self._run.params)

    def _record(self, episodes: Episodes) -> None:
        """Record episodes at rank 0."""
        if self._rank0 is not None:
            self._rank0.record_episodes.remote(episodes)
            return
        for episode in episodes:
            self._run.records.episode(episode)

    def _share(self, version: int, tensors: list[torch.Tensor]) -> Any:
        """Put the tensors of a version into the object store, once; return the reference."""
        with self._lock:
            if self._shared is None or self._shared[0] != version:
                self._shared = (version, ray.put(tensors))
            return self._shared[1]


def sum_over(address: str) -> None:
    """Make `torch.distributed` use the network interface of this address, unless the environment names another.

    By default gloo takes the one that the host name resolves to, which on many systems is the loopback device.
    """
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address == address for one in addresses):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", name)


def _own_address() -> str:
    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
