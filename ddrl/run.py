"""Joins algorithm, topology and environment into one run; the only file that sees both sides."""

from __future__ import annotations

import dataclasses
import fcntl
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ddrl import algorithms, checkpoint, manifest
from ddrl.actors import evaluator
from ddrl.actors.policy import LocalPolicy
from ddrl.actors.unroll import UnrollCollector
from ddrl.config import RunConfig, fingerprint, to_json
from ddrl.coordinator.gate import Gate
from ddrl.coordinator.parameters import ParameterServer
from ddrl.coordinator.roles import Program
from ddrl.coordinator.runtime_serial import SerialRuntime
from ddrl.coordinator.runtime_threads import ThreadsRuntime
from ddrl.environments import registry
from ddrl.errors import UserError
from ddrl.learners.reduction import SingleLearner
from ddrl.progress import Progress
from ddrl.record import Counts, Recorder, write_curves, write_json
from ddrl.replay.queue import UnrollQueue
from ddrl.seeding import numpy_generator, seed_for, torch_generator


class Run:
    """One training run in its directory: builds the roles, trains, checkpoints, evaluates, writes the results."""

    def __init__(self, config: RunConfig, directory: Path, *, quiet: bool = False) -> None:
        self.config = config
        self.directory = directory
        self.interrupted = False
        self.device = resolve_device(config.device)
        self.algorithm = algorithms.load(config.algorithm)
        self.spec = registry.spec_for(**config.environment)
        self.algorithm.check(config.hyperparameters, self.spec)
        self._provenance = manifest.provenance()  # now: the checkout may move on while the run goes on
        self._history = [{"git_sha": self._provenance["git_sha"], "started": _now(), "env_frames": 0}]
        self._build()
        self.recorder = Recorder(
            directory, period_frames=config.recording.period_frames, tensorboard=config.recording.tensorboard
        )
        self._progress = Progress(config.env_frames, quiet=quiet)
        self._next_checkpoint = config.checkpoint.period_frames
        self._next_evaluation = config.evaluation.period_frames
        self._num_evaluations = 0

    def _build(self) -> None:
        config, topology = self.config, self.config.topology
        network = self._new_network()
        self.parameter_count = sum(parameter.numel() for parameter in network.parameters())
        max_lag = {"asynchronous": None, "synchronous": 0, "bounded_lag": topology.max_policy_lag}[topology.schedule]
        hyperparameters, columns = config.hyperparameters, topology.num_actors * topology.envs_per_actor
        gate = Gate(max_lag, columns, hyperparameters.fresh_columns, hyperparameters.first_update)
        self.params = ParameterServer(network, gate, delay=topology.parameter_delay)
        self.queue = UnrollQueue(
            capacity=topology.queue_capacity, ordered_actors=None if max_lag is None else topology.num_actors
        )
        self.learner = self.algorithm.Learner(
            hyperparameters,
            network,
            self.params,
            self.queue,
            frame_skip=self.spec.frame_skip,
            device=self.device,
            precision=config.precision,
            num_threads=topology.learner_threads,
            generator=numpy_generator(config.seed, "replay"),
            reducer=SingleLearner(),
        )
        self.collectors = [self._make_collector(index) for index in range(topology.num_actors)]
        self.actors = [
            self.algorithm.Actor(config.hyperparameters, collector, self.params, self.queue)
            for collector in self.collectors
        ]
        self.runtime = (
            SerialRuntime(numpy_generator(config.seed, "interleaving"))
            if topology.runtime == "serial"
            else ThreadsRuntime()
        )

    def _new_network(self) -> nn.Module:
        generator = torch_generator(self.config.seed, "network")
        network: nn.Module = self.algorithm.make_network(self.spec, self.config.hyperparameters, generator)
        return network.to(self.device)

    def _make_collector(self, index: int) -> UnrollCollector:
        topology = self.config.topology
        env = self._make_env("actor", index, topology.envs_per_actor, topology.env_threads)
        policy = self._make_policy("actor", index, topology.envs_per_actor)
        return UnrollCollector(env, policy, actor=index, on_episode=self._on_episode)

    def _make_env(self, role: str, index: int, num_envs: int, num_threads: int = 1) -> Any:
        seed = seed_for(self.config.seed, f"{role}-environment", index)
        return registry.make(**self.config.environment, num_envs=num_envs, seed=seed, num_threads=num_threads)

    def _make_policy(self, role: str, index: int, batch_size: int) -> LocalPolicy:
        generator = torch_generator(self.config.seed, f"{role}-policy", index)
        return LocalPolicy(
            self._new_network(), batch_size, generator, device=self.device, precision=self.config.precision
        )

    def _on_episode(self, episode_return: float, length: int) -> None:
        self.recorder.episode(episode_return, length)

    # What the runtime runs ------------------------------------------------------------------------------------------

    def train(self) -> str:
        """Trains to the budget and writes the results; returns the exit reason, `budget_reached` or `interrupted`."""
        self._resume()
        with self._progress:
            self.run_roles()
            self._save()
            if not self.interrupted:
                self.recorder.flush(self.counts)
                self._evaluate(self.config.evaluation.final_episodes, lambda: self.interrupted)
        self.learner.close()
        self.recorder.close()
        if self.interrupted:
            return "interrupted"
        self._write_results()
        self._progress.done(self.counts, self.recorder.latest)
        return "budget_reached"

    @property
    def _identity(self) -> str:
        """What a checkpoint must agree with to be continued: all but the budget, and the algorithm's version."""
        without_budget = dataclasses.replace(self.config, env_frames=1)
        return f"{fingerprint(without_budget)}-v{self.algorithm.VERSION}"

    def run_roles(self) -> None:
        """Acts and learns until the budget is reached or `interrupted` is set."""
        self.runtime.run(
            Program(
                actors=self.actors,
                learner=_Steps(self.learner.ready, self._learn),
                evaluator=_Steps(self._evaluation_is_due, self._evaluate_now),
                finished=self._is_finished,
                interrupted=lambda: self.interrupted,
                close=self._close,
            )
        )

    @property
    def counts(self) -> Counts:
        """Frames, steps and updates so far."""
        return Counts(self.learner.env_frames, self.learner.agent_steps, self.learner.updates)

    def _learn(self) -> None:
        metrics = self.learner.step()
        self.recorder.update(self.counts, metrics)
        self._progress.show(self.counts, self.recorder.latest)
        if self.learner.env_frames >= self._next_checkpoint:
            self._next_checkpoint += self.config.checkpoint.period_frames
            self._save()

    def _evaluation_is_due(self) -> bool:
        return self._next_evaluation is not None and self.learner.env_frames >= self._next_evaluation

    def _evaluate_now(self) -> None:
        period = self.config.evaluation.period_frames
        assert self._next_evaluation is not None and period is not None
        self._next_evaluation += period
        if not self._is_finished():  # the end has its own evaluation
            self._evaluate(self.config.evaluation.episodes, self._is_over)

    def _is_over(self) -> bool:
        return self.interrupted or self._is_finished()

    def _is_finished(self) -> bool:
        return bool(self.learner.env_frames >= self.config.env_frames)

    def _evaluate(self, episodes: int, should_stop: Callable[[], bool]) -> None:
        counts, index = self.counts, self._num_evaluations
        self._num_evaluations += 1
        columns = evaluator.num_envs(episodes)
        policy = self._make_policy("evaluation", index, columns)
        policy.version = self.params.pull_newest(policy.network)
        env = self._make_env("evaluation", index, columns)
        try:
            played = evaluator.play(env, policy, episodes, should_stop=should_stop)
        finally:
            env.close()
        if len(played) == episodes:
            self.recorder.evaluation(counts, [e.episode_return for e in played], [e.length for e in played])

    def _close(self) -> None:
        self.queue.close()
        self.params.close()

    # State ----------------------------------------------------------------------------------------------------------

    def _save(self) -> None:
        """Saves what the runtime promises to restore: everything in `serial`; the learner's side in `threads`."""
        state: dict[str, Any] = {
            "identity": self._identity,
            "learner": self.learner.state_dict(),
            "params": self.params.state_dict(),
            "recorder": self.recorder.state_dict(),
            "next": [self._next_checkpoint, self._next_evaluation, self._num_evaluations],
            "history": self._history,
        }
        if isinstance(self.runtime, SerialRuntime):
            state["runtime"] = self.runtime.state_dict()
            state["queue"] = self.queue.state_dict()
            state["collectors"] = [collector.state_dict() for collector in self.collectors]
        checkpoint.save(self.directory / "checkpoints", self.learner.updates, state)

    def _resume(self) -> None:
        """Continues from the newest valid checkpoint, if there is one."""
        state, damaged = checkpoint.load_newest(self.directory / "checkpoints")
        for line in damaged:
            self._progress.note(line)
        if state is not None and state["identity"] != self._identity:
            aside = checkpoint.set_aside(self.directory / "checkpoints", state["identity"])
            self._progress.note(f"the configuration or the algorithm has changed: starting anew; old state in {aside}")
            state = None
        if state is None:
            self.recorder.restart()
            return
        self.learner.load_state_dict(state["learner"])
        self.params.load_state_dict(state["params"])
        self.recorder.load_state_dict(state["recorder"])
        self._next_checkpoint, self._next_evaluation, self._num_evaluations = state["next"]
        self._history = [*state["history"], self._history[0] | {"env_frames": self.learner.env_frames}]
        if isinstance(self.runtime, SerialRuntime):
            self.runtime.load_state_dict(state["runtime"])
            self.queue.load_state_dict(state["queue"])
            for collector, saved in zip(self.collectors, state["collectors"], strict=True):
                collector.load_state_dict(saved)
        else:
            self.params.restart_rounds()
        self._progress.note(f"resumed at {self.learner.env_frames:,} frames from {self.directory / 'checkpoints'}")

    def _write_results(self) -> None:
        write_json(
            self.directory / "run.json",
            {
                "config": to_json(self.config),
                "fingerprint": fingerprint(self.config),
                "algorithm_version": self.algorithm.VERSION,
                "protocol": self.spec.protocol,
                **self._provenance,
                "started": self._history[0]["started"],
                "finished": _now(),
                "seconds": round(self.recorder.seconds, 1),
                **self.counts.__dict__,
                "episodes": self.recorder.episodes,
                "resumes": len(self._history) - 1,
                "history": self._history,
                "exit_reason": "budget_reached",
                "peak_memory_mib": manifest.peak_memory_mib(),
                "parameters": self.parameter_count,
            },
        )
        write_curves(self.directory)  # last: a run with this file is whole


class _Steps:
    """A role made of two functions."""

    def __init__(self, ready: Any, step: Any) -> None:
        self.ready = ready
        self.step = step


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def resolve_device(name: str) -> torch.device:
    """`auto`: the GPU where there is one. Raises `UserError` for cuda without a GPU."""
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("key 'device': cuda was asked for, but torch finds no GPU; allowed here: auto, cpu")
    return torch.device("cuda" if name == "cuda" or (name == "auto" and torch.cuda.is_available()) else "cpu")


def train(config: RunConfig, directory: Path, *, quiet: bool = False) -> str:
    """Trains or resumes in `directory`; returns the exit reason. Raises `UserError` when another process is at it."""
    directory.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    with _locked(directory):
        run = Run(config, directory, quiet=quiet)

        def stop(_signal: int, _frame: Any) -> None:
            run.interrupted = True

        before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            return run.train()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Keeps two processes out of one run directory; the system releases the lock of a dead holder."""
    with (directory / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{directory}: another process is training in this run directory") from None
        yield
