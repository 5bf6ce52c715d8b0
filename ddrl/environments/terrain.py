"""Obstacle courses for dm_control's planar walker, `terrain/<course>` (after Heess et al. 2017, arXiv 1707.02286).

Time, actions, seeds and states: see `physics`. The body is the paper's (9 degrees of freedom, 6 actuators); sizes of
obstacles, the reward's coefficients and where an episode ends are ours (see `courses` and `terrain_walker`), since the
paper's are in a supplement that could not be read.

- A new course is drawn for each episode. Options: `obstacles` (false: flat, as `terrain/flat`), `curriculum` (obstacles
  grow along the course, or are as hard at its beginning as at its end), `difficulty` (of the hardest), `friction` (a
  factor) and `incline` (degrees, upwards).
- Observations: orientations of all bodies, the torso's height above the highest ground near it, velocities (24 numbers
  of the body), and the height of the ground at 20 places around and ahead, relative to that ground.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np

from ddrl.environments.base.adapter import Adapter, Option
from ddrl.environments.base.replayed import ReplayedEnvs
from ddrl.environments.tools.camera import Camera
from ddrl.environments.tools.simulator_camera import simulator_camera
from ddrl.environments.worlds import physics
from ddrl.environments.worlds.courses import COURSES
from ddrl.environments.worlds.spaces import Bounds
from ddrl.environments.worlds.terrain_walker import ACTIONS, BODY_SIZE, OBSERVATION_SIZE, TerrainSimulation
from ddrl.types import EnvSpec

VERSION = 1
"""Part of the protocol id. Raise it when courses, rewards or ends change."""
TASKS: tuple[str, ...] = tuple(sorted(COURSES))
_OPTIONS = {
    "max_steps": physics.MAX_STEPS,
    "obstacles": Option(True),
    "curriculum": Option(True, unread_with=("obstacles", False)),
    "difficulty": Option(1.0, 0.0, 2.0, unread_with=("obstacles", False)),
    "friction": Option(1.0, 0.05, 5.0),
    "incline": Option(0.0, -20.0, 20.0),
}
OPTIONS = dict.fromkeys(TASKS, _OPTIONS)
EXAMPLES: dict[str, dict[str, Any]] = {task: {"max_steps": 60} for task in TASKS}
_BOUNDS = Bounds.between(-np.ones(ACTIONS), np.ones(ACTIONS))


def spec(task: str, **options: Any) -> EnvSpec:
    """Return the spec of one course: flat float32 observations.

    Protocol id: course; its options; simulator and body; what `physics.flat_spec` adds.
    """
    settings = (
        *([] if options["obstacles"] else ["no-obstacles"]),
        "curriculum" if options["curriculum"] else "stationary",
        *(f"{name}{options[name]:g}" for name in ("difficulty", "friction", "incline")),
    )
    parts = (
        f"terrain-{VERSION}/{task}",
        ",".join(settings),
        f"mujoco-{version('mujoco')},dm_control-{version('dm-control')}-walker",
    )
    flat = physics.flat_spec(f"terrain/{task}", parts, options["max_steps"], OBSERVATION_SIZE, _BOUNDS)
    return replace(flat, body_size=BODY_SIZE)


def make(
    task: str, num_envs: int, seed: int, *, num_threads: int = 1, max_steps: int, **options: Any
) -> ReplayedEnvs[TerrainSimulation]:
    """Make `num_envs` environments; `num_threads` is ignored (see `physics`)."""
    build = partial(TerrainSimulation, task, **options)
    of_task = spec(task, max_steps=max_steps, **options)
    return ReplayedEnvs(of_task, build, num_envs, seed, max_steps=max_steps, in_units=_BOUNDS.scale)


def camera(task: str, seed: int, **options: Any) -> Camera:
    """Make a camera that films the first episode of `make(task, 1, seed, **options)`."""
    twin = make(task, 1, seed, **options)
    one = twin.simulations[0]
    return simulator_camera(twin, lambda: (one.model, one.data), one.seconds_per_step)


ADAPTER = Adapter(
    tasks=TASKS,
    options=OPTIONS,
    spec=spec,
    make=make,
    examples=EXAMPLES,
    camera=camera,
)
