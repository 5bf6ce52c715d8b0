"""One training run: algorithm, topology and environment joined, and carried out by the runtime that it is handed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ddrl.actors.unroll import UnrollCollector
from ddrl.coordinator.program import Named, Program, Runtime, Steps
from ddrl.errors import UserError
from ddrl.inference.endpoint import Endpoint
from ddrl.interfaces import Reducer, Shards
from ddrl.learners.all_reduce import SingleLearner
from ddrl.system import processor
from ddrl.training.builder import Builder, Generation
from ddrl.training.config.run_config import RunConfig
from ddrl.training.device import Display, resolve_device
from ddrl.training.evaluation import Evaluations
from ddrl.training.learner_node import LearnerNode, StopFlag
from ddrl.training.records import checkpoint, finished, manifest
from ddrl.training.records.checkpoint_layout import SCHEMA
from ddrl.training.records.identity import identity_of
from ddrl.training.records.progress import Progress
from ddrl.training.records.recorder import Counts, Recorder, make_recorder
from ddrl.training.records.resume import Checkpoints, check_budget, next_due
from ddrl.training.remote_actors import RemoteActors
from ddrl.types import Episode

if TYPE_CHECKING:
    from ddrl.runtimes.ray.replay_process import RemoteReplay  # imports Ray


class Run:
    """One training run in its directory: builds the roles, trains, checkpoints, evaluates, writes the results.

    With `remote_actors` the actors are elsewhere, and this is the learner that leads: the only one, or rank 0.
    """

    def __init__(
        self,
        config: RunConfig,
        directory: Path,
        *,
        make_runtime: Callable[[], Runtime],
        quiet: bool = False,
        display: Display | None = None,
        reducer: Reducer | None = None,
        remote_actors: bool = False,
        endpoint: Endpoint | None = None,
        replay: RemoteReplay | None = None,
        shards: Shards | None = None,
        identity: str | None = None,
    ) -> None:
        """`make_runtime`: what carries its roles out; another one where a checkpoint was loaded only in part.

        `replay`, `shards`: where they are in processes of their own.

        `identity`: the name that its checkpoints go by, of a population's member, whose hyperparameters change.
        """
        self.config = config
        self.directory = directory
        self.interrupted = False
        self.actor_restarts = 0
        self._reducer = reducer or SingleLearner()
        self._stop = StopFlag(self._reducer)
        self._identity = identity_of(config, directory)
        if identity is not None:
            self._identity = replace(self._identity, name=identity, by_name=True)
        self.pause: Callable[[], bool] = lambda: False
        """Whether a segment of the training is over before its budget; of several learners, the lead's counts."""
        self._segment_over = False
        self.marks: dict[str, Any] = {}
        """Kept in its checkpoints for whoever leads the run."""
        self.builder = Builder(config, resolve_device(config.device))
        self.spec = self.builder.spec
        self._provenance = manifest.provenance()  # now: the checkout may move on while the run goes on
        self._history = [{"git_sha": self._provenance["git_sha"], "started": manifest.now(), "env_frames": 0}]
        self._progress: Display = display or Progress(config.env_frames, quiet=quiet)
        self.collectors: list[UnrollCollector] = []
        self.actors: list[Any] = []
        self._remote_actors, self._endpoint, self._remote_replay, self._shards = remote_actors, endpoint, replay, shards
        self._make_runtime = make_runtime
        self._assemble()
        self._keep_records(make_recorder(config, directory, self.builder.tasks))
        self._next_checkpoint = config.checkpoint.period_frames

    def _keep_records(self, recorder: Recorder) -> None:
        """What is measured and evaluated of the learner's side that has just been assembled."""
        self.recorder = recorder
        self.recorder.gauges = self.learning.gauges
        self.evaluations = Evaluations(
            self.builder, self.params, self.recorder, lambda: self.counts, lambda line: self._progress.note(line)
        )

    def _assemble(self) -> None:
        """The learner's side, actors and runtime as they begin; again where a checkpoint was loaded only in part."""
        config, lent = self.config, self._remote_actors
        self.learning = LearnerNode(
            self.builder, self._reducer, lent_memory=lent, remote=self._remote_replay, shards=self._shards
        )
        self.params, self.queue, self.learner = self.learning.params, self.learning.queue, self.learning.learner
        self.parameter_count = self.learning.parameter_count
        served = self._endpoint or config.topology.central.worker_processes
        self.serving = self._serving(self._endpoint) if served else None
        if self.serving:
            self.collectors, self.actors = self.serving.collectors, self.serving.actors
        elif not self._remote_actors:
            self._take_on_actors()
        self.runtime = self._make_runtime()

    def _take_on_actors(self) -> None:
        """Those whose environments are in this process; again where a run that did not save them is continued."""
        for collector in self.collectors:
            collector.env.close()
        builder, generation = self.builder, Generation(self.resumes)
        self.collectors = [
            builder.collector(index, self._on_episode, generation=generation, inference=self.learning.central)
            for index in range(self.config.topology.num_actors)
        ]
        actors = [builder.actor(collector, self.params, self.queue) for collector in self.collectors]
        self.actors = [
            Named(actor, builder.describe("actor", index, generation))
            for index, actor in enumerate(self.learning.limited("actors", actors))
        ]

    def _serving(self, endpoint: Endpoint | None) -> RemoteActors:
        """The actors whose environments are in other processes."""

        def restarted() -> None:
            self.actor_restarts += 1

        return RemoteActors(
            self.learning,
            endpoint,
            self._on_episode,
            rank=self._reducer.rank,
            resumes=lambda: self.resumes,
            note=lambda line: self._progress.note(line),
            restarted=restarted,
        )

    def _on_episode(self, episode: Episode) -> None:
        self.recorder.episode(episode)

    # What the runtime runs ------------------------------------------------------------------------------------------

    def train(self) -> str:
        """Trains to the budget and writes the results; returns the exit reason, `budget_reached` or `interrupted`."""
        with self._progress:
            self.run_roles()
            self._save()
            self._close_environments()
            if not self.interrupted:
                self.recorder.flush(self.counts)
                self.evaluations.finish(lambda: self.interrupted)
        self.learner.core.close()
        self.recorder.close()
        if self.interrupted:
            return "interrupted"
        finished.write(self, self._provenance, self._history)
        self._progress.done(self.counts, self.recorder.latest)
        return "budget_reached"

    def train_segment(self) -> str:
        """Trains to the budget or until `pause`, with a record and a checkpoint at the end, and writes no results.

        Returns the exit reason as `train` does; the run is of no further use.
        """
        with self._progress:
            self.run_roles()
            if not self.interrupted:
                self.recorder.flush(self.counts)
            self._save()
        self.close()
        return "interrupted" if self.interrupted else "segment_over"

    def close(self) -> None:
        """Lets go of the files and the environments; the run is of no further use."""
        self.learner.core.close()
        self.recorder.close()
        self._close_environments()

    def _close_environments(self) -> None:
        """Those in this process: engines of their own would go on, and complain that their folders are gone."""
        if not self.serving:
            for collector in self.collectors:
                collector.env.close()

    def interrupt(self) -> None:
        """Ends the training early, with a checkpoint."""
        self._stop.ask()
        if self._reducer.size == 1 or self._is_finished():
            self.interrupted = True

    def run_roles(self) -> None:
        """Acts and learns until the budget is reached or `interrupted` is set."""
        if slow := processor.warning(self.config.precision, self.builder.device.type):
            self._progress.note(slow)
        if self.learning.replay:
            self._progress.note(str(self.learning.replay))
        if self.serving:
            self.serving.open()
        self.runtime.run(
            Program(
                actors=self.actors,
                learner=Steps(self.learner.ready, self._learn),
                evaluator=Steps(self.evaluations.is_due, lambda: self.evaluations.step(self._is_over)),
                finished=self._is_finished,
                interrupted=lambda: self.interrupted,
                close=self._close,
                services={**self.learning.services, **(self.serving.services if self.serving else {})},
            )
        )

    def _close(self) -> None:
        """Ends every wait of every role, and sends environment workers away."""
        self.learning.close()
        if self.serving:
            self.serving.close("finished" if self._is_finished() else "interrupted")

    @property
    def counts(self) -> Counts:
        """Frames, steps and updates so far."""
        return self.learning.counts

    def _learn(self) -> None:
        verdict = self._stop.decide(self.pause())
        self.interrupted |= verdict.interrupted
        self._segment_over = verdict.segment_over
        if any(verdict):
            return
        metrics = self.learner.step()
        self.recorder.update(self.counts, metrics)
        self._progress.show(self.counts, self.recorder.latest)
        self.evaluations.keep_version()
        if self.learner.core.env_frames >= self._next_checkpoint:
            self._next_checkpoint += self.config.checkpoint.period_frames
            self._save()

    def _is_over(self) -> bool:
        return self.interrupted or self._is_finished()

    def _is_finished(self) -> bool:
        """Learners that share a batch end a segment where all have heard that it is over: before the next update."""
        if self.learner.core.env_frames >= self.config.env_frames or self._segment_over:
            return True
        return self._reducer.size == 1 and self.pause()

    # State ----------------------------------------------------------------------------------------------------------

    def _save(self) -> None:
        """Saves what the runtime promises to restore: everything in `serial`; the learner's side elsewhere."""
        with self.learning.frozen():
            checkpoint.save(self.directory / "checkpoints", self.learner.core.updates, self._state())

    def _state(self) -> dict[str, Any]:
        state: dict[str, Any] = self.learning.state_dict() | self._identity.recorded()
        state |= {
            "schema": SCHEMA,
            "recorder": self.recorder.state_dict(),
            "next": [self._next_checkpoint, *self.evaluations.state_dict()],
            "final_versions": self.evaluations.versions.state_dict(),
            "history": self._history,
            "actor_restarts": self.actor_restarts,
            "marks": self.marks,
        }
        if self.runtime.saves_roles:
            state["runtime"] = self.runtime.state_dict()
            state["queue"] = self.learning.waiting()
            state["collectors"] = [collector.state_dict() for collector in self.collectors]
            state["actors"] = [actor.state_dict() for actor in self.actors]
        return state

    def resume(
        self,
        adopt: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        *,
        or_else: Callable[[], UserError | None] = lambda: None,
    ) -> int | None:
        """Continues from the newest checkpoint that fits; returns its updates, or None where training begins anew.

        `adopt` makes of its state the one to continue from. Nothing is left of one that loads only in part. Where none
        fits, what is there is put aside; or, without a change to any file, what `or_else` returns is raised, as where
        a run has finished.
        """
        found = Checkpoints(self.directory, self._identity, self._reducer.size, self._progress.note)
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
            self._progress.note(f"resumed at {frames:,} frames from {self.directory / 'checkpoints'}")
            return int(self.learner.core.updates)
        if refusal := found.refusal or or_else() or finished.kept(self.directory):
            raise refusal
        if curves := self.recorder.begin_anew(found.set_aside()):
            self._progress.note(f"what was recorded before is in {curves}")
        if found.loaded and (self._remote_replay or self._shards):
            raise UserError(f"{self.directory}: no checkpoint could be loaded; start it again, from the beginning")
        return None

    def _start_over(self) -> None:
        self.learner.core.close()
        self._history = [self._history[-1] | {"env_frames": 0}]
        self._assemble()
        self._keep_records(self.recorder)

    def _load(self, state: dict[str, Any]) -> None:
        """The records last, since that cuts a file."""
        refill = self.learning.load_state_dict(state)
        frames = self.learner.core.env_frames
        self._next_checkpoint, *evaluations = next_due(self.config, state, frames)
        self.evaluations.load_state_dict(evaluations, state.get("final_versions", []))
        self._history = [*state["history"], self._history[-1] | {"env_frames": frames}]
        self.actor_restarts = state["actor_restarts"]
        if self.runtime.saves_roles:
            self.runtime.load_state_dict(state["runtime"])
            if state["queue"]:
                self.queue.load_state_dict(state["queue"])
            for part, saved in zip(
                [*self.collectors, *self.actors], [*state["collectors"], *state["actors"]], strict=True
            ):
                part.load_state_dict(saved)
        else:
            self.params.restart_rounds()
            if self.collectors and not self.serving:
                self._take_on_actors()
        lost = self.recorder.load_state_dict(state["recorder"], frames)
        for line in filter(None, (refill, lost)):
            self._progress.note(line)

    @property
    def resumes(self) -> int:
        """How often the run was continued from a checkpoint."""
        return len(self._history) - 1
