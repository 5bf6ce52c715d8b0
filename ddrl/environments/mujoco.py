"""Gymnasium's MuJoCo tasks, version 5, on mujoco 3 (time, actions, seeds and states: see `physics`).

Papers before 2020 used versions 1 and 2 on older simulators: their contact forces were zero in Ant and Humanoid, and
other rewards differed, so their scores are not comparable. The protocol id says which version this is.

The environments are gymnasium's own, without its wrappers: those count steps, check arguments and cost time.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from importlib.metadata import version
from typing import Any

import gymnasium
import mujoco  # noqa: F401  gymnasium would hide that it is not installed

from ddrl.environments.base.adapter import Adapter, Option
from ddrl.environments.base.replayed import ReplayedEnvs
from ddrl.environments.tools.camera import Camera
from ddrl.environments.tools.simulator_camera import simulator_camera
from ddrl.environments.worlds import physics
from ddrl.environments.worlds.spaces import Bounds
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
    limit, default = gymnasium.spec(task).max_episode_steps, physics.MAX_STEPS
    found = {"max_steps": Option(limit or default.default, default.low, default.high)}
    if task in _UNHEALTHY:
        found["terminate_when_unhealthy"] = Option(True)
    if task in _CONTACTS:
        found["contact_forces"] = Option(True)  # in the observation; the reward has them always
    return found


OPTIONS = {task: _options(task) for task in TASKS}


def spec(task: str, **options: Any) -> EnvSpec:
    """Return the spec of one task: flat float32 observations, as gymnasium orders them.

    Protocol id: simulator, gymnasium and task; ends; observations; what `physics.flat_spec` adds.
    """
    parts = [f"mujoco-{version('mujoco')}/{task}", f"gymnasium-{version('gymnasium')}"]
    if "terminate_when_unhealthy" in options:
        parts.append("terminates-unhealthy" if options["terminate_when_unhealthy"] else "goes-on-unhealthy")
    contacts = {None: "", True: ",contact-forces", False: ",no-contact-forces"}[options.get("contact_forces")]
    parts.append(f"float32-observations{contacts}")
    size, bounds = _sizes(task, **_arguments(options))
    return physics.flat_spec(f"mujoco/{task}", parts, options["max_steps"], size, bounds)


def make(
    task: str, num_envs: int, seed: int, *, num_threads: int = 1, **options: Any
) -> ReplayedEnvs[GymnasiumSimulation]:
    """Make `num_envs` environments; `num_threads` is ignored (see `physics`)."""
    arguments = _arguments(options)
    _, bounds = _sizes(task, **arguments)
    build = partial(GymnasiumSimulation, task, arguments)
    max_steps = options["max_steps"]
    return ReplayedEnvs(spec(task, **options), build, num_envs, seed, max_steps=max_steps, in_units=bounds.scale)


def camera(task: str, seed: int, **options: Any) -> Camera:
    """Make a camera that films the first episode of `make(task, 1, seed, **options)`."""
    twin = make(task, 1, seed, **options)
    env = twin.simulations[0].env
    return simulator_camera(twin, lambda: (env.model, env.data), float(env.dt))


def recipe(task: str, **options: Any) -> Mapping[str, Any]:
    """Return how the drivers of other libraries make a task: by its id in gymnasium."""
    return {"kind": "gymnasium", "id": task, "max_steps": options["max_steps"], "arguments": _arguments(options)}


ADAPTER = Adapter(
    tasks=TASKS,
    options=OPTIONS,
    spec=spec,
    make=make,
    examples=EXAMPLES,
    camera=camera,
    recipe=recipe,
)


def _arguments(options: dict[str, Any]) -> dict[str, bool]:
    """Return gymnasium's arguments for the options that the task has."""
    names = {
        "terminate_when_unhealthy": "terminate_when_unhealthy",
        "contact_forces": "include_cfrc_ext_in_observation",
    }
    return {names[key]: value for key, value in options.items() if key in names}


@cache
def _sizes(task: str, **arguments: bool) -> tuple[int, Bounds]:
    """Return the length of an observation, and the actuators' bounds."""
    env = _environment(task, arguments)
    size, bounds = env.observation_space.shape[0], Bounds.between(env.action_space.low, env.action_space.high)
    env.close()
    return size, bounds


def _environment(task: str, arguments: dict[str, bool]) -> Any:
    physics.route_warnings()
    return gymnasium.make(task, disable_env_checker=True, **arguments).unwrapped


class GymnasiumSimulation:
    """One of gymnasium's environments, as a `replayed.Replayable`."""

    def __init__(self, task: str, arguments: dict[str, bool]) -> None:
        self.env = _environment(task, arguments)

    def reset(self, seed: int) -> Array:
        """Start the episode that `seed` determines; return its first observation [N] float64."""
        observation: Array = self.env.reset(seed=seed)[0]
        return observation

    def step(self, action: Array) -> tuple[Array, float, bool, bool]:
        """Return observation [N] float64, reward, terminated and truncated (never)."""
        observation, reward, terminated, _, _ = self.env.step(action)
        return observation, float(reward), terminated, False

    def close(self) -> None:
        self.env.close()
