"""Gymnasium's MuJoCo tasks, version 5, on mujoco 3 (time, actions, seeds and states: see `physics`).

Papers before 2020 used versions 1 and 2 on older simulators: their contact forces were zero in Ant and Humanoid, and
other rewards differed, so their scores are not comparable. The protocol id says which version this is.

The environments are gymnasium's own, without its wrappers: those count steps, check arguments and cost time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import version
from typing import Any, cast

import gymnasium
import mujoco  # noqa: F401  gymnasium would hide that it is not installed
from gymnasium.envs.mujoco.mujoco_env import MujocoEnv

from ddrl.environments.base.registry import Option
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

TASKS: tuple[str, ...] = tuple(
    sorted(
        name
        for name, entry in gymnasium.registry.items()
        if entry.version == 5 and str(entry.entry_point).startswith("gymnasium.envs.mujoco.")
    )
)
EXAMPLES: dict[str, dict[str, Any]] = {
    "Hopper-v5": {},
    "HalfCheetah-v5": {"max_steps": 60},
    "Humanoid-v5": {"max_steps": 20},
}
_UNHEALTHY = frozenset({"Ant-v5", "Hopper-v5", "Humanoid-v5", "Walker2d-v5"})
_CONTACTS = frozenset({"Ant-v5", "Humanoid-v5", "HumanoidStandup-v5"})


def _options(task: str) -> dict[str, Option]:
    limit = gymnasium.spec(task).max_episode_steps
    found = {"max_steps": Option(limit or MAX_STEPS.default, MAX_STEPS.low, MAX_STEPS.high)}
    if task in _UNHEALTHY:
        found["terminate_when_unhealthy"] = Option(True)
    if task in _CONTACTS:
        found["contact_forces"] = Option(True)
    return found


OPTIONS = {task: _options(task) for task in TASKS}


@dataclass(frozen=True)
class Options:
    """The adapter's options; the names are the keys of `OPTIONS`. None: the task has no such option."""

    max_steps: int
    terminate_when_unhealthy: bool | None = None
    contact_forces: bool | None = None
    """Whether they are part of the observation; the reward has them always."""

    def protocol(self, task: str) -> str:
        """Protocol id: simulator, gymnasium and task; ends; observations; actions; cap; autoreset; rewards."""
        parts = [f"mujoco-{version('mujoco')}/{task}", f"gymnasium-{version('gymnasium')}"]
        if self.terminate_when_unhealthy is not None:
            parts.append("terminates-unhealthy" if self.terminate_when_unhealthy else "goes-on-unhealthy")
        contacts = {None: "", True: ",contact-forces", False: ",no-contact-forces"}[self.contact_forces]
        parts.append(f"float32-observations{contacts}")
        return ";".join((*parts, ACTION_PROTOCOL, f"cap{self.max_steps}", STEP_PROTOCOL))

    def arguments(self) -> dict[str, bool]:
        """What the environment is made with."""
        given = {
            "terminate_when_unhealthy": self.terminate_when_unhealthy,
            "include_cfrc_ext_in_observation": self.contact_forces,
        }
        return {key: value for key, value in given.items() if value is not None}


def spec(task: str, **options: Any) -> EnvSpec:
    """The spec of one task: flat float32 observations, as gymnasium orders them."""
    chosen = Options(**options)
    size, bounds = _sizes(task, tuple(chosen.arguments().items()))
    return flat_spec(f"mujoco/{task}", chosen.protocol(task), size, bounds)


def make(task: str, num_envs: int, seed: int, *, num_threads: int = 1, **options: Any) -> PhysicsEnvs:
    """`num_envs` environments; `num_threads` is ignored (see `physics`)."""
    chosen = Options(**options)
    arguments = chosen.arguments()
    _, bounds = _sizes(task, tuple(arguments.items()))
    build = partial(GymnasiumSimulation, task, arguments)
    told = spec(task, **options)
    return physics_envs(told, build, bounds, num_envs, seed, max_steps=chosen.max_steps)


def camera(task: str, seed: int, **options: Any) -> SimulatorCamera:
    """Films the first episode of `make(task, 1, seed, **options)`."""
    return SimulatorCamera(make(task, 1, seed, **options))


@cache
def _sizes(task: str, arguments: tuple[tuple[str, bool], ...]) -> tuple[int, Bounds]:
    """Length of an observation, and the actuators' bounds."""
    env = _environment(task, dict(arguments))
    observation, action = env.observation_space, env.action_space
    assert isinstance(observation, gymnasium.spaces.Box)
    assert isinstance(action, gymnasium.spaces.Box)
    size, bounds = observation.shape[0], Bounds.between(action.low, action.high)
    _close(env)
    return size, bounds


def _environment(task: str, arguments: dict[str, bool]) -> MujocoEnv:
    route_warnings()
    return cast(MujocoEnv, gymnasium.make(task, disable_env_checker=True, **arguments).unwrapped)


class GymnasiumSimulation:
    """One of gymnasium's environments, as a `physics.Simulation`."""

    def __init__(self, task: str, arguments: dict[str, bool]) -> None:
        self.env = _environment(task, arguments)
        self.seconds_per_step = float(self.env.dt)

    def reset(self, seed: int) -> Array:
        """Starts the episode that `seed` determines; its first observation [N] float64."""
        observation: Array = self.env.reset(seed=seed)[0]
        return observation

    def step(self, action: Array) -> tuple[Array, float, bool]:
        """Observation [N] float64, reward, terminated."""
        observation, reward, terminated, _, _ = self.env.step(action)
        return observation, float(reward), terminated

    def scene(self) -> tuple[Any, Any]:
        """The simulator's model and data."""
        return self.env.model, self.env.data

    def close(self) -> None:
        """Frees what a picture needed."""
        _close(self.env)


def _close(env: Any) -> None:
    env.close()
