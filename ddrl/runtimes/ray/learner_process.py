"""The processes of runtime `ray` that learn, with store and parameters; actors reach them by messages.

A message waits while the queue is full and then at the schedule's gate. Unrolls and parameters travel as NumPy arrays
through the object store: written there once, read in place. The learner's only copy is the one that makes a batch of
several unrolls.

Ray imports this file in actors too, where a learner's handle arrives: it needs torch for what learners do, not before.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import psutil
import ray

from ddrl.errors import Closed
from ddrl.runtimes.ray import rendezvous as meetings
from ddrl.runtimes.ray.messages import NOTHING_ELSEWHERE, Beside, Elsewhere, Episodes, Reply, Status
from ddrl.runtimes.ray.rendezvous import Meeting, Met
from ddrl.runtimes.ray.serialization import from_arrays, prepare_process
from ddrl.types import Begun, Episode, Experience, Gradients

if TYPE_CHECKING:
    import torch

    from ddrl.coordinator.shared_parameters import LiveParameters
    from ddrl.coordinator.traffic import Traffic
    from ddrl.interfaces import Queue
    from ddrl.runtimes.ray.learner_ranks import LearnerRank
    from ddrl.training.run import Run


SHARDS = -1
"""The worker whose CPU seconds are theirs, beside the actors'."""


Forward = Callable[[Episode], None]
MakeLearner = Callable[[int, Met | None, Beside, Forward], "LearnerRank"]
"""(rank, where ranks have met or None, processes beside it, what sends an episode to rank 0) -> the learner."""


class LearnerProcess:
    """One learner's process. Methods run in groups of threads, so that waiting actors hold up nobody else."""

    def __init__(self, rank: int, num_actors: int, make: MakeLearner) -> None:
        prepare_process()
        self._rank = rank
        self._make = make
        self._met: Met | None = None
        self._lead: Any = None
        self._side: LearnerRank | None = None
        self._ready = threading.Event()
        self._lock = threading.Lock()
        self._shared: tuple[int, Any] | None = None
        self._restarts = [-1] * num_actors
        self._delivered = [0] * num_actors
        self._begun: dict[tuple[int, int], Begun] = {}

    def pid(self) -> int:
        """Return the process's number."""
        return os.getpid()

    def open_meeting(self, folder: Path | None) -> Meeting:
        """Return where the ranks meet; called on rank 0, if there are several. `folder`: an own cluster's."""
        if folder:
            return meetings.open_in(folder)
        meeting, self._met = meetings.open_at(_own_address())
        return meeting

    def build(self, meeting: Meeting | None, lead: Any, beside: Beside) -> None:
        """Build the learner. `lead` is the process of rank 0, which records the episodes of all."""
        if meeting is not None:
            sum_over(_own_address() if meeting.host else "127.0.0.1")
            self._met = self._met or meetings.join(meeting)
        self._lead = lead if self._rank else None
        self._side = self._make(self._rank, self._met, beside, lambda episode: self._record([episode]))

    def resume(self, updates: int | None, actor_restarts: int) -> tuple[int | None, int, int]:
        """Continue from a checkpoint; return its updates, how often the run was continued, and actors' restarts.

        Args:
            updates: those of the checkpoint that rank 0 has chosen; asked of other ranks.
            actor_restarts: as the supervisor knows them, which may be more than the checkpoint's.
        """
        run = self._run
        number = self._built.resume(updates)
        run.actor_restarts = max(run.actor_restarts, actor_restarts)
        self._ready.set()
        return number, run.resumes, run.actor_restarts

    def count_restarts(self, number: int) -> None:
        """Take note of how many actors were replaced so far; called on rank 0."""
        self._run.actor_restarts = number

    def learn(self) -> Any:
        """Train to the end; return what `LearnerRank.train` does."""
        return self._built.train()

    def interrupt(self) -> None:
        """End the training early, with a checkpoint."""
        self._ready.wait()
        self._run.interrupt()

    def status(self) -> Status:
        """Return how far the run is; lines for the user are returned once."""
        return self._built.status(list(self._unrolls))

    def delivered(self, actor: int) -> int:
        """Return how many unrolls an actor has delivered. Unlike `status`, this takes no lines for the user."""
        return self._unrolls[actor]

    @property
    def _unrolls(self) -> list[int]:
        serving = self._run.serving
        return self._delivered if serving is None else serving.delivered

    @ray.method(concurrency_group="exchange")
    def address(self) -> tuple[str, str | None]:
        """Return the address of the inference service, and its token; wait until it is open."""
        assert self._run.serving is not None
        return self._run.serving.address()

    @ray.method(concurrency_group="exchange")
    def begin(self, actor: int, restart: int) -> int:
        """Take note that an actor's process has started; return the index of the unroll that is expected from it."""
        self._ready.wait()
        with self._lock:
            self._restarts[actor] = restart
            for lost in [who for who in self._begun if who[0] == actor]:
                del self._begun[lost]
                self._live_parameters.abandon()
            return self._delivered[actor]

    @ray.method(concurrency_group="exchange")
    def begin_update(self, actor: int, restart: int) -> Begun | None:
        """Return what shards elsewhere need to know before they apply a gradient; wait while a checkpoint is written.

        None: as of `exchange`, which must follow with the gradient's numbers.
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
        unroll: Any,
        episodes: Episodes,
        known: int,
        unroll_index: int | None,
        cpu_seconds: float,
        elsewhere: Elsewhere = NOTHING_ELSEWHERE,
    ) -> Reply:
        """Insert an unroll (if any), then wait for the parameters that unroll `unroll_index` (if any) may begin with.

        None: the run is over for this actor, or another process has taken its place.
        """
        if self._restarts[actor] != restart:
            return None
        try:
            if episodes:
                self._record(episodes)
            if unroll is not None:
                self._take(actor, restart, from_arrays(unroll), cpu_seconds, elsewhere.sent)
                self._delivered[actor] += 1
            elif unroll_index is not None:  # those before it went to a replay elsewhere
                self._delivered[actor] = unroll_index
            if elsewhere.cpu_seconds:
                self._traffic.sent(elsewhere.received)
                self._traffic.received(SHARDS, 0, 0, elsewhere.cpu_seconds)
            if unroll_index is None:
                return known, None
            version, tensors, _ = self._run.params.acquire(unroll_index)
        except Closed:
            return None
        if version == known or not tensors:
            return version, None
        self._traffic.sent(sum(tensor.nbytes for tensor in tensors))
        return version, self._share(version, tensors)

    @ray.method(concurrency_group="exchange")
    def record_episodes(self, episodes: Episodes) -> None:
        """Record the episodes of actors of another rank."""
        self._ready.wait()
        self._record(episodes)

    @ray.method(concurrency_group="exchange")
    def tell(self, line: str) -> None:
        """Tell the user of something that happened at an actor."""
        if self._lead is None:
            self._built.note(line)
        else:
            self._lead.tell.remote(line)

    def _take(self, actor: int, restart: int, sent: Any, cpu_seconds: float, sent_elsewhere: int) -> None:
        """Take an unroll, what is for a replay, or a gradient, which shards elsewhere may have applied already."""
        if isinstance(sent, Gradients):
            with self._lock:
                begun = self._begun.pop((actor, restart), None)
            if begun or sent.tensors:  # else a new process has taken the actor's place just now
                self._traffic.received(actor, sent.nbytes + sent_elsewhere, sent.steps, cpu_seconds)
            if begun:
                self._live_parameters.finish(sent, begun)
            elif sent.tensors:
                self._live_parameters.apply(sent)
            return
        valid = sent.unroll.valid if isinstance(sent, Experience) else sent.valid
        self._traffic.received(actor, sent.nbytes, valid.numel(), cpu_seconds)
        cast("Queue", self._run.queue).insert(sent)

    @property
    def _built(self) -> LearnerRank:
        assert self._side is not None
        return self._side

    @property
    def _run(self) -> Run:
        return self._built.run

    @property
    def _traffic(self) -> Traffic:
        return self._run.learning.traffic

    @property
    def _live_parameters(self) -> LiveParameters:
        """What gradients are applied to: only an algorithm that moves them has actors which ask for it."""
        return cast("LiveParameters", self._run.params)

    def _record(self, episodes: Episodes) -> None:
        """Record episodes at rank 0."""
        if self._lead is not None:
            self._lead.record_episodes.remote(episodes)
            return
        for episode in episodes:
            self._run.records.episode(episode)

    def _share(self, version: int, tensors: list[torch.Tensor]) -> Any:
        """Return a reference to a version's arrays in the object store, where they are put once."""
        with self._lock:
            if self._shared is None or self._shared[0] != version:
                self._shared = (version, ray.put([tensor.cpu().numpy() for tensor in tensors]))
            return self._shared[1]


def sum_over(address: str) -> None:
    """Make `torch.distributed` use the network interface of this address, unless the environment names another.

    Left to itself gloo takes that of the host's name, which many systems resolve to the loopback device.
    """
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address == address for one in addresses):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", name)


def _own_address() -> str:
    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
