"""The processes of runtime `ray` that act, and their view of their learner.

An actor sends one message an unroll, with the unroll and the episodes that ended there; the answer has the parameters
to act with next, if they are new. An environment worker of central inference sends none: it needs no torch, which takes
two CPU seconds and 150 MB of each process, so this file and its imports bring none.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import ray
from ray.exceptions import RayError, RayTaskError

from ddrl.errors import Closed
from ddrl.inference.client import LearnerLost
from ddrl.runtimes.ray import rendezvous as meetings
from ddrl.runtimes.ray.errors import first_line
from ddrl.runtimes.ray.messages import NO_TRAFFIC, Beside, Episodes, Reply, Sent
from ddrl.runtimes.ray.serialization import prepare_process
from ddrl.system.calls import watched
from ddrl.types import Begun, Episode, Experience, Gradients, Unroll

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed import Store  # type: ignore[attr-defined]  # not in its __all__

    from ddrl.inference.endpoint import Endpoint
    from ddrl.inference.worker import Worker
    from ddrl.runtimes.ray.replay_process import ReplayLink
    from ddrl.runtimes.ray.shard_process import ShardLinks
    from ddrl.training.builder import LoneActor


MakeActor = Callable[[int, tuple[int, int], int, "LearnerLink"], "LoneActor | Worker"]
"""(actor, (resumes of the run, restarts of this actor), index of its first unroll, link to its learner) -> actor."""


class LearnerLink:
    """The learner's parameters and queue, as an actor in another process sees them.

    With a replay in a process of its own, experience goes there, and episodes wait for the next `pull`. With shards in
    processes of their own, gradients go there, and parameters come from there.
    """

    def __init__(self, learner: Any, actor: int, restart: int, beside: Beside) -> None:
        self._learner = learner
        self._actor = actor
        self._restart = restart
        self._meeting = beside.meeting
        self._replay: ReplayLink | None = None
        self._shards: ShardLinks | None = None
        if beside.replay is not None:
            from ddrl.runtimes.ray.replay_process import ReplayLink  # imports torch

            self._replay = ReplayLink(beside.replay, actor, restart)
        if beside.shards:
            from ddrl.runtimes.ray.shard_process import ShardLinks  # imports torch

            self._shards = ShardLinks(beside.shards)
        self._gradients: Gradients | None = None
        self._unroll: Sent | None = None
        self._episodes: Episodes = []
        self.version = -1
        """The version of the parameters pulled last."""

    def begin(self) -> int:
        """Return the index of the first unroll to collect."""
        first = int(ray.get(self._learner.begin.remote(self._actor, self._restart)))
        return self._replay.begin() if self._replay else first

    def endpoint(self) -> Endpoint:
        """Return where the learner's inference service listens."""
        return cast("Endpoint", ray.get(self._learner.endpoint.remote()))

    def store(self) -> Store:
        """Return the store that the learners share, as a client of its own."""
        assert self._meeting is not None, "several learners have met"
        return meetings.join(self._meeting).store

    def on_episode(self, episode: Episode) -> None:
        """Hold an episode until the next message to the learner."""
        self._episodes.append(episode)

    def apply(self, gradients: Gradients) -> None:
        """Hold a gradient until the next `pull` sends it: it is applied before the parameters are read."""
        if self._shards:
            self._gradients = gradients
        else:
            self._unroll = gradients

    def insert(self, unroll: Unroll | Experience) -> None:
        """Send experience to the replay, or hold an unroll until the next `pull` (or `insert`) sends it."""
        if self._replay:
            assert isinstance(unroll, Experience)
            self._replay.insert(unroll)
            return
        if self._unroll is not None:
            self._send(None)
        self._unroll = unroll

    def pull(self, network: nn.Module, unroll_index: int) -> int:
        """Send what is held, copy the version to act with into `network` and return it.

        Raise `Closed` at the run's end.
        """
        if self._shards and self._gradients is not None:
            self.version = self._update(self._shards, self._gradients, network, unroll_index)
            return self.version
        version, reference = self._send(unroll_index)
        if self._shards and version != self.version:
            self._shards.pull(network)
        if reference is not None:
            from ddrl.coordinator.parameter_server import load  # imports torch

            load(network, ray.get(reference))
        self.version = version
        return version

    def _update(self, shards: ShardLinks, gradients: Gradients, network: nn.Module, unroll_index: int) -> int:
        """Update the shards, copy their parameters into `network`; tell the learner before and after.

        Return the version: that of this update, also where the parameters hold parts of newer ones.
        """
        self._gradients = None
        begun: Begun | None = ray.get(self._learner.begin_update.remote(self._actor, self._restart))
        if begun is None:
            self._send(unroll_index)  # episodes
            raise Closed
        shards.apply(gradients.tensors, begun.learning_rate, network)
        self._unroll = replace(gradients, tensors=())
        self._send(unroll_index)
        return begun.version + 1

    def _send(self, unroll_index: int | None) -> tuple[int, Any]:
        unroll, episodes = self._unroll, self._episodes
        self._unroll, self._episodes = None, []
        traffic = self._shards.take_traffic() if self._shards else NO_TRAFFIC
        sent = self._learner.exchange.remote(
            self._actor, self._restart, unroll, episodes, self.version, unroll_index, time.process_time(), traffic
        )
        del unroll
        reply: Reply = ray.get(sent)
        if reply is None:
            raise Closed
        return reply


class ActorProcess:
    """The process of one actor."""

    def __init__(self, make: MakeActor) -> None:
        prepare_process()
        self._make = make  # given now, so that its modules are imported while the learner is being built

    def pid(self) -> int:
        """Return the process ID."""
        return os.getpid()

    def act(self, index: int, generation: tuple[int, int], learner: Any, slot: int, beside: Beside) -> str | None:
        """Act until the run is over. Return None, or how the learner was lost. Raise what an environment raises.

        `generation` is (resumes of the run, restarts of this actor), `slot` the actor's index among those of `learner`.
        """
        link = LearnerLink(learner, slot, generation[1], beside)
        try:
            with watched(lambda line: learner.tell.remote(line)):
                actor = self._make(index, generation, link.begin(), link)
                try:
                    while True:
                        actor.step()
                finally:
                    actor.close()
        except Closed:
            return None
        except LearnerLost as lost:
            return None if lost.was_interrupted else f"it lost its learner: {lost}"
        except RayTaskError:  # the learner is there, and raised
            raise
        except RayError as error:
            return f"it lost its learner: {first_line(error)}"
