"""The processes of runtime `ray` that act, and what they see of their learner.

An actor sends one message an unroll: it carries the unroll and the episodes that ended there, and brings back the
parameters to act with next, if they are new. Who steps environments alone, for central inference, sends none: this
file and what it imports need no torch, which takes two CPU seconds and 150 MB of each such process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import ray
from ray.exceptions import RayError, RayTaskError

from ddrl.errors import Closed
from ddrl.inference.client import LearnerLost
from ddrl.runtimes.ray.messages import NOTHING_BESIDE, NOTHING_ELSEWHERE, Beside, Episodes, Place, Reply
from ddrl.runtimes.ray.serialization import from_arrays, prepare_process, to_arrays
from ddrl.system.calls import watched
from ddrl.types import Begun, Episode, Experience, Gradients, Unroll

if TYPE_CHECKING:
    from torch import nn

    from ddrl.runtimes.ray.replay_process import ReplayLink
    from ddrl.runtimes.ray.shard_process import ShardLinks


class Acting(Protocol):
    """What one actor's process is made of."""

    def step(self) -> None:
        """One unroll: pulls, collects, inserts."""

    def close(self) -> None:
        """Frees the environments."""


MakeActor = Callable[[int, tuple[int, int], int, "LearnerLink"], Acting]
"""(actor, (resumes of the run, restarts of this actor), index of its first unroll, link to its learner) -> its side."""


class LearnerLink:
    """The learner's parameters and queue, as an actor in another process sees them.

    With a replay in a process of its own, experience goes there, and episodes wait for the next `pull`. With shards in
    processes of their own, gradients go there, and parameters come from there.
    """

    def __init__(
        self,
        host: Any,
        actor: int,
        restart: int,
        replay: ReplayLink | None = None,
        shards: ShardLinks | None = None,
    ) -> None:
        self._host = host
        self._replay = replay
        self._shards = shards
        self._gradients: Gradients | None = None
        self._actor = actor
        self._restart = restart
        self._unroll: Any = None
        self._episodes: Episodes = []
        self.version = -1
        """Of the parameters pulled last."""

    def begin(self) -> int:
        """Index of the first unroll to collect."""
        first = int(ray.get(self._host.begin.remote(self._actor, self._restart)))
        return self._replay.begin() if self._replay else first

    def address(self) -> tuple[str, str | None]:
        """Of the learner's inference service, and its token."""
        address: tuple[str, str | None] = ray.get(self._host.address.remote())
        return address

    def on_episode(self, episode: Episode) -> None:
        """Travels with the next unroll."""
        self._episodes.append(episode)

    def can_insert(self) -> bool:
        """Nobody asks: an actor in a process of its own waits."""
        return True

    def can_pull(self, unroll_index: int) -> bool:
        """As `can_insert`."""
        return True

    def apply(self, gradients: Gradients) -> None:
        """Holds a gradient until the next `pull` sends it: it is applied before the parameters are read."""
        if self._shards:
            self._gradients = gradients
        else:
            self._unroll = to_arrays(gradients)

    def insert(self, unroll: Unroll | Experience) -> None:
        """Holds the unroll, or what an actor of a replay made of it, until the next `pull` (or `insert`) sends it."""
        if self._replay:
            assert isinstance(unroll, Experience)
            self._replay.insert(unroll)
            return
        if self._unroll is not None:
            self._send(None)
        self._unroll = to_arrays(unroll)

    def pull(self, network: nn.Module, unroll_index: int) -> int:
        """Sends what waits, and copies the version to act with into `network`. Raises `Closed` at the run's end."""
        if self._shards and self._gradients is not None:
            self.version = self._update(self._shards, self._gradients, network, unroll_index)
            return self.version
        version, reference = self._send(unroll_index)
        if self._shards and version != self.version:
            self._shards.pull(network)
        if reference is not None:
            from ddrl.coordinator.parameter_server import load  # imports torch, which who has a network needs

            load(network, [from_arrays(array) for array in ray.get(reference)])
        self.version = version
        return version

    def _update(self, shards: ShardLinks, gradients: Gradients, network: nn.Module, unroll_index: int) -> int:
        """One of the shards, whose parameters `network` then has; returns the version: what is half new counts as old.

        The learner hears of it before and after.
        """
        self._gradients = None
        begun: Begun | None = ray.get(self._host.begin_update.remote(self._actor, self._restart))
        if begun is None:
            self._send(unroll_index)  # episodes
            raise Closed
        shards.apply(gradients.tensors, begun.learning_rate, network)
        self._unroll = to_arrays(replace(gradients, tensors=()))
        self._send(unroll_index)
        return begun.version + 1

    def _send(self, unroll_index: int | None) -> tuple[int, Any]:
        unroll, episodes = self._unroll, self._episodes
        self._unroll, self._episodes = None, []
        elsewhere = self._shards.take_traffic() if self._shards else NOTHING_ELSEWHERE
        sent = self._host.exchange.remote(
            self._actor, self._restart, unroll, episodes, self.version, unroll_index, time.process_time(), elsewhere
        )
        del unroll
        reply: Reply = ray.get(sent)
        if reply is None:
            raise Closed
        return reply


class ActorProcess:
    """One actor's process."""

    def __init__(self, make: MakeActor) -> None:
        prepare_process()
        self._make = make  # given now, so that its modules are imported while the learner is being built

    def pid(self) -> int:
        """Of the process."""
        return os.getpid()

    def act(
        self, index: int, generation: tuple[int, int], learner: Any, slot: int, beside: Beside = NOTHING_BESIDE
    ) -> str | None:
        """Makes unrolls until the run is over; what an environment raises is raised here.

        Returns None when the run is over, else why it could not go on: its learner, or what that sent, was lost.

        Args:
            index: of the actor, over all learners.
            generation: resumes of the run, restarts of this actor.
            learner: host of the learner it feeds.
            slot: of the actor, among those that feed the same learner.
            beside: hosts of what else has processes of its own.
        """
        replay = _replay_link(beside.replay, slot, generation[1])
        link = LearnerLink(learner, slot, generation[1], replay, _shard_links(beside.shards))
        try:
            with watched(lambda line: learner.tell.remote(line)):
                side = self._make(index, generation, link.begin(), link)
                try:
                    while True:
                        side.step()
                finally:
                    side.close()
        except Closed:
            return None
        except LearnerLost as lost:
            return None if lost.was_interrupted else f"it lost its learner: {lost}"
        except RayTaskError:  # the learner is there, and raised
            raise
        except RayError as error:
            return f"it lost its learner: {(str(error).splitlines() or [type(error).__name__])[0]}"


def _replay_link(replay: Any, slot: int, restart: int) -> ReplayLink | None:
    if replay is None:
        return None
    from ddrl.runtimes.ray.replay_process import ReplayLink  # imports torch, which who has experience to send needs

    return ReplayLink(replay, slot, restart)


def _shard_links(places: Sequence[Place]) -> ShardLinks | None:
    if not places:
        return None
    from ddrl.runtimes.ray.shard_process import ShardLinks  # as above: who has gradients to send

    return ShardLinks(places)
