"""A prioritized replay in a process of its own, under runtime `ray`: the replay server of Ape-X and R2D2.

Actors send experience here and not to the learner, and wait here while the learner is behind. While the learner trains
with a batch, the next is being drawn: before the priorities of the former have changed, as in the papers. A batch
travels through the object store and is read in place.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ray
import torch
from ray.exceptions import RayTaskError

from ddrl.coordinator.traffic import Traffic
from ddrl.errors import Closed
from ddrl.learners.all_reduce import SingleLearner
from ddrl.replay.items import Drawing, Drawn
from ddrl.runtimes.ray.errors import connection_to
from ddrl.runtimes.ray.serialization import prepare_process
from ddrl.system.allocator import keep_freed_memory
from ddrl.system.wait_clock import WaitClock
from ddrl.training.builder import Builder
from ddrl.training.config.run_config import RunConfig
from ddrl.training.learner_node import make_replay
from ddrl.training.records import checkpoint
from ddrl.types import Experience, Metrics


class ReplayProcess:
    """The process of a replay. Methods run in groups of threads, so that those that wait delay no other call."""

    def __init__(self, config: RunConfig, directory: Path, num_actors: int) -> None:
        """`directory`: of the run, for its part of checkpoints."""
        prepare_process()
        self._config = config
        self._folder = checkpoint.replay_folder(directory)
        self._restarts = [-1] * num_actors
        self._delivered = [0] * num_actors
        self._frozen = ExitStack()

    def pid(self) -> int:
        """Return the process ID."""
        return os.getpid()

    def build(self) -> None:
        """Make an empty replay."""
        keep_freed_memory()
        builder = Builder(self._config, torch.device("cpu"))
        self._replay = make_replay(builder, builder.network(), SingleLearner())
        self._traffic = Traffic(builder.spec.frame_skip)

    def describe(self) -> str:
        """Return a line for the user."""
        return str(self._replay)

    def delivered(self, actor: int) -> int:
        """Return how many unrolls an actor has delivered."""
        return self._delivered[actor]

    @ray.method(concurrency_group="insert")
    def begin(self, actor: int, restart: int) -> int:
        """Register a new process of an actor; return its next unroll's index. Call `LearnerProcess.begin` first."""
        self._restarts[actor] = restart
        return self._delivered[actor]

    @ray.method(concurrency_group="insert")
    def insert(self, actor: int, restart: int, experience: Experience, cpu_seconds: float) -> bool:
        """Insert an actor's experience; wait while the learner is behind.

        Return False where the run is over for this actor, or another process has taken its place.
        """
        if self._restarts[actor] != restart:
            return False
        self._traffic.received(actor, experience.nbytes, experience.unroll.valid.numel(), cpu_seconds)
        try:
            self._replay.insert(experience)
        except Closed:
            return False
        self._delivered[actor] += 1
        return True

    @ray.method(concurrency_group="draw")
    def draw(self, count: int) -> tuple[Drawing, float, float] | None:
        """Draw a batch; wait while actors are behind. Return None where the run is over.

        Return the items, the seconds that actors have waited for the learner, summed over all of them, and the CPU
        seconds of the actors and the replay.
        """
        try:
            items = self._replay.sample(count)
        except Closed:
            return None
        return items, self._replay.insert_waited, self._traffic.cpu_seconds + time.process_time()

    @ray.method(concurrency_group="update")
    def update(self, drawn: Drawn, priorities: torch.Tensor) -> None:
        """Set new priorities; calls are carried out in the order they were sent in."""
        self._replay.update(drawn, priorities)

    def gauges(self) -> Metrics:
        """Return the replay's gauges, and the traffic from actors since the last call."""
        metrics = self._replay.take_gauges()
        if taken := self._traffic.take():
            metrics["wire_bytes_per_frame_to_replay"] = taken["wire_bytes_per_frame_to_learner"]
        return metrics

    def freeze(self) -> None:
        """Let nothing be inserted or drawn until `thaw`."""
        self._frozen.enter_context(self._replay.frozen())

    def thaw(self) -> None:
        """Let experience be inserted and drawn again."""
        self._frozen.close()

    def save(self, number: int) -> str:
        """Write the replay's part of checkpoint `number`, before the learner writes its own; return the checksum."""
        return checkpoint.checksum(checkpoint.save(self._folder, number, {"replay": self._replay.state_dict()}))

    def restore(self, number: int) -> None:
        """Load the part that `save` wrote."""
        self._replay.load_state_dict(checkpoint.load(self._folder, number)["replay"])

    def counters(self) -> dict[str, Any]:
        """Return the replay's state without its contents."""
        return self._replay.state_dict(contents=False)

    def refill(self, counters: dict[str, Any]) -> int | None:
        """Load `counters` and no contents; return how many items must be inserted before any is drawn."""
        return self._replay.load_state_dict(counters)

    def close(self) -> None:
        """End every wait with `Closed`."""
        self._replay.close()


def start_process(config: RunConfig, directory: Path, num_actors: int, **options: Any) -> Any:
    """Start the process of a replay."""
    groups = {"insert": num_actors + 2, "draw": 1, "update": 1}
    process: Any = ray.remote(num_cpus=1, max_concurrency=4, concurrency_groups=groups)(ReplayProcess)  # type: ignore[call-overload]  # Ray's own stubs know no concurrency groups
    return process.options(**options).remote(config, directory, num_actors)


def answer(reference: Any) -> Any:
    """Return what a call returned. Raise what the call raised, and RayError where the process is gone."""
    try:
        return ray.get(reference)
    except RayTaskError as error:
        raise error.cause or error from error


class RemoteReplay:
    """The replay, as the learner sees it: a `DistantReplay`. Raises ConnectionError where its process is gone."""

    def __init__(self, process: Any) -> None:
        self._process = process
        self.take_gauges: Callable[[], Metrics] = partial(self._ask, process.gauges)
        self.save: Callable[[int], str] = partial(self._ask, process.save)
        self.restore: Callable[[int], None] = partial(self._ask, process.restore)
        self.counters: Callable[[], dict[str, Any]] = partial(self._ask, process.counters)
        self.refill: Callable[[dict[str, Any]], int | None] = partial(self._ask, process.refill)
        self._ahead: Any = None
        self._updating: Any = None
        self._sample_clock = WaitClock()
        self._traffic: Traffic | None = None
        self._steps: int | None = None
        self.insert_waited = 0.0
        """Seconds that actors waited for the learner, summed over all of them, when the newest batch was drawn."""

    def __str__(self) -> str:
        return f"{self._ask(self._process.describe)}, in a process of its own"

    def count_in(self, traffic: Traffic) -> None:
        """Count in `traffic` what comes from the replay and goes there."""
        self._traffic = traffic

    @property
    def sample_waited(self) -> float:
        """Seconds that the learner waited for batches."""
        return self._sample_clock.seconds

    def can_insert(self) -> bool:
        """Return False: only actors insert, in their processes."""
        return False

    def insert(self, experience: Experience) -> None:
        """Raise RuntimeError: actors send their experience to the replay itself."""
        raise RuntimeError("the learner inserts nothing into a replay that is in another process")

    def can_sample(self, count: int) -> bool:
        """Return True: the learner may wait, since no other role is in its thread."""
        return True

    def sample(self, count: int) -> Any:
        """Return the batch that was drawn ahead, and start drawing the next. Raise `Closed` once the run is over."""
        ahead = self._ahead or self._process.draw.remote(count)
        with self._sample_clock.running():
            batch = self._answer(ahead)
        if batch is None:
            raise Closed
        self._ahead = self._process.draw.remote(count)
        items, self.insert_waited, cpu_seconds = batch
        now = items.drawn.inserted_steps
        fresh, self._steps = now - (now if self._steps is None else self._steps), now
        if self._traffic is not None:
            self._traffic.received(0, sum(tensor.nbytes for tensor in items.tensors), fresh, cpu_seconds)
        return replace(items, td_error=torch.zeros(items.td_error.shape))  # the learner writes there

    def update(self, drawn: Drawn, priorities: torch.Tensor) -> None:
        """Send new priorities [B], and wait until those before have arrived. Raise the error of those before."""
        sent = self._process.update.remote(drawn, priorities.detach())
        before, self._updating = self._updating, sent
        if self._traffic is not None:
            self._traffic.sent(priorities.nbytes + drawn.weight.nbytes + drawn.slot.nbytes + drawn.step.nbytes)
        if before is not None:
            self._answer(before)

    def close(self) -> None:
        """End every wait with `Closed`, also those of actors."""
        self._process.close.remote()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Let nothing be inserted or drawn within the block, before which all priorities sent have arrived."""
        if self._updating is not None:
            self._answer(self._updating)
        self._ask(self._process.freeze)
        try:
            yield
        finally:
            self._process.thaw.remote()

    def _ask(self, method: Any, *arguments: Any) -> Any:
        return self._answer(method.remote(*arguments))

    def _answer(self, reference: Any) -> Any:
        with connection_to("its replay"):
            return answer(reference)


class ReplayLink:
    """The replay, as an actor in another process sees it."""

    def __init__(self, process: Any, actor: int, restart: int) -> None:
        self._process = process
        self._actor = actor
        self._restart = restart
        self._sent: Any = None

    def begin(self) -> int:
        """Return the index of the first unroll to collect."""
        return int(answer(self._process.begin.remote(self._actor, self._restart)))

    def insert(self, experience: Experience) -> None:
        """Send experience once what was sent before is inserted, so at most one message is on its way.

        Raise `Closed` at the run's end, and the error of the message before.
        """
        if self._sent is not None and not answer(self._sent):
            raise Closed
        self._sent = self._process.insert.remote(self._actor, self._restart, experience, time.process_time())
