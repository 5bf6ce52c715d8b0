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

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import mujoco  # noqa: F401  before the setting below, which is not for it
import numpy as np

from ddrl.environments.base.adapter import Adapter
from ddrl.environments.base.replayed import ReplayedEnvs
from ddrl.environments.tools.camera import Camera
from ddrl.environments.tools.simulator_camera import simulator_camera
from ddrl.environments.worlds import physics
from ddrl.environments.worlds.spaces import Bounds
from ddrl.types import Array, EnvSpec


@contextmanager
def _silently() -> Iterator[None]:
    """Keep dm_control from opening a display when it is imported, and from setting up the root logger.

    absl, with which it logs, would give the root logger a handler, and every message of others would be printed twice.
    """
    chosen, handler = os.environ.get("MUJOCO_GL"), logging.NullHandler()
    os.environ["MUJOCO_GL"] = chosen or "disable"
    logging.root.addHandler(handler)
    try:
        yield
    finally:
        logging.root.removeHandler(handler)
        if chosen is None:
            del os.environ["MUJOCO_GL"]


with _silently():
    from dm_control import suite

_NAMES: dict[str, tuple[str, str]] = {f"{domain}-{task}": (domain, task) for domain, task in suite.ALL_TASKS}
TASKS: tuple[str, ...] = tuple(sorted(_NAMES))
EXAMPLES: dict[str, dict[str, Any]] = {"cheetah-run": {"max_steps": 60}, "quadruped-walk": {"max_steps": 60}}
OPTIONS = {task: {"max_steps": physics.MAX_STEPS} for task in TASKS}
MODEL_SEED = 0
"""Seed of what is random about a task itself, and not about its episodes."""


def spec(task: str, max_steps: int) -> EnvSpec:
    """Return the spec of one task: flat float32 observations.

    Protocol id: suite and task; simulator; observations; what `physics.flat_spec` adds.
    """
    size, bounds = _sizes(task)
    parts = (
        f"dm_control-{version('dm-control')}/{task}",
        f"mujoco-{version('mujoco')}",
        "float32-observations,flat-in-task-order",
    )
    return physics.flat_spec(f"dm_control/{task}", parts, max_steps, size, bounds)


def make(task: str, num_envs: int, seed: int, *, num_threads: int = 1, max_steps: int) -> ReplayedEnvs[SuiteSimulation]:
    """Make `num_envs` environments; `num_threads` is ignored (see `physics`)."""
    _, bounds = _sizes(task)
    build = partial(SuiteSimulation, task)
    return ReplayedEnvs(spec(task, max_steps), build, num_envs, seed, max_steps=max_steps, in_units=bounds.scale)


def camera(task: str, seed: int, **options: Any) -> Camera:
    """Make a camera that films the first episode of `make(task, 1, seed, **options)`."""
    twin = make(task, 1, seed, **options)
    env = twin.simulations[0].env
    return simulator_camera(twin, lambda: (env.physics.model.ptr, env.physics.data.ptr), float(env.control_timestep()))


ADAPTER = Adapter(
    tasks=TASKS,
    options=OPTIONS,
    spec=spec,
    make=make,
    examples=EXAMPLES,
    camera=camera,
)


@cache
def _sizes(task: str) -> tuple[int, Bounds]:
    """Return the length of an observation, and the actuators' bounds."""
    env = _environment(task)
    size = sum(int(np.prod(entry.shape)) for entry in env.observation_spec().values())
    actions = env.action_spec()
    bounds = Bounds.between(actions.minimum, actions.maximum)
    env.close()
    return size, bounds


def _environment(task: str) -> Any:
    """Make the suite's environment, without its limit of time."""
    physics.route_warnings()
    domain, name = _NAMES[task]
    env = suite.load(domain, name, task_kwargs={"random": MODEL_SEED, "time_limit": float("inf")})
    if task == "quadruped-escape":
        env.physics._contexts = _no_graphics()
    return env


def _no_graphics() -> Any:
    """Return what takes the place of a simulation's rendering contexts and does nothing."""
    context = SimpleNamespace(ptr=None, call=lambda *_: None, free=lambda: None)
    context.make_current = lambda: nullcontext(context)
    return SimpleNamespace(gl=context, mujoco=context)


class SuiteSimulation:
    """One of the suite's environments, as a `replayed.Replayable`."""

    def __init__(self, task: str) -> None:
        self.env = _environment(task)

    def reset(self, seed: int) -> Array:
        """Start the episode that `seed` determines; return its first observation [N] float64."""
        self.env.task.random.seed(seed)
        return _flat(self.env.reset().observation)

    def step(self, action: Array) -> tuple[Array, float, bool, bool]:
        """Return observation [N] float64, reward, terminated and truncated (never)."""
        step = self.env.step(action)
        return _flat(step.observation), float(step.reward), step.discount == 0.0, False

    def close(self) -> None:
        self.env.close()


def _flat(observation: Mapping[str, Any]) -> Array:
    return np.concatenate([np.ravel(entry) for entry in observation.values()])
