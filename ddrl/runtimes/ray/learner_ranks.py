"""What learners' processes are made of on Ray: the one that leads is a run whose actors are elsewhere, others follow.

A segment of a population's member is made of the same, and told of it as a `Part`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ddrl.coordinator.program import Program, Steps
from ddrl.coordinator.traffic import Traffic
from ddrl.errors import UserError
from ddrl.inference.endpoint import Endpoint
from ddrl.interfaces import Shards
from ddrl.learners.all_reduce import DistributedReducer
from ddrl.runtimes.threads import ThreadsRuntime
from ddrl.system.calls import watched
from ddrl.system.locks import open_lock, take_lock
from ddrl.system.notes import say
from ddrl.training.builder import Builder
from ddrl.training.config.run_config import RunConfig
from ddrl.training.device import resolve_device
from ddrl.training.learner_node import LearnerNode, StopFlag
from ddrl.training.records import checkpoint
from ddrl.training.records.recorder import Counts
from ddrl.training.remote_actors import RemoteActors
from ddrl.training.run import Run
from ddrl.types import Episode, Metrics

if TYPE_CHECKING:
    from ddrl.runtimes.ray.messages import Episodes
    from ddrl.runtimes.ray.replay_process import RemoteReplay

LOCK_SECONDS = 30.0
"""How long a learner waits for one of before, whose supervisor was killed, to be gone."""


class Part(Protocol):
    """A part of a run's training that begins and ends in its own way, told to each of its learners."""

    @property
    def name(self) -> str:
        """Among the runs that are on a machine at once: of files beside those of others."""

    @property
    def identity(self) -> str:
        """What checkpoints must agree with."""

    @property
    def marks(self) -> dict[str, Any]:
        """Kept in the checkpoints."""

    def prepare(self, run: Run) -> None:
        """The lead's run has been built, and is not yet resumed."""

    def resume(self, run: Run, note: Callable[[str], None]) -> int | None:
        """Continues the lead's run as `Run.resume`; `note` takes lines for the user."""

    def train(self, run: Run) -> Any:
        """Trains the lead's run to the end of the part; returns what the supervisor is to know of it."""

    def adoption(self, learner: Any, note: Callable[[str], None]) -> Callable[[dict[str, Any]], dict[str, Any]]:
        """What makes of a learner's checkpoint the state to continue from; asked before it is resumed."""


class Relay:
    """A display that keeps what it is told until the supervisor asks."""

    def __init__(self) -> None:
        self._notes: list[str] = []

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        """Nothing to tidy up."""

    def show(self, counts: Counts, latest: Metrics) -> None:
        """The supervisor asks by itself."""

    def done(self, counts: Counts, latest: Metrics) -> None:
        """As `show`."""

    def note(self, line: str) -> None:
        """One line to the user."""
        self._notes.append(line)

    def take_notes(self) -> list[str]:
        """Lines since the last call."""
        notes, self._notes = self._notes, []
        return notes


class Lead:
    """The learner that leads: a `Run` whose actors are elsewhere."""

    def __init__(
        self,
        config: RunConfig,
        directory: Path,
        reducer: DistributedReducer | None,
        endpoint: Endpoint | None,
        replay: RemoteReplay | None = None,
        shards: Shards | None = None,
        part: Part | None = None,
    ) -> None:
        self._lock = open_lock(directory / "learner.lock")
        take_lock(self._lock, directory, LOCK_SECONDS)
        self._relay = Relay()
        self._run = Run(
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
        )
        self._part = part
        if part:
            part.prepare(self._run)
        self.interrupt = self._run.interrupt

    @property
    def params(self) -> Any:
        """What actors pull; another one after a checkpoint that did not fit, as the next three."""
        return self._run.params

    @property
    def queue(self) -> Any:
        """What actors fill."""
        return self._run.queue

    @property
    def serving(self) -> RemoteActors | None:
        """The actors, where inference is central."""
        return self._run.serving

    @property
    def traffic(self) -> Traffic:
        """Told of what actors send and get."""
        return self._run.learning.traffic

    @property
    def actor_restarts(self) -> int:
        """Actors that died and were replaced, over all resumes."""
        return self._run.actor_restarts

    @actor_restarts.setter
    def actor_restarts(self, number: int) -> None:
        self._run.actor_restarts = number

    @property
    def resumes(self) -> int:
        """How often the run was continued from a checkpoint."""
        return self._run.resumes

    def resume(self, updates: int | None) -> int | None:
        """Continues from the newest checkpoint that all ranks have."""
        return self._part.resume(self._run, self._relay.note) if self._part else self._run.resume()

    def train(self) -> Any:
        """To the end, of the run or of the part."""
        with watched(self.note):
            return self._part.train(self._run) if self._part else self._run.train()

    def tell_of_episodes(self, tell: Callable[[Episodes], None]) -> None:
        """It records them itself."""

    def note(self, line: str) -> None:
        """A line for the user, from this process or from an actor's."""
        self._relay.note(line)

    def record_episodes(self, episodes: Episodes) -> None:
        """Of the actors of all ranks."""
        for episode in episodes:
            self._run.recorder.episode(episode)

    def status(self) -> dict[str, Any]:
        """Counts, the newest metrics, lines for the user, seconds that actors and learner waited for each other."""
        return _status(self._run.learning) | {
            "latest": dict(self._run.recorder.latest),
            "notes": self._relay.take_notes(),
            "actor_restarts": self._run.actor_restarts,
        }


class Follower:
    """A learner of another rank: takes its share of every batch, and saves when the lead does."""

    def __init__(
        self,
        config: RunConfig,
        directory: Path,
        reducer: DistributedReducer,
        endpoint: Endpoint | None,
        part: Part | None = None,
    ) -> None:
        self._config = config
        self._folder = checkpoint.rank_folder(directory, reducer.rank)
        self._stop = StopFlag(reducer)
        self._interrupted = self._segment_over = False
        self._learning = LearnerNode(Builder(config, resolve_device(config.device)), reducer, lent_memory=True)
        self._marks = part.marks if part else {}
        self._adopt = part.adoption(self._learning.learner, _ignore) if part else dict[str, Any]
        self._next_checkpoint = config.checkpoint.period_frames
        self.params, self.queue, self.traffic = self._learning.params, self._learning.queue, self._learning.traffic
        self.actor_restarts = 0
        self.resumes = 0
        self._tell: Callable[[Episodes], None] = lambda episodes: None
        self.serving = self._serving(endpoint, reducer.rank) if endpoint else None

    def _serving(self, endpoint: Endpoint, rank: int) -> RemoteActors:
        def on_episode(episode: Episode) -> None:
            self._tell([episode])

        return RemoteActors(
            self._learning,
            endpoint,
            on_episode,
            rank=rank,
            resumes=lambda: self.resumes,
            note=say,
        )

    def tell_of_episodes(self, tell: Callable[[Episodes], None]) -> None:
        """Its own actors' go to the lead."""
        self._tell = tell

    def resume(self, updates: int | None) -> int | None:
        """Continues from the checkpoint that the lead has chosen."""
        if updates is not None:
            try:
                state = self._adopt(checkpoint.load(self._folder, updates))
                self._learning.load_state_dict(state)
            except (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError) as error:
                words = f"{type(error).__name__}: {error}".splitlines()[0]
                raise UserError(
                    f"{self._folder}: checkpoint {updates} is of another layout ({words}); without this folder the run "
                    "begins anew, and keeps what is in the other one"
                ) from None
            self._next_checkpoint = state["next_checkpoint"]
            self.params.restart_rounds()
        return updates

    def train(self) -> str:
        """Until the lead's training ends: they decide together."""
        learner = self._learning.learner

        def learn() -> None:
            self._interrupted, self._segment_over = self._stop.decide()
            if self._interrupted or self._segment_over:
                return
            learner.step()
            if learner.core.env_frames >= self._next_checkpoint:
                self._next_checkpoint += self._config.checkpoint.period_frames
                self._save()

        if self.serving:
            self.serving.open()
        ThreadsRuntime().run(
            Program(
                actors=self.serving.actors if self.serving else [],
                learner=Steps(learner.ready, learn),
                evaluator=Steps(lambda: False, lambda: None),
                finished=lambda: self._segment_over or learner.core.env_frames >= self._config.env_frames,
                interrupted=lambda: self._interrupted,
                close=self._close,
                services=self._learning.services,
            )
        )
        self._save()
        learner.core.close()
        return "interrupted" if self._interrupted else "budget_reached"

    def _close(self) -> None:
        self._learning.close()
        if self.serving:
            self.serving.close("interrupted" if self._interrupted else "finished")

    def _save(self) -> None:
        state = self._learning.state_dict() | {"next_checkpoint": self._next_checkpoint, "marks": self._marks}
        checkpoint.save(self._folder, self._learning.counts.updates, state)

    def interrupt(self) -> None:
        """Asks all to stop."""
        self._stop.ask()

    def note(self, line: str) -> None:
        """The lead is told of what the user should read."""

    def record_episodes(self, episodes: Episodes) -> None:
        """The lead records those of all ranks."""

    def status(self) -> dict[str, Any]:
        """Counts, and seconds waited."""
        return _status(self._learning)


def _ignore(line: str) -> None:
    """The lead says it."""


def _status(learning: LearnerNode) -> dict[str, Any]:
    counts, queue = learning.counts, learning.queue
    return {
        "counts": (counts.env_frames, counts.agent_steps, counts.updates),
        "updates": counts.updates,
        "insert_waited": queue.insert_waited,
        "pull_waited": learning.params.pull_waited,
        "sample_waited": queue.sample_waited,
    }
