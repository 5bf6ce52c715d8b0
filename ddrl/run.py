"""Joins algorithm, topology and environment into one run; `ddrl.run_ray` does it on Ray."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ddrl import checkpoint, manifest, processor
from ddrl.acting import Builder, Generation
from ddrl.actors.unroll import UnrollCollector
from ddrl.calls import watched
from ddrl.config import RunConfig, fingerprint, load_run_config, to_json
from ddrl.coordinator.roles import Named, Program, Steps
from ddrl.coordinator.runtime_serial import SerialRuntime
from ddrl.coordinator.runtime_threads import ThreadsRuntime
from ddrl.coordinator.service import Door
from ddrl.evaluation import evaluate
from ddrl.handles import Reducer, Shards
from ddrl.learners.reduction import SingleLearner
from ddrl.learning import Learning, StopFlag
from ddrl.locks import locked
from ddrl.progress import Progress
from ddrl.record import Counts, make_recorder, write_curves, write_json
from ddrl.run_setting import Display, check_door, resolve_device
from ddrl.seeding import numpy_generator
from ddrl.serving import Serving
from ddrl.signals import stopping
from ddrl.types import Episode

if TYPE_CHECKING:
    from ddrl.coordinator.replay_host import RemoteReplay  # imports Ray


class Run:
    """One training run in its directory: builds the roles, trains, checkpoints, evaluates, writes the results.

    With `remote_actors` the actors are elsewhere, and this is the learner that leads: the only one, or rank 0.
    """

    def __init__(
        self,
        config: RunConfig,
        directory: Path,
        *,
        quiet: bool = False,
        display: Display | None = None,
        reducer: Reducer | None = None,
        remote_actors: bool = False,
        door: Door | None = None,
        replay: RemoteReplay | None = None,
        shards: Shards | None = None,
        identity: str | None = None,
    ) -> None:
        """`replay`, `shards`: where they are in processes of their own. `identity`: see `_identity`."""
        self.config = config
        self.directory = directory
        self.interrupted = False
        self.actor_restarts = 0
        self._reducer = reducer or SingleLearner()
        self._stop = StopFlag(self._reducer)
        self._own_identity = identity
        self.pause: Callable[[], bool] = lambda: False
        """Whether a segment of the training is over before its budget; of several learners, the lead's counts."""
        self._segment_over = False
        self.marks: dict[str, Any] = {}
        """Kept in its checkpoints for whoever leads the run."""
        self.builder = Builder(config, resolve_device(config.device))
        self.spec = self.builder.spec
        self._provenance = manifest.provenance()  # now: the checkout may move on while the run goes on
        self._history = [{"git_sha": self._provenance["git_sha"], "started": manifest.now(), "env_frames": 0}]
        self.learning = Learning(self.builder, self._reducer, lent_memory=remote_actors, remote=replay, shards=shards)
        self.params, self.queue, self.learner = self.learning.params, self.learning.queue, self.learning.learner
        self.parameter_count = self.learning.parameter_count
        self.recorder = make_recorder(config, directory, self.builder.tasks)
        self._progress: Display = display or Progress(config.env_frames, quiet=quiet)
        self.collectors: list[UnrollCollector] = []
        self.actors: list[Any] = []
        self.serving = self._serving(door) if door or config.topology.central.worker_processes else None
        if self.serving:
            self.collectors, self.actors = self.serving.collectors, self.serving.actors
        elif not remote_actors:
            self._take_on_actors()
        serial = config.topology.runtime == "serial"
        self.runtime = SerialRuntime(numpy_generator(config.seed, "interleaving")) if serial else ThreadsRuntime()
        self.recorder.gauges += self.learning.gauges
        self._next_checkpoint = config.checkpoint.period_frames
        self._next_evaluation = config.evaluation.period_frames
        self._num_evaluations = 0

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

    def _serving(self, door: Door | None) -> Serving:
        """The actors whose environments are in other processes."""

        def restarted() -> None:
            self.actor_restarts += 1

        return Serving(
            self.learning,
            door,
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
                self._evaluate(self.config.evaluation.final_episodes, lambda: self.interrupted)
        self.learner.core.close()
        self.recorder.close()
        if self.interrupted:
            return "interrupted"
        self._write_results()
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

    @property
    def _identity(self) -> str:
        """What a checkpoint must agree with to be continued: all but the budget, and the algorithm's version.

        A member of a population, whose hyperparameters change, is told what it must agree with.
        """
        if self._own_identity is not None:
            return self._own_identity
        without_budget = dataclasses.replace(self.config, env_frames=1)
        return f"{fingerprint(without_budget)}-v{self.builder.algorithm.VERSION}"

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
                evaluator=Steps(self._evaluation_is_due, self._evaluate_now),
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
        if self.learner.core.env_frames >= self._next_checkpoint:
            self._next_checkpoint += self.config.checkpoint.period_frames
            self._save()

    def _evaluation_is_due(self) -> bool:
        return self._next_evaluation is not None and self.learner.core.env_frames >= self._next_evaluation

    def _evaluate_now(self) -> None:
        period = self.config.evaluation.period_frames
        assert self._next_evaluation is not None and period is not None
        self._next_evaluation += period
        if not self._is_finished():  # the end has its own evaluation
            self._evaluate(self.config.evaluation.episodes, self._is_over)

    def _is_over(self) -> bool:
        return self.interrupted or self._is_finished()

    def _is_finished(self) -> bool:
        """Learners that share a batch end a segment where all have heard that it is over: before the next update."""
        if self.learner.core.env_frames >= self.config.env_frames or self._segment_over:
            return True
        return self._reducer.size == 1 and self.pause()

    def _evaluate(self, episodes: int, should_stop: Callable[[], bool]) -> None:
        counts, inference = self.counts, self.builder.inference()
        self.params.pull_newest(inference.network)
        self._num_evaluations += 1
        number, note = self._num_evaluations - 1, self._progress.note
        played = evaluate(self.builder, inference, number, episodes, should_stop=should_stop, note=note)
        if played is not None:
            self.recorder.evaluation(counts, played, by_task=len(self.builder.evaluated_tasks) > 1)

    # State ----------------------------------------------------------------------------------------------------------

    def _save(self) -> None:
        """Saves what the runtime promises to restore: everything in `serial`; the learner's side elsewhere."""
        with self.learning.frozen():
            checkpoint.save(self.directory / "checkpoints", self.learner.core.updates, self._state())

    def _state(self) -> dict[str, Any]:
        state: dict[str, Any] = self.learning.state_dict() | {
            "identity": self._identity,
            "recorder": self.recorder.state_dict(),
            "next": [self._next_checkpoint, self._next_evaluation, self._num_evaluations],
            "history": self._history,
            "actor_restarts": self.actor_restarts,
            "marks": self.marks,
        }
        if isinstance(self.runtime, SerialRuntime):
            state["runtime"] = self.runtime.state_dict()
            state["queue"] = self.learning.waiting()
            state["collectors"] = [collector.state_dict() for collector in self.collectors]
            state["actors"] = [actor.state_dict() for actor in self.actors]
        return state

    def resume(self, adopt: Callable[[dict[str, Any]], dict[str, Any]] | None = None) -> int | None:
        """Continues from the newest valid checkpoint; returns its updates, or None where there is none.

        `adopt` makes of its state the one to continue from.
        """
        folder = self.directory / "checkpoints"
        state = self._state_to_continue(folder)
        if state is None:
            self.recorder.restart()
            return None
        if adopt:
            state = adopt(state)
        if refill := self.learning.load_state_dict(state):
            self._progress.note(refill)
        if lost := self.recorder.load_state_dict(state["recorder"]):
            self._progress.note(lost)
        self._next_checkpoint, self._next_evaluation, self._num_evaluations = state["next"]
        self._history = [*state["history"], self._history[0] | {"env_frames": self.learner.core.env_frames}]
        self.actor_restarts = state.get("actor_restarts", 0)
        if isinstance(self.runtime, SerialRuntime):
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
        self._progress.note(f"resumed at {self.learner.core.env_frames:,} frames from {folder}")
        return int(self.learner.core.updates)

    def _state_to_continue(self, folder: Path) -> dict[str, Any] | None:
        """None where training starts anew; what the folder held until then is out of the way, and the user told why."""
        beside = self.learning.parts(self.directory)
        state, damaged = checkpoint.load_newest(folder, identity=self._identity, beside=beside)
        for line in damaged:
            self._progress.note(line)
        if state is not None and state["identity"] != self._identity:
            aside = checkpoint.set_aside(folder, state["identity"])
            self._progress.note(f"the configuration or the algorithm has changed: starting anew; old state in {aside}")
            return None
        if state is None and checkpoint.holds_any(folder):  # they would count as newer than the checkpoints to come
            aside = checkpoint.set_aside(folder, "unusable")
            self._progress.note(f"no checkpoint can be continued: starting anew; old files in {aside}")
        return state

    @property
    def resumes(self) -> int:
        """How often the run was continued from a checkpoint."""
        return len(self._history) - 1

    def _write_results(self) -> None:
        write_json(
            self.directory / "run.json",
            {
                "config": to_json(self.config),
                "fingerprint": fingerprint(self.config),
                "algorithm_version": self.builder.algorithm.VERSION,
                "protocol": self.spec.protocol,
                "evaluated_tasks": list(self.builder.evaluated_tasks) if len(self.builder.evaluated_tasks) > 1 else [],
                **self._provenance,
                "started": self._history[0]["started"],
                "finished": manifest.now(),
                "seconds": round(self.recorder.seconds, 1),
                **self.counts.__dict__,
                "episodes": self.recorder.episodes,
                "resumes": self.resumes,
                "actor_restarts": self.actor_restarts,
                "history": self._history,
                "exit_reason": "budget_reached",
                "peak_memory_mib": manifest.peak_memory_mib(),
                "parameters": self.parameter_count,
            },
        )
        write_curves(self.directory)  # last: a run with this file is whole


def train(
    config: RunConfig, directory: Path, *, quiet: bool = False, wait: float = 0.0, door: Door | None = None
) -> str:
    """Trains or resumes in `directory`; returns the exit reason.

    With a `door`, environments are stepped by workers that come through it. Raises `UserError` when another process is
    at it, and still is after `wait` seconds.

    `config.json` in there says what is trained, once all that could refuse the configuration has been built; one that
    says so already stays as it is.
    """
    if door:
        check_door(config, door)
    directory.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    with locked(directory, wait), watched():  # before anything is written
        path = directory / "config.json"
        is_stated = path.exists() and load_run_config(path) == config

        def state() -> None:
            if not is_stated:
                write_json(path, to_json(config))

        if config.population:
            from ddrl.population.controller import train_population  # only where it is used

            return train_population(config, directory, quiet=quiet, accepted=state)
        if config.topology.runtime == "ray":
            from ddrl.run_ray import train_with_ray  # Ray is slow to import, so only where it is used

            return train_with_ray(config, directory, quiet=quiet, accepted=state)
        run = Run(config, directory, quiet=quiet, door=door)
        state()
        with stopping(run.interrupt, directory):
            run.resume()
            return run.train()
