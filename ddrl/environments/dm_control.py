"""The 51 tasks of the dm_control suite (Tassa et al. 2018 and what came later), named `<domain>-<task>`.

Time, actions, seeds and states: see `physics`. What is particular here:

- Observations are the task's dictionary, flattened: its entries in the task's own order, each row by row, as float32.
- `terminated` is a discount of 0, which only `lqr` gives. The suite cuts episodes after 1000 steps (its time limits of
  10 to 40 seconds): truncated. `lqr` has no limit of its own, and gets the same.
- The actuators of `lqr` have no bounds: actions are clipped to [-1, 1] and taken as they are. The suite draws its
  springs when it makes the task: always from `MODEL_SEED` here, so that all environments are one task.
- `quadruped-escape` shows its terrain to a renderer at every start, which needs a graphics library. Here it gets one
  that does nothing: the simulation does not depend on it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import version
from typing import Any

import mujoco  # noqa: F401  before the setting below, which is not for it
import numpy as np

from ddrl.environments.tools.simulator_camera import SimulatorCamera
from ddrl.environments.worlds.physics import (
    ACTION_PROTOCOL,
    MAX_STEPS,
    STEP_PROTOCOL,
    Bounds,
    PhysicsEnvs,
    flat_spec,
    physics_envs,
    route_warnings,
)
from ddrl.types import Array, EnvSpec


@contextmanager
def _without_graphics() -> Iterator[None]:
    """dm_control opens a display when it is imported, and warns where there is none."""
    chosen = os.environ.get("MUJOCO_GL")
    os.environ["MUJOCO_GL"] = chosen or "disable"
    try:
        yield
    finally:
        if chosen is None:
            del os.environ["MUJOCO_GL"]


with _without_graphics():
    from dm_control import suite
    from dm_control.rl.control import Environment

_NAMES: dict[str, tuple[str, str]] = {f"{domain}-{task}": (domain, task) for domain, task in suite.ALL_TASKS}
TASKS: tuple[str, ...] = tuple(sorted(_NAMES))
EXAMPLES: dict[str, dict[str, Any]] = {"cheetah-run": {"max_steps": 60}, "quadruped-walk": {"max_steps": 60}}
OPTIONS = {task: {"max_steps": MAX_STEPS} for task in TASKS}
MODEL_SEED = 0
"""What is random about a task itself, and not about its episodes."""


@dataclass(frozen=True)
class Options:
    """The adapter's options; the names are the keys of `OPTIONS`."""

    max_steps: int

    def protocol(self, task: str) -> str:
        """Protocol id: suite and task; simulator; observations; actions; cap; autoreset; rewards."""
        return ";".join(
            (
                f"dm_control-{version('dm-control')}/{task}",
                f"mujoco-{version('mujoco')}",
                "float32-observations,flat-in-task-order",
                ACTION_PROTOCOL,
                f"cap{self.max_steps}",
                STEP_PROTOCOL,
            )
        )


def spec(task: str, **options: Any) -> EnvSpec:
    """The spec of one task: flat float32 observations."""
    size, bounds = _sizes(task)
    return flat_spec(f"dm_control/{task}", Options(**options).protocol(task), size, bounds)


def make(task: str, num_envs: int, seed: int, *, num_threads: int = 1, **options: Any) -> PhysicsEnvs:
    """`num_envs` environments; `num_threads` is ignored (see `physics`)."""
    _, bounds = _sizes(task)
    build, max_steps = partial(SuiteSimulation, task), Options(**options).max_steps
    return physics_envs(spec(task, **options), build, bounds, num_envs, seed, max_steps=max_steps)


def camera(task: str, seed: int, **options: Any) -> SimulatorCamera:
    """Films the first episode of `make(task, 1, seed, **options)`."""
    return SimulatorCamera(make(task, 1, seed, **options))


@cache
def _sizes(task: str) -> tuple[int, Bounds]:
    """Length of an observation, and the actuators' bounds."""
    env = _environment(task)
    size = sum(int(np.prod(entry.shape)) for entry in env.observation_spec().values())
    actions = env.action_spec()
    bounds = Bounds.between(actions.minimum, actions.maximum)
    env.close()
    return size, bounds


def _environment(task: str) -> Environment:
    """The suite's environment without limit of time."""
    route_warnings()
    domain, name = _NAMES[task]
    env = suite.load(domain, name, task_kwargs={"random": MODEL_SEED, "time_limit": float("inf")})
    if task == "quadruped-escape":
        env.physics._contexts = _NoGraphics()
    return env


class SuiteSimulation:
    """One of the suite's environments, as a `physics.Simulation`."""

    def __init__(self, task: str) -> None:
        self.env = _environment(task)
        self.seconds_per_step = float(self.env.control_timestep())

    def reset(self, seed: int) -> Array:
        """Starts the episode that `seed` determines; its first observation [N] float64."""
        self.env.task.random.seed(seed)
        return _flat(self.env.reset().observation)

    def step(self, action: Array) -> tuple[Array, float, bool]:
        """Observation [N] float64, reward, terminated."""
        step = self.env.step(action)
        return _flat(step.observation), float(step.reward), step.discount == 0.0

    def scene(self) -> tuple[Any, Any]:
        """The simulator's model and data."""
        return self.env.physics.model.ptr, self.env.physics.data.ptr

    def close(self) -> None:
        """Frees the simulator's memory."""
        self.env.close()


def _flat(observation: Mapping[str, Any]) -> Array:
    return np.concatenate([np.ravel(entry) for entry in observation.values()])


class _NoGraphics:
    """In place of a physics' rendering contexts: takes every call and does nothing."""

    ptr = None

    @property
    def gl(self) -> _NoGraphics:
        """In place of the graphics library's context."""
        return self

    @property
    def mujoco(self) -> _NoGraphics:
        """In place of the simulator's."""
        return self

    @contextmanager
    def make_current(self) -> Iterator[_NoGraphics]:
        """As if it were active in this thread."""
        yield self

    def call(self, function: object, *arguments: object) -> None:
        """Calls nothing."""

    def free(self) -> None:
        """Nothing to free."""
