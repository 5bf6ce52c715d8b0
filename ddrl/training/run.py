"""One learner's part of a training run, with its actors, carried out by the runtime that it is handed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ddrl.actors.unroll import EpisodeSink
from ddrl.coordinator.program import NamedActor, Program, Runtime, Steps
from ddrl.errors import UserError
from ddrl.inference.endpoint import Endpoint
from ddrl.interfaces import Actor, Reducer, Shards, SharedStore
from ddrl.learners.all_reduce import SingleLearner
from ddrl.system import processor
from ddrl.system.seeding import generator_state, set_generator_state
from ddrl.training.builder import AnyCollector, Builder, Generation
from ddrl.training.config.run_config import RunConfig
from ddrl.training.config.topology_checks import without_effect
from ddrl.training.device import resolve_device
from ddrl.training.evaluation import Evaluations
from ddrl.training.learner_node import DistantReplay, LearnerNode, StopFlag
from ddrl.training.records import checkpoint, finished
from ddrl.training.records.display import Display, Relay
from ddrl.training.records.recorder import Counts, Recorder
from ddrl.training.records.resume import Checkpoints, check_budget
from ddrl.training.remote_actors import RemoteActors
from ddrl.training.run_records import RankRecords, RunRecords

Adopt = Callable[[dict[str, Any]], dict[str, Any]]
"""Maps the state of a checkpoint to the state to load."""


class Run:
    """One learner of a training run: builds the roles, trains, checkpoints.

    The only learner, or the one of rank 0, also evaluates and writes the results. Learners of other ranks take their
    share of every batch, save when rank 0 does, and send it the episodes of their actors.
    """

    def __init__(
        self,
        config: RunConfig,
        directory: Path,
        *,
        make_runtime: Callable[[], Runtime],
        display: Display | None = None,
        reducer: Reducer | None = None,
        remote_actors: bool = False,
        endpoint: Endpoint | None = None,
        replay: DistantReplay | None = None,
        shards: Shards | None = None,
        identity: str | None = None,
        forward: EpisodeSink | None = None,
        store: SharedStore | None = None,
    ) -> None:
        """Build the learner and its actors; nothing is trained yet.

        Args:
            make_runtime: makes what carries out the roles; called again where a checkpoint was loaded only in part.
            display: where to show how far it is; None: nowhere.
            reducer: joins this learner with others; None: it is the only one.
            remote_actors: whether the actors are in other processes.
            endpoint: where environment workers come to, if any do.
            replay: the replay, where it is in a process of its own.
            shards: those of a parameter server, where they are in processes of their own.
            identity: the name that checkpoints go by, of a population's member, whose hyperparameters change.
            forward: sends an episode to rank 0; None: this is rank 0.
            store: shared by several learners and their actors.
        """
        self.config = config
        self.directory = directory
        self.interrupted = False
        self.actor_restarts = 0
        self._reducer = reducer or SingleLearner()
        self._stop = StopFlag(self._reducer)
        self.pause: Callable[[], bool] = lambda: False
        """The test for the end of a segment before the budget; of several learners, that of rank 0 counts."""
        self._segment_over = False
        self.marks: dict[str, Any] = {}
        """Values that a population keeps in this run's checkpoints."""
        self.builder = Builder(config, resolve_device(config.device))
        self.spec = self.builder.spec
        self.records: RunRecords | RankRecords
        if forward:
            self.records = RankRecords(forward)
        else:
            self.records = RunRecords(self.builder, directory, display or Relay(), identity)
        self.collectors: Sequence[AnyCollector] = []
        self.actors: list[Actor] = []
        self._remote_actors, self._endpoint = remote_actors, endpoint
        self._distant_replay, self._shards, self._store = replay, shards, store
        self._make_runtime = make_runtime
        self._assemble()
        self._next_checkpoint = config.checkpoint.period_frames

    @property
    def rank(self) -> int:
        """Which of the learners this is."""
        return self._reducer.rank

    @property
    def recorder(self) -> Recorder:
        """The recorder of rank 0."""
        return self._own_records.recorder

    @property
    def evaluations(self) -> Evaluations:
        """The evaluations of rank 0."""
        return self._own_records.evaluations

    @property
    def _own_records(self) -> RunRecords:
        assert isinstance(self.records, RunRecords), "only rank 0 has records"
        return self.records

    @property
    def resumes(self) -> int:
        """The number of times that the run was continued from a checkpoint."""
        return self.records.resumes

    @property
    def counts(self) -> Counts:
        """Frames, steps and updates so far."""
        return self.node.counts

    def _assemble(self) -> None:
        """Build the learner, actors and runtime as they begin; again where a checkpoint was loaded only in part."""
        self.node = LearnerNode(
            self.builder,
            self._reducer,
            lent_memory=self._remote_actors,
            distant_replay=self._distant_replay,
            shards=self._shards,
            store=self._store,
        )
        self.params, self.queue, self.learner = self.node.params, self.node.queue, self.node.learner
        self.remote: RemoteActors | None = None
        if self._endpoint or self.config.topology.central.worker_processes:
            self._serve_remote_actors()
        elif not self._remote_actors:
            self._make_actors()
        self.runtime = self._make_runtime()
        self.records.follow(self.node)

    def _make_actors(self) -> None:
        """Make those whose environments are in this process; again where a run that did not save them is continued."""
        for collector in self.collectors:
            collector.env.close()
        builder, generation, topology = self.builder, Generation(self.resumes), self.config.topology
        make: Callable[..., AnyCollector] = builder.device_collector
        if topology.acting == "host":
            make = partial(builder.collector, inference=self.node.central, clock=self.node.stepping_clock)
        self.collectors = [
            make(index, self.records.episode, generation=generation) for index in range(topology.num_actors)
        ]
        actors = [builder.actor(collector, self.params, self.queue) for collector in self.collectors]
        self.actors = [
            NamedActor(actor, builder.describe("actor", index, generation))
            for index, actor in enumerate(self.node.limited_actors(actors))
        ]

    def _serve_remote_actors(self) -> None:
        """Make the actors whose environments are in other processes."""

        def restarted() -> None:
            self.actor_restarts += 1

        self.remote = RemoteActors(
            self.node,
            self._endpoint,
            self.records.episode,
            rank=self.rank,
            resumes=lambda: self.resumes,
            note=self.records.note,
            restarted=restarted,
            store=self._store,
        )
        self.collectors, self.actors = self.remote.collectors, self.remote.actors

    # What the runtime runs ------------------------------------------------------------------------------------------

    def train(self) -> str:
        """Train to the budget and write the results; return the exit reason, `budget_reached` or `interrupted`."""
        self.run_roles()
        self._save()
        self._close_environments()
        if not self.interrupted:
            self.records.finish(lambda: self.interrupted)
        self.learner.core.close()
        self.records.close()
        if self.interrupted:
            return "interrupted"
        self.records.write_results(self)
        return "budget_reached"

    def train_segment(self) -> str:
        """Train to the budget or until `pause`, with a record and a checkpoint at the end, and write no results.

        Return `interrupted` or `segment_over`; the run is of no further use.
        """
        self.run_roles()
        if not self.interrupted:
            self.records.flush()
        self._save()
        self.close()
        return "interrupted" if self.interrupted else "segment_over"

    def close(self) -> None:
        """Let go of the files and the environments; the run is of no further use."""
        self.learner.core.close()
        self.records.close()
        self._close_environments()

    def _close_environments(self) -> None:
        """Close those in this process: their engines would go on, and complain that their folders are gone."""
        if not self.remote:
            for collector in self.collectors:
                collector.env.close()

    def interrupt(self) -> None:
        """End the training early, with a checkpoint."""
        self._stop.ask()
        if self._reducer.size == 1 or self._is_finished():
            self.interrupted = True

    def run_roles(self) -> None:
        """Act and learn until the budget is reached or `interrupted` is set."""
        self.records.begin()
        if slow := processor.warning(self.config.precision, self.builder.device.type):
            self.records.announce(slow)
        if idle := without_effect(self.config):
            self.records.announce(idle)
        if self.node.replay:
            self.records.announce(str(self.node.replay))
        if self.remote:
            self.remote.open()
        self.runtime.run(
            Program(
                actors=self.actors,
                learner=Steps(self.learner.ready, self._learn),
                evaluator=self.records.evaluator(self._is_over),
                finished=self._is_finished,
                interrupted=lambda: self.interrupted,
                close=self._close,
                services={**self.node.services, **(self.remote.services if self.remote else {})},
            )
        )

    def _close(self) -> None:
        """End every wait of every role, and send environment workers away."""
        self.node.close()
        if self.remote:
            self.remote.close("finished" if self._is_finished() else "interrupted")

    def _learn(self) -> None:
        verdict = self._stop.decide(self.pause())
        self.interrupted |= verdict.interrupted
        self._segment_over = verdict.segment_over
        if any(verdict):
            return
        self.records.updated(self.learner.step())
        if self.learner.core.env_frames >= self._next_checkpoint:
            self._next_checkpoint += self.config.checkpoint.period_frames
            self._save()

    def _is_over(self) -> bool:
        return self.interrupted or self._is_finished()

    def _is_finished(self) -> bool:
        """Return whether the budget or the segment is over; several learners end a segment before the same update."""
        if self.learner.core.env_frames >= self.config.env_frames or self._segment_over:
            return True
        return self._reducer.size == 1 and self.pause()

    # State ----------------------------------------------------------------------------------------------------------

    @property
    def _checkpoints(self) -> Path:
        return checkpoint.rank_folder(self.directory, self.rank) if self.rank else self.directory / "checkpoints"

    def _save(self) -> None:
        """Save what the runtime promises to restore: everything in `serial`; the learner's side elsewhere."""
        with self.node.frozen():
            checkpoint.save(self._checkpoints, self.learner.core.updates, self._state())

    def _state(self) -> dict[str, Any]:
        state: dict[str, Any] = self.node.state_dict() | self.records.state_dict(self._next_checkpoint)
        state |= {"actor_restarts": self.actor_restarts, "marks": self.marks}
        if generator := self.runtime.generator:
            state["runtime"] = {"generator": generator_state(generator)}
            state["queue"] = self.node.waiting()
            state["collectors"] = [collector.state_dict() for collector in self.collectors]
            state["actors"] = [actor.state_dict() for actor in self.actors]
        return state

    def resume(self, adopt: Adopt | None = None, *, refusal: UserError | None = None) -> int | None:
        """Continue from the newest checkpoint that fits; return its updates, or None where training begins anew.

        `adopt` makes of its state the one to continue from. Nothing is left of one that loads only in part. Where none
        fits, what is there is put aside; or, without a change to any file, `refusal` is raised if there is one, or the
        one of an environment, or of a run that has finished there.
        """
        records = self._own_records
        found = Checkpoints(self.directory, records.identity, self._reducer.size, records.note)
        for state in found.newest_first():
            check_budget(self.config, self.directory, found.reached, int(state["config"]["env_frames"]))
            try:
                self._load(adopt(state) if adopt else state)
            except (OSError, MemoryError, torch.OutOfMemoryError):
                raise  # of this machine, and at this time
            except Exception as error:
                found.unfit(error)
                self._start_over()
                continue
            frames = self.learner.core.env_frames
            records.note(f"resumed at {frames:,} frames from {self.directory / 'checkpoints'}")
            return int(self.learner.core.updates)
        if refused := found.refusal or refusal or finished.kept(self.directory):
            raise refused
        aside = found.set_aside()
        why = "" if aside.exists() else "no checkpoint yet, beginning anew; "
        if curves := records.recorder.begin_anew(aside):
            records.note(f"{why}what was recorded before is in {curves}")
        if found.loaded and (self._distant_replay or self._shards):
            raise UserError(f"{self.directory}: no checkpoint could be loaded; start it again, from the beginning")
        return None

    def resume_at(self, updates: int, adopt: Adopt | None = None) -> None:
        """Continue from the checkpoint that rank 0 has chosen, as another rank. Raise UserError if it cannot."""
        folder = self._checkpoints
        try:
            state = checkpoint.load(folder, updates)
            self._load(adopt(state) if adopt else state)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError) as error:
            words = f"{type(error).__name__}: {error}".splitlines()[0]
            raise UserError(
                f"{folder}: checkpoint {updates} is of another layout ({words}); without this folder the run begins "
                "anew, and keeps what is in the other one"
            ) from None

    def _start_over(self) -> None:
        self.learner.core.close()
        self._own_records.start_over()
        self._assemble()

    def _load(self, state: dict[str, Any]) -> None:
        """Load `state`; the curves last, since loading them truncates `curves.jsonl`."""
        refill = self.node.load_state_dict(state)
        self._next_checkpoint = self.records.load_state_dict(state)
        self.actor_restarts = state.get("actor_restarts", 0)  # other ranks than 0 had none in former versions
        if generator := self.runtime.generator:
            set_generator_state(generator, state["runtime"]["generator"])
            self.node.load_waiting(state["queue"])
            for collector, saved in zip(self.collectors, state["collectors"], strict=True):
                collector.load_state_dict(saved)
            for actor, saved in zip(self.actors, state["actors"], strict=True):
                actor.load_state_dict(saved)
        else:
            self.params.restart_rounds()
            if self.collectors and not self.remote:
                self._make_actors()
        lost = self.records.continue_curves(state)
        for line in filter(None, (refill, lost)):
            self.records.announce(line)
