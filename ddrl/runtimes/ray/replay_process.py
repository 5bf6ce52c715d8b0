"""A prioritized replay in a process of its own, under runtime `ray`: the replay server of Ape-X and R2D2.

Actors send experience here and not to the learner, and wait here while the learner is behind. The learner draws a batch
ahead: while it trains with one, the next is being made. New priorities follow without being waited for, so each batch
is drawn before it is known what the one before it has changed, as in the papers. A batch travels through the object
store and is read in place.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import ray
import torch
from ray.exceptions import RayError, RayTaskError

from ddrl.coordinator.traffic import Traffic
from ddrl.errors import Closed
from ddrl.runtimes.ray.errors import first_line
from ddrl.runtimes.ray.serialization import from_arrays, prepare_process, to_arrays
from ddrl.system.wait_clock import WaitClock
from ddrl.types import Experience, Metrics


class ReplaySide(Protocol):
    """What the replay's process is made of (`ddrl.runtimes.ray.replay_side`)."""

    @property
    def replay(self) -> Any:
        """A `ddrl.replay.prioritized.PrioritizedReplay`."""

    @property
    def traffic(self) -> Traffic:
        """Told of what actors send."""

    def save(self, number: int) -> str:
        """Writes the replay's part of checkpoint `number`; returns its checksum."""

    def restore(self, number: int) -> None:
        """Continues where that part was written."""


MakeReplay = Callable[[], ReplaySide]


class Batch(NamedTuple):
    """What the learner gets when it draws."""

    items: Any
    """Arrays."""
    insert_waited: float
    """Seconds that actors have waited for the learner, over all of them."""
    cpu_seconds: float
    """Of the actors and of the replay."""


class ReplayProcess:
    """The replay's process. Methods run in groups of threads, so that those who wait hold up nobody else."""

    def __init__(self, make: MakeReplay, num_actors: int) -> None:
        prepare_process()
        self._make = make
        self._side: ReplaySide | None = None
        self._restarts = [-1] * num_actors
        self._delivered = [0] * num_actors
        self._frozen = ExitStack()

    def pid(self) -> int:
        """Of the process."""
        return os.getpid()

    def build(self) -> None:
        """Makes an empty replay."""
        self._side = self._make()

    def describe(self) -> str:
        """A line for the user."""
        return str(self._built.replay)

    def delivered(self, actor: int) -> int:
        """Unrolls of one actor."""
        return self._delivered[actor]

    @ray.method(concurrency_group="insert")
    def begin(self, actor: int, restart: int) -> int:
        """As `LearnerProcess.begin`, of which an actor knows that the replay holds what it should."""
        self._restarts[actor] = restart
        return self._delivered[actor]

    @ray.method(concurrency_group="insert")
    def insert(self, actor: int, restart: int, arrays: Any, cpu_seconds: float) -> bool:
        """Inserts an actor's experience; waits while the learner is behind.

        False: the run is over for this actor, or another process has taken its place.
        """
        if self._restarts[actor] != restart:
            return False
        experience: Experience = from_arrays(arrays)
        side = self._built
        side.traffic.received(actor, experience.nbytes, experience.unroll.valid.numel(), cpu_seconds)
        try:
            side.replay.insert(experience)
        except Closed:
            return False
        self._delivered[actor] += 1
        return True

    @ray.method(concurrency_group="draw")
    def draw(self, count: int) -> Batch | None:
        """A batch; waits while actors are behind. None: the run is over."""
        side = self._built
        try:
            items = side.replay.sample(count)
        except Closed:
            return None
        return Batch(to_arrays(items), side.replay.insert_waited, side.traffic.cpu_seconds + time.process_time())

    @ray.method(concurrency_group="update")
    def update(self, drawn: Any, priorities: Any) -> None:
        """New priorities, in the order they were sent in."""
        self._built.replay.update(from_arrays(drawn), from_arrays(priorities))

    def gauges(self) -> Metrics:
        """Those of the replay, and what actors sent to it since the last call."""
        metrics: Metrics = self._built.replay.take_gauges()
        taken = self._built.traffic.take()
        if taken:
            metrics["wire_bytes_per_frame_to_replay"] = taken["wire_bytes_per_frame_to_learner"]
        return metrics

    def freeze(self) -> None:
        """From now on nothing is inserted or drawn."""
        self._frozen.enter_context(self._built.replay.frozen())

    def thaw(self) -> None:
        """Ends that."""
        self._frozen.close()

    def save(self, number: int) -> str:
        """See `ReplaySide`."""
        return self._built.save(number)

    def restore(self, number: int) -> None:
        """See `ReplaySide`."""
        self._built.restore(number)

    def counters(self) -> dict[str, Any]:
        """The replay's state without its contents."""
        state: dict[str, Any] = self._built.replay.state_dict(contents=False)
        return state

    def refill(self, counters: dict[str, Any]) -> int | None:
        """Continues with these; returns how many items must be there again before any is drawn."""
        wanted: int | None = self._built.replay.load_state_dict(counters)
        return wanted

    def close(self) -> None:
        """Ends every wait."""
        self._built.replay.close()

    @property
    def _built(self) -> ReplaySide:
        assert self._side is not None
        return self._side


def start_process(make: MakeReplay, num_actors: int, **options: Any) -> Any:
    """Starts a replay's process."""
    groups = {"insert": num_actors + 2, "draw": 1, "update": 1}
    host: Any = ray.remote(num_cpus=1, max_concurrency=4, concurrency_groups=groups)(ReplayProcess)  # type: ignore[call-overload]  # Ray's own stubs know no concurrency groups
    return host.options(**options).remote(make, num_actors)


def answer(reference: Any) -> Any:
    """What a call returned. Raises what the call raised, and RayError where the process is gone."""
    try:
        return ray.get(reference)
    except RayTaskError as error:
        raise error.cause or error from error


class RemoteReplay:
    """The replay, as the learner sees it. Raises ConnectionError where its process is gone."""

    def __init__(self, host: Any) -> None:
        self._host = host
        self._ahead: Any = None
        self._updating: Any = None
        self._sample_clock = WaitClock()
        self._traffic: Traffic | None = None
        self._steps: int | None = None
        self.insert_waited = 0.0
        """Seconds that actors waited for the learner, over all of them, when the newest batch was drawn."""

    def __str__(self) -> str:
        return f"{self._ask(self._host.describe)}, in a process of its own"

    def count_in(self, traffic: Traffic) -> None:
        """What comes from the replay and goes there is counted in `traffic`."""
        self._traffic = traffic

    @property
    def sample_waited(self) -> float:
        """Seconds that the learner waited for batches."""
        return self._sample_clock.seconds

    def can_insert(self) -> bool:
        """Nobody asks: actors are in other processes."""
        return False

    def insert(self, experience: Experience) -> None:
        """Raises RuntimeError: actors send what they have to the replay itself."""
        raise RuntimeError("the learner inserts nothing into a replay that is in another process")

    def can_sample(self, count: int) -> bool:
        """Nobody asks: where processes are, the learner waits."""
        return True

    def sample(self, count: int) -> Any:
        """Takes the batch that was drawn ahead, and has the next one drawn. Raises `Closed` once the run is over."""
        ahead = self._ahead or self._host.draw.remote(count)
        with self._sample_clock.running():
            batch = self._answer(ahead)
        if batch is None:
            raise Closed
        self._ahead = self._host.draw.remote(count)
        items = from_arrays(batch.items)
        self.insert_waited = batch.insert_waited
        self._count(items, batch.cpu_seconds)
        return replace(items, td_error=torch.zeros(items.td_error.shape))  # the learner writes there

    def _count(self, items: Any, cpu_seconds: float) -> None:
        now = items.drawn.inserted_steps
        fresh, self._steps = now - (now if self._steps is None else self._steps), now
        if self._traffic is not None:
            self._traffic.received(0, sum(tensor.nbytes for tensor in items.tensors), fresh, cpu_seconds)

    def update(self, drawn: Any, priorities: torch.Tensor) -> None:
        """Sends new priorities [B], and waits until those before have arrived. Raises what these were refused with."""
        arrays: np.ndarray[Any, Any] = to_arrays(priorities.detach())
        before, self._updating = self._updating, self._host.update.remote(to_arrays(drawn), arrays)
        if self._traffic is not None:
            self._traffic.sent(arrays.nbytes + drawn.weight.nbytes + drawn.slot.nbytes + drawn.step.nbytes)
        if before is not None:
            self._answer(before)

    def take_gauges(self) -> Metrics:
        """What the replay holds, and what it was sent."""
        metrics: Metrics = self._ask(self._host.gauges)
        return metrics

    def close(self) -> None:
        """Ends every wait, also that of actors."""
        self._host.close.remote()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Nothing is inserted or drawn within the block, and all priorities sent before it have arrived."""
        if self._updating is not None:
            self._answer(self._updating)
        self._ask(self._host.freeze)
        try:
            yield
        finally:
            self._host.thaw.remote()

    def save(self, number: int) -> str:
        """The replay writes its part of checkpoint `number` by itself; returns its checksum."""
        checksum: str = self._ask(self._host.save, number)
        return checksum

    def restore(self, number: int) -> None:
        """Continues where that part was written."""
        self._ask(self._host.restore, number)

    def counters(self) -> dict[str, Any]:
        """Its state without its contents."""
        state: dict[str, Any] = self._ask(self._host.counters)
        return state

    def refill(self, counters: dict[str, Any]) -> int | None:
        """Continues with these; returns how many items must be there again before any is drawn."""
        wanted: int | None = self._ask(self._host.refill, counters)
        return wanted

    def _ask(self, method: Any, *arguments: Any) -> Any:
        return self._answer(method.remote(*arguments))

    def _answer(self, reference: Any) -> Any:
        try:
            return answer(reference)
        except RayTaskError:
            raise
        except RayError as error:
            raise ConnectionError(f"its replay is gone: {first_line(error)}") from error


class ReplayLink:
    """The replay, as an actor in another process sees it."""

    def __init__(self, host: Any, actor: int, restart: int) -> None:
        self._host = host
        self._actor = actor
        self._restart = restart
        self._sent: Any = None

    def begin(self) -> int:
        """Index of the first unroll to collect."""
        return int(answer(self._host.begin.remote(self._actor, self._restart)))

    def insert(self, experience: Experience) -> None:
        """Sends it, once what was sent before is inserted: an actor acts on while one is on its way, and no further.

        Raises `Closed` at the run's end, and what the one before was refused with.
        """
        if self._sent is not None and not answer(self._sent):
            raise Closed
        self._sent = self._host.insert.remote(self._actor, self._restart, to_arrays(experience), time.process_time())
