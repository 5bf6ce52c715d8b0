"""What the process of a learner is made of on Ray, whatever its rank: a `Run` whose actors are in other processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from ddrl.actors.unroll import EpisodeSink
from ddrl.inference.endpoint import Endpoint
from ddrl.interfaces import Reducer, Shards
from ddrl.runtimes.ray.messages import Status
from ddrl.runtimes.threads import ThreadsRuntime
from ddrl.system.calls import watched
from ddrl.system.locks import open_lock, take_lock
from ddrl.training.config.run_config import RunConfig
from ddrl.training.learner_node import DistantReplay
from ddrl.training.records.display import Relay
from ddrl.training.run import Run

LOCK_SECONDS = 30.0
"""How long a learner waits for one of before, whose supervisor was killed, to be gone."""


class Part(Protocol):
    """A part of a run's training that begins and ends in its own way, told to each of its learners."""

    @property
    def name(self) -> str:
        """The name among the runs that are on a machine at once, for files beside those of others."""

    @property
    def identity(self) -> str:
        """What checkpoints must agree with."""

    def prepare(self, run: Run) -> None:
        """Make a run ready that has been built and is not yet resumed."""

    def resume(self, run: Run, note: Callable[[str], None], updates: int | None) -> int | None:
        """Continue a run as `LearnerRank.resume`; `note` takes lines for the user."""

    def train(self, run: Run) -> Any:
        """Train a run to the end of the part; return what the supervisor is to know of it."""


class LearnerRank:
    """A learner of any rank, and what its process is asked for it."""

    def __init__(
        self,
        config: RunConfig,
        directory: Path,
        *,
        reducer: Reducer | None = None,
        endpoint: Endpoint | None = None,
        replay: DistantReplay | None = None,
        shards: Shards | None = None,
        part: Part | None = None,
        forward: EpisodeSink | None = None,
    ) -> None:
        """Build the run; see `Run` for the arguments."""
        self._relay = Relay()
        if forward is None:  # rank 0, which writes the directory
            self._lock = open_lock(directory / "learner.lock")
            take_lock(self._lock, directory, LOCK_SECONDS)
        self.run = Run(
            config,
            directory,
            make_runtime=ThreadsRuntime,
            display=self._relay,
            reducer=reducer,
            remote_actors=True,
            endpoint=endpoint,
            replay=replay,
            shards=shards,
            identity=part.identity if part else None,
            forward=forward,
        )
        self._part = part
        if part:
            part.prepare(self.run)

    def resume(self, updates: int | None) -> int | None:
        """Continue from a checkpoint and return its updates; None: from the beginning.

        Rank 0 finds the newest one that all ranks have; the others take the one with `updates`.
        """
        if self._part:
            return self._part.resume(self.run, self.note, updates)
        if not self.run.rank:
            return self.run.resume()
        if updates is not None:
            self.run.resume_at(updates)
        return updates

    def train(self) -> Any:
        """Train to the end of the run or of the part; return the exit reason, or what `Part.train` does."""
        with watched(self.run.records.note):
            return self._part.train(self.run) if self._part else self.run.train()

    def note(self, line: str) -> None:
        """Tell the user of something that happened in this process or an actor's; asked of rank 0."""
        self._relay.note(line)

    def status(self, delivered: list[int]) -> Status:
        """Return how far the run is, lines for the user, and seconds that actors and learner waited."""
        learning = self.run.learning
        return Status(
            counts=learning.counts,
            latest=self._relay.latest,
            notes=self._relay.take_notes(),
            insert_waited=learning.queue.insert_waited,
            pull_waited=learning.params.pull_waited,
            sample_waited=learning.queue.sample_waited,
            delivered=delivered,
        )
