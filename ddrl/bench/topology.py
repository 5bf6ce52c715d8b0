"""A whole topology measured in a window of time: its speed, its waits and its CPU time.

Speed and lag are those that the learner recorded, so they mean the same in every runtime.
"""

from __future__ import annotations

import itertools
import math
import os
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import torch

from ddrl.bench.parts import Parts, PartSpeed, quiet_run
from ddrl.bench.processes import family, spent
from ddrl.errors import UserError
from ddrl.replay.replay_config import with_replay
from ddrl.system.wait_clock import WaitClock
from ddrl.training.builder import Builder
from ddrl.training.config.run_config import RunConfig
from ddrl.training.records.recorder import read_curves
from ddrl.training.run import Run

if TYPE_CHECKING:
    from ddrl.runtimes.ray.messages import Status

POLL_SECONDS = 0.05
LONGEST = 10
"""The number of times its seconds that a window may last to see enough batches."""
START_SECONDS = 120.0
"""Time for the first batch, in addition to `LONGEST` windows."""
ENDING_SECONDS = 60.0
"""Time for the roles to end."""
ENDLESS_FRAMES = 2**60
LAP_BATCHES = 1024
"""The longest pattern of fresh batches that is looked for."""


def _busy() -> float:
    """Return CPU seconds of all processes on this process's cores, without idling and waiting."""
    times = psutil.cpu_times(percpu=True)
    idle = ("idle", "iowait", "guest", "guest_nice")  # user time includes guests already
    cores = [times[core]._asdict() for core in os.sched_getaffinity(0)]
    return float(sum(value for core in cores for name, value in core.items() if name not in idle))


@dataclass(frozen=True)
class Look:
    """The state of a run at a moment; waits are seconds since its beginning, summed over all that wait."""

    frames: int
    """Frames that the learner consumed."""
    made: int
    """Frames that actors made."""
    actors_waited: float
    """Waits of actors for room in the queue, and for parameters as the schedule demands."""
    sample_waited: float
    """Waits of the learner for unrolls."""
    learning: float | None = None
    """Seconds of the learner's turns, in runtime serial."""
    environments_waited: float | None = None
    """Waits of actors' environments for actions, where they are measured (central inference)."""
    cpu: dict[int, float] = field(default_factory=family)
    busy: float = field(default_factory=_busy)
    wall: float = field(default_factory=time.perf_counter)


@dataclass(frozen=True)
class Repeat:
    """The measurements of one topology in one repeat."""

    simulation: PartSpeed
    inference: PartSpeed
    training_part: PartSpeed
    bound: float
    """Frames per second if all cores did nothing but the parts."""
    rollout: float
    """Frames per second that the actors made."""
    training: float
    """Fresh frames per second that the learner consumed: the number to compare between systems."""
    ratio: float
    """training / bound."""
    duty: dict[str, float]
    """Fraction of the wall-clock time in which the learner, or an actor on average, did not wait for another role; with
    central inference also that in which an actor's environments did not wait for actions. In runtime serial, where
    roles take turns, the fraction that a role had."""
    cpu_utilisation: float
    """CPU seconds of all processes of the run / (wall-clock x cores)."""
    policy_lag_mean: float
    others: float
    """Fraction of the cores' time that other processes took."""


class Window:
    """A window of time that opens after a warm-up and closes after `seconds`, or later to see enough batches."""

    def __init__(self, seconds: float, enough_frames: int) -> None:
        self._seconds = seconds
        self._enough = enough_frames
        self._created = time.perf_counter()
        self._started: float | None = None
        self.gave_up = False
        """No batch came in time."""
        self.opened: Look | None = None
        self.closed: Look | None = None

    def is_over(self, frames: int, look: Callable[[], Look]) -> bool:
        """Open or close the window when due, given the frames learned from so far; return whether it is over."""
        now = time.perf_counter()
        if frames and self._started is None:
            self._started = now
        if self._started is None:
            self.gave_up = now - self._created > START_SECONDS + LONGEST * self._seconds
            return self.gave_up
        if self.opened is None:
            if now - self._started >= self._seconds / 4:
                self.opened = look()
        elif self.closed is None:
            open_for = now - self.opened.wall
            enough = frames - self.opened.frames >= self._enough or open_for >= LONGEST * self._seconds
            if open_for >= self._seconds and enough:
                self.closed = look()
        return self.closed is not None


def measure_whole(config: RunConfig, seconds: float, parts: Parts) -> Repeat:
    """Measure a topology, whose parts are known, for `seconds` after a warm-up of a quarter of that.

    Raise `UserError` if too few batches were learned from, and any error of a role.
    """
    batch_steps = _fresh_steps(config)
    lap = batches_per_lap(config.hyperparameters.first_update)
    recording = replace(config.recording, period_frames=1)  # every fresh batch is a record
    endless = replace(config, env_frames=ENDLESS_FRAMES, recording=recording, tracking=())
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        runtime = _with_ray if config.topology.runtime == "ray" else _in_this_process
        window = runtime(endless, directory, seconds, batch_steps * (lap + 1))
        records = read_curves(directory / "curves.jsonl")
    opened, closed = window.opened, window.closed
    if opened is None or closed is None:
        raise UserError(f"bench: no batch was learned from within {START_SECONDS + LONGEST * seconds:.0f} s")
    lag = records[records["metric"] == "policy_lag_mean"]
    within = lag[lag["env_frames"].between(opened.frames, closed.frames)]
    speed = speed_of(list(zip(within["seconds"], within["env_frames"], strict=True)), lap)
    if config.system.moves == "gradients":  # they are counted one by one, and a record sums up those since the last one
        speed = (closed.frames - opened.frames) / (closed.wall - opened.wall)
    if not speed:
        raise UserError(
            f"bench: {LONGEST * seconds:g} s are too short for {lap + 1} batches of {batch_steps} fresh steps"
        )
    mean_lag = mean_between(list(zip(lag["env_frames"], lag["value"], strict=True)), opened.frames, closed.frames)
    return _between(opened, closed, config.topology.num_actors, speed, mean_lag, parts)


def _fresh_steps(config: RunConfig) -> int:
    """Return the fresh steps of a batch, or those that go with a batch from a replay (at least 1)."""
    hyperparameters = config.hyperparameters
    if config.system.store == "prioritized":
        return max(1, math.ceil(with_replay(hyperparameters).fresh_steps or 1))
    columns = config.topology.envs_per_actor if config.system.moves == "gradients" else hyperparameters.fresh_columns
    return hyperparameters.unroll_length * columns


def _between(before: Look, after: Look, actors: int, training: float, lag: float, parts: Parts) -> Repeat:
    wall, cores = after.wall - before.wall, len(os.sched_getaffinity(0))
    cpu = spent(before.cpu, after.cpu)
    duty = {
        "actor": max(0.0, 1 - (after.actors_waited - before.actors_waited) / (wall * actors)),
        "learner": max(0.0, 1 - (after.sample_waited - before.sample_waited) / wall),
    }
    if before.environments_waited is not None and after.environments_waited is not None:
        waited = after.environments_waited - before.environments_waited
        duty["environments"] = min(1.0, max(0.0, 1 - waited / (wall * actors)))
    if before.learning is not None and after.learning is not None:
        learner = (after.learning - before.learning) / wall
        duty = {"actor": 1 - learner, "learner": learner}
    return Repeat(
        simulation=parts.simulation,
        inference=parts.inference,
        training_part=parts.training,
        bound=parts.bound,
        rollout=(after.made - before.made) / wall,
        training=training,
        ratio=training / parts.bound,
        duty=duty,
        cpu_utilisation=cpu / (wall * cores),
        policy_lag_mean=lag,
        others=max(0.0, after.busy - before.busy - cpu) / (wall * cores),
    )


def mean_between(records: list[tuple[int, float]], opened: int, closed: int) -> float:
    """Return the mean of a metric between two numbers of frames, or NaN if no record covers any of them.

    Each record (env_frames, value) sums up the frames since the one before it, and weighs as many as lie between.
    """
    total, weight, before = 0.0, 0, 0
    for frames, value in records:
        inside = max(0, min(frames, closed) - max(before, opened))
        total, weight, before = total + inside * value, weight + inside, frames
    return total / weight if weight else math.nan


def speed_of(batches: list[tuple[float, int]], lap: int = 1) -> float:
    """Return frames per second from the first to the last fresh batch (seconds, env_frames), or 0 for too few.

    Counting over a fixed time instead could be wrong by one batch. If fresh batches come in bursts of `lap`, whole laps
    are counted: from a place in one burst to the same place in another.
    """
    laps = (len(batches) - 1) // lap
    if laps < 1:
        return 0.0
    (start, frames), (end, more) = batches[0], batches[laps * lap]
    return float((more - frames) / (end - start)) if end > start else 0.0


def batches_per_lap(first_update: Callable[[int], int]) -> int:
    """Return after how many fresh batches the pattern of their first uses repeats: 1, or a circular store's slots."""
    uses = [first_update(batch) for batch in range(LAP_BATCHES + 1)]
    gaps = [after - before for before, after in itertools.pairwise(uses)]
    return next(lap for lap in range(1, LAP_BATCHES + 1) if gaps[lap:] == gaps[:-lap])


# Runtimes serial and threads ------------------------------------------------------------------------------------------


def _in_this_process(config: RunConfig, directory: Path, seconds: float, enough_steps: int) -> Window:
    errors: list[BaseException] = []
    with quiet_run(config, directory) as run:
        clock = WaitClock() if config.topology.runtime == "serial" else None
        if clock is not None:  # actors wait while the learner has its turn
            learner: Any = run.learner
            learner.step = clock.running()(learner.step)

        def work() -> None:
            torch.set_num_threads(1)
            try:
                run.run_roles()
            except BaseException as error:
                errors.append(error)

        window = Window(seconds, enough_steps * run.spec.frame_skip)
        worker = threading.Thread(target=work, name="bench", daemon=True)
        worker.start()
        try:
            while worker.is_alive() and not window.is_over(run.learner.core.env_frames, lambda: _look(run, clock)):
                worker.join(POLL_SECONDS)
        finally:
            run.interrupted = True
            worker.join(ENDING_SECONDS)
        if worker.is_alive():
            raise UserError(f"the run has not ended within {ENDING_SECONDS:.0f} s: an environment hangs")
        if errors:
            raise errors[0]
        if config.system.moves == "gradients" and run.learner.ready():
            # a last record, if actors kept the learner from writing it
            run.recorder.update(run.counts, run.learner.step())
        return window


def _look(run: Run, clock: WaitClock | None) -> Look:
    return Look(
        frames=run.learner.core.env_frames,
        made=sum(collector.agent_steps for collector in run.collectors) * run.spec.frame_skip,
        actors_waited=run.queue.insert_waited + run.params.pull_waited,
        sample_waited=run.queue.sample_waited,
        learning=clock.seconds if clock else None,
        environments_waited=run.node.environments_waited,
    )


# Runtime ray ----------------------------------------------------------------------------------------------------------


def _with_ray(config: RunConfig, directory: Path, seconds: float, enough_steps: int) -> Window:
    """Measure all processes of a new Ray cluster; the time until messages arrive does not count as waiting."""
    from ddrl.runtimes.ray.launch import train_with_ray

    if os.environ.get("RAY_ADDRESS", "") not in ("", "local"):
        raise UserError("environment variable RAY_ADDRESS: the bound is that of this machine; unset it for ddrl bench")
    topology = config.topology
    frame_skip = Builder(config, torch.device("cpu")).spec.frame_skip
    unroll_frames = config.hyperparameters.unroll_length * topology.envs_per_actor * frame_skip
    window = Window(seconds, enough_steps * frame_skip)

    def watch(status: Status) -> bool:
        frames = status.counts.env_frames

        def look() -> Look:
            learners = topology.num_learners  # the leading learner reports its own share of the actors only
            return Look(
                frames=frames,
                made=sum(status.delivered) * learners * unroll_frames,
                actors_waited=(status.insert_waited + status.pull_waited) * learners,
                sample_waited=status.sample_waited,
                environments_waited=None
                if status.environments_waited is None
                else status.environments_waited * learners,
            )

        return window.is_over(frames, look)

    train_with_ray(config, directory, quiet=True, watch=watch)
    if window.closed is None and not window.gave_up:
        raise KeyboardInterrupt  # `train_with_ray` has returned normally at a Ctrl-C
    return window
