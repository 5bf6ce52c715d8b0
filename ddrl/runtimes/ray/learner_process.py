"""The processes of runtime `ray` that learn, with store and parameters; actors (`actor_host`) reach them by messages.

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
from typing import TYPE_CHECKING, Any, Protocol

import psutil
import ray

from ddrl.coordinator.traffic import Traffic
from ddrl.errors import Closed
from ddrl.runtimes.ray import rendezvous as meetings
from ddrl.runtimes.ray.messages import NOTHING_ELSEWHERE, Beside, Elsewhere, Episodes, Reply
from ddrl.runtimes.ray.rendezvous import Meeting, Met
from ddrl.runtimes.ray.serialization import from_arrays, prepare_process
from ddrl.types import Begun, Experience, Gradients

if TYPE_CHECKING:
    import torch

    from ddrl.coordinator.parameter_server import ParameterServer


SHARDS = -1
"""The worker whose CPU seconds are theirs, beside the actors'."""


class LearnerSide(Protocol):
    """What one learner's process is made of, joined by `ddrl.runtimes.ray.launch`."""

    actor_restarts: int
    """Actors that died and were replaced, over all resumes."""

    @property
    def params(self) -> ParameterServer:
        """What actors pull."""

    @property
    def queue(self) -> Any:
        """What actors fill: a `ddrl.interfaces.Queue` or a `Replay`."""

    @property
    def traffic(self) -> Traffic:
        """Told of what actors send and get."""

    def resume(self, updates: int | None) -> int | None:
        """Continues from a checkpoint and returns its number; None: from the beginning.

        Rank 0 finds the newest one, the others take the one with `updates`.
        """

    @property
    def resumes(self) -> int:
        """How often the run was continued from a checkpoint."""

    def train(self) -> Any:
        """Trains to the end and returns the exit reason, or what else the supervisor is to know."""

    def interrupt(self) -> None:
        """Ends the training early, with a checkpoint."""

    @property
    def serving(self) -> Serves | None:
        """The actors, where inference is central: they are on the learner, their environments elsewhere."""

    def tell_of_episodes(self, tell: Callable[[Episodes], None]) -> None:
        """Where to tell of the episodes of actors that are on this learner, if it does not record them itself."""

    def record_episodes(self, episodes: Episodes) -> None:
        """Returns and lengths of training episodes that ended."""

    def note(self, line: str) -> None:
        """A line for the user; asked of rank 0."""

    def status(self) -> dict[str, Any]:
        """Plain numbers and texts for the supervisor; `updates` is one of them."""


class Serves(Protocol):
    """An inference service and its actors."""

    @property
    def delivered(self) -> list[int]:
        """Unrolls of each actor so far."""

    def address(self) -> tuple[str, str | None]:
        """Where environment workers connect, and their token; waits until the service is open."""


MakeLearner = Callable[[int, Met | None, Beside], LearnerSide]
"""(rank, where ranks have met; None for a single one, hosts of what else has processes of its own) -> its side."""


class LearnerProcess:
    """One learner's process. Methods run in groups of threads, so that waiting actors hold up nobody else."""

    def __init__(self, rank: int, num_actors: int, make: MakeLearner) -> None:
        prepare_process()
        self._rank = rank
        self._make = make
        self._met: Met | None = None
        self._lead: Any = None
        self._side: LearnerSide | None = None
        self._ready = threading.Event()
        self._lock = threading.Lock()
        self._shared: tuple[int, Any] | None = None
        self._restarts = [-1] * num_actors
        self._delivered = [0] * num_actors
        self._begun: dict[tuple[int, int], Begun] = {}

    def pid(self) -> int:
        """Of the process."""
        return os.getpid()

    def open_meeting(self, folder: Path | None) -> Meeting:
        """Where the ranks meet; called on rank 0, if there are several. `folder`: an own cluster's."""
        if folder:
            return meetings.open_in(folder)
        meeting, self._met = meetings.open_at(_own_address())
        return meeting

    def build(self, meeting: Meeting | None, lead: Any, beside: Beside) -> None:
        """Builds this learner's side. `lead` is the host of rank 0, which records the episodes of all."""
        if meeting is not None:
            sum_over(_own_address() if meeting.host else "127.0.0.1")
            self._met = self._met or meetings.join(meeting)
        self._side = self._make(self._rank, self._met, beside)
        self._lead = lead if self._rank else None
        self._side.tell_of_episodes(self._record)

    def resume(self, updates: int | None, actor_restarts: int) -> tuple[int | None, int, int]:
        """Continues from a checkpoint; returns its number, how often the run was continued, and actors' restarts.

        The supervisor may know of more restarts than the checkpoint, if not of those before it was started.
        """
        side = self._built
        number = side.resume(updates)
        side.actor_restarts = max(side.actor_restarts, actor_restarts)
        self._ready.set()
        return number, side.resumes, side.actor_restarts

    def count_restarts(self, number: int) -> None:
        """Actors replaced so far; called on rank 0."""
        self._built.actor_restarts = number

    def learn(self) -> Any:
        """Trains to the end; returns what `LearnerSide.train` does."""
        return self._built.train()

    def interrupt(self) -> None:
        """Ends the training early, with a checkpoint."""
        self._ready.wait()
        self._built.interrupt()

    def status(self) -> dict[str, Any]:
        """The side's own, and how many unrolls each of the actors has delivered."""
        return self._built.status() | {"delivered": list(self._unrolls)}

    def delivered(self, actor: int) -> int:
        """Unrolls of one actor. Unlike `status`, it takes no notes that are meant for the user."""
        return self._unrolls[actor]

    @property
    def _unrolls(self) -> list[int]:
        serving = self._built.serving
        return self._delivered if serving is None else serving.delivered

    @ray.method(concurrency_group="exchange")
    def address(self) -> tuple[str, str | None]:
        """Of the inference service, and its token; waits until it is open."""
        assert self._built.serving is not None
        return self._built.serving.address()

    @ray.method(concurrency_group="exchange")
    def begin(self, actor: int, restart: int) -> int:
        """An actor's process has started; returns the index of its first unroll, which is the next one expected."""
        self._ready.wait()
        with self._lock:
            self._restarts[actor] = restart
            for lost in [who for who in self._begun if who[0] == actor]:
                del self._begun[lost]
                self._built.queue.abandon()
            return self._delivered[actor]

    @ray.method(concurrency_group="exchange")
    def begin_update(self, actor: int, restart: int) -> Begun | None:
        """What shards elsewhere need to know before they apply a gradient; waits while a checkpoint is written.

        None: as `exchange`. That must follow with the gradient's numbers.
        """
        if self._restarts[actor] != restart:
            return None
        try:
            begun: Begun = self._built.queue.begin()
        except Closed:
            return None
        with self._lock:
            if self._restarts[actor] == restart:
                self._begun[actor, restart] = begun
                return begun
        self._built.queue.abandon()
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
        """Inserts an unroll (if any), then waits for the parameters that unroll `unroll_index` (if any) may begin with.

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
                self._built.traffic.sent(elsewhere.received)
                self._built.traffic.received(SHARDS, 0, 0, elsewhere.cpu_seconds)
            if unroll_index is None:
                return known, None
            version, tensors, _ = self._built.params.acquire(unroll_index)
        except Closed:
            return None
        if version == known or not tensors:
            return version, None
        self._built.traffic.sent(sum(tensor.nbytes for tensor in tensors))
        return version, self._share(version, tensors)

    @ray.method(concurrency_group="exchange")
    def record_episodes(self, episodes: Episodes) -> None:
        """Episodes of the actors of another rank."""
        self._ready.wait()
        self._built.record_episodes(episodes)

    @ray.method(concurrency_group="exchange")
    def tell(self, line: str) -> None:
        """A line for the user, from an actor."""
        if self._lead is None:
            self._built.note(line)
        else:
            self._lead.tell.remote(line)

    def _take(self, actor: int, restart: int, sent: Any, cpu_seconds: float, sent_elsewhere: int) -> None:
        """An unroll, what is for a replay, or a gradient, which shards elsewhere may have applied already."""
        if isinstance(sent, Gradients):
            with self._lock:
                begun = self._begun.pop((actor, restart), None)
            if begun or sent.tensors:  # else a new process has taken the actor's place just now
                self._built.traffic.received(actor, sent.nbytes + sent_elsewhere, sent.steps, cpu_seconds)
            if begun:
                self._built.queue.finish(sent, begun)
            elif sent.tensors:
                self._built.queue.apply(sent)
            return
        valid = sent.unroll.valid if isinstance(sent, Experience) else sent.valid
        self._built.traffic.received(actor, sent.nbytes, valid.numel(), cpu_seconds)
        self._built.queue.insert(sent)

    @property
    def _built(self) -> LearnerSide:
        assert self._side is not None
        return self._side

    def _record(self, episodes: Episodes) -> None:
        if self._lead is None:
            self._built.record_episodes(episodes)
        else:
            self._lead.record_episodes.remote(episodes)

    def _share(self, version: int, tensors: list[torch.Tensor]) -> Any:
        """A reference to a version's arrays in the object store, where they are put once."""
        with self._lock:
            if self._shared is None or self._shared[0] != version:
                self._shared = (version, ray.put([tensor.cpu().numpy() for tensor in tensors]))
            return self._shared[1]


def sum_over(address: str) -> None:
    """Makes `torch.distributed` use the network interface of this address, unless the environment names another.

    Left to itself gloo takes that of the host's name, which many systems resolve to the loopback device.
    """
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address == address for one in addresses):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", name)


def _own_address() -> str:
    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
