"""The parts of a run, each measured alone: simulation, inference, training."""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

from ddrl.actors.unroll import UnrollCollector
from ddrl.bench.processes import descendants, spent
from ddrl.coordinator.shared_parameters import LiveParameters
from ddrl.interfaces import Hyperparameters
from ddrl.replay.prefetch import Prefetch
from ddrl.replay.prioritized import PrioritizedReplay
from ddrl.replay.queue import UnrollQueue
from ddrl.replay.replay_config import with_replay
from ddrl.runtimes.local import local_runtime
from ddrl.training.config.run_config import RunConfig
from ddrl.training.config.topology import Topology
from ddrl.training.device import resolve_device
from ddrl.training.run import Run
from ddrl.types import Unroll

FAR = 10**9
WARM_UP_CALLS = 3


@dataclass(frozen=True)
class PartSpeed:
    """A part alone: CPU seconds per fresh agent step, and fresh frames per second.

    All threads count, and all processes that this one started, such as the games of ViZDoom.
    """

    cpu_seconds_per_step: float
    frames_per_second: float


@dataclass(frozen=True)
class Parts:
    """All parts."""

    simulation: PartSpeed
    inference: PartSpeed
    training: PartSpeed
    bound: float
    """Frames per second if all cores did nothing but the parts; NaN if a GPU trains."""


def alone(config: RunConfig) -> RunConfig:
    """Return the configuration reduced to what its parts depend on; topologies with the same parts share it.

    The learning rate is almost 0, so that thousands of updates with one batch do not change the network.
    """
    hyperparameters: Any = config.hyperparameters
    topology = config.topology
    apart = topology.runtime == "ray" and resolve_device(config.device).type != "cpu"  # Ray's actors act on the CPU
    return replace(
        config,
        topology=Topology(
            runtime="ray" if apart else "serial",
            num_actors=1,
            envs_per_actor=topology.envs_per_actor,
            env_threads=topology.env_threads,
        ),
        hyperparameters=replace(hyperparameters, optimizer=replace(hyperparameters.optimizer, learning_rate=1e-12)),
    )


def measure_parts(config: RunConfig, seconds: float) -> Parts:
    """Measure each part for a third of `seconds`, on one thread and on the device on which the run does it."""
    training = alone(config)
    acting = replace(training, device="cpu") if training.topology.runtime == "ray" else training
    with ExitStack() as stack:
        run = stack.enter_context(quiet_run(acting))
        collector = run.collectors[0]
        assert isinstance(collector, UnrollCollector), "parts are measured where steps are arrays"
        env, policy, skip = collector.env, collector.policy, run.spec.frame_skip
        step = env.reset()
        actions = cycle([policy.act(step).action.numpy() for _ in range(16)])
        simulated = _time(lambda: env.step(next(actions)), env.num_envs, skip, seconds / 3)
        inferred = _time(lambda: policy.act(step), env.num_envs, skip, seconds / 3)
        learning = run if acting is training else stack.enter_context(quiet_run(training))
        if config.system.moves == "gradients":
            work, steps = _applied(run, learning)
        else:
            batch, steps = (_drawn if config.system.store == "prioritized" else _fresh)(run)
            learner: Any = learning.learner
            work = partial(learner.update, batch)
        trained = _time(work, steps, skip, seconds / 3)
    cost = sum(part.cpu_seconds_per_step for part in (simulated, inferred, trained))
    on_cpu = resolve_device(training.device).type == "cpu"
    bound = skip * len(os.sched_getaffinity(0)) / cost if on_cpu else math.nan
    return Parts(simulated, inferred, trained, bound)


def fresh_share(hyperparameters: Hyperparameters) -> float:
    """Return fresh steps of an update / steps of its batch: below 1 if steps are replayed or traversed again."""
    updates_per_fresh_batch = hyperparameters.first_update(FAR) / FAR
    replayed_as_well = hyperparameters.fresh_columns / hyperparameters.batch_size
    return replayed_as_well / updates_per_fresh_batch


@contextmanager
def quiet_run(config: RunConfig, directory: Path | None = None) -> Iterator[Run]:
    """Yield a run in this process, and close it afterwards; without `directory`, what it writes is removed."""
    with tempfile.TemporaryDirectory() as temporary:
        run = Run(config, directory or Path(temporary), make_runtime=local_runtime(config))
        try:
            yield run
        finally:
            run.learner.core.close()
            run.recorder.close()
            for collector in run.collectors:
                collector.env.close()


def _applied(acting: Run, learning: Run) -> tuple[Callable[[], object], float]:
    """Return what an actor that computes gradients does with a real unroll, and the unroll's steps."""
    collector = acting.collectors[0]
    actor: Any = acting.builder.actor(collector, learning.params, learning.queue)
    collector.policy.pull(learning.params, 0)
    unroll = collector.collect(acting.config.hyperparameters.unroll_length)
    while actor.learn(unroll) is None:  # it has a replay of its own, which must fill first
        unroll = collector.collect(acting.config.hyperparameters.unroll_length)
    shared = learning.params
    assert isinstance(shared, LiveParameters)
    return lambda: shared.apply(actor.learn(unroll)), int(unroll.valid.sum())


def _fresh(run: Run) -> tuple[Unroll, float]:
    """Return a real batch of fresh columns, and how many fresh steps an update with it counts for."""
    hyperparameters, queue = run.config.hyperparameters, UnrollQueue(capacity=FAR)
    actor = run.builder.actor(run.collectors[0], run.params, queue)
    while not queue.can_sample(hyperparameters.batch_size):
        actor.step()
    batch = queue.sample(hyperparameters.batch_size)
    return batch, int(batch.valid.sum()) * fresh_share(hyperparameters)


def _drawn(run: Run) -> tuple[Any, float]:
    """Return a real batch from a replay, and the fresh steps that go with it; NaN if the learner is not limited."""
    while not run.learner.ready():
        run.actors[0].step()
    hyperparameters = run.config.hyperparameters
    assert isinstance(run.queue, PrioritizedReplay | Prefetch)
    return run.queue.sample(hyperparameters.batch_size), with_replay(hyperparameters).fresh_steps or math.nan


def _time(work: Callable[[], object], steps: float, frame_skip: int, seconds: float) -> PartSpeed:
    """Time `work`, which counts for `steps` agent steps, by repeating it for `seconds` after a short warm-up."""
    started = time.perf_counter()
    for _ in range(WARM_UP_CALLS):
        work()
        if time.perf_counter() - started > seconds:
            break
    others = descendants()
    calls, cpu, wall = 0, time.process_time(), time.perf_counter()
    while not calls or time.perf_counter() - wall < seconds:
        work()
        calls += 1
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    cpu += spent(others, descendants())
    return PartSpeed(cpu / (calls * steps), calls * steps * frame_skip / wall)
