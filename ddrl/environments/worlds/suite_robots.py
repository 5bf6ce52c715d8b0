"""Tasks of dm_control's suite for many robots at once: the cheetah and the planar walker.

Starts, observations and rewards are the suite's, number by number. Models and sub-steps are read from its environments;
the speeds and shapes of rewards are the tasks' own, and are written down here again.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import mujoco
import numpy as np

from ddrl.environments.worlds.batched_robots import Fields, Robot, along, always
from ddrl.environments.worlds.spaces import Bounds
from ddrl.types import Array

_CHEETAH_SPEED = 10.0
_SETTLING = 200
"""Sub-steps that the cheetah falls before an episode begins."""
_WALKER_SPEEDS = {"walker-stand": 0.0, "walker-walk": 1.0, "walker-run": 8.0}
_WALKER_HEIGHT = 1.2
Uniform: TypeAlias = Callable[[int, Array, Array], Array]
"""Seed, lowest and highest values [n] -> a draw [n]."""
TASKS = ("cheetah-run", *_WALKER_SPEEDS)


def robot(task: str, env: Any) -> Robot:
    """Return the robot of `env`, one of the suite's environments."""
    model, actions, generator = copy.copy(env.physics.model.ptr), env.action_spec(), env.task.random

    def uniform(seed: int, low: Array, high: Array) -> Array:
        generator.seed(seed)  # the suite's own, one number a joint: what it draws does not depend on what came before
        drawn: Array = generator.uniform(low, high)
        return drawn

    common = {
        "model": model,
        "sub_steps": round(env.control_timestep() / env.physics.timestep()),
        "bounds": Bounds.between(actions.minimum, actions.maximum),
        "current": True,
        "place": along,
        "healthy": always,
    }
    if task == "cheetah-run":
        return _cheetah(model, uniform, common)
    return _walker(model, uniform, _WALKER_SPEEDS[task], common)


def _cheetah(model: Any, uniform: Uniform, common: Mapping[str, Any]) -> Robot:
    limited = model.jnt_limited == 1
    low, high = model.jnt_range[limited].T
    push, warmstart = _first_push(model)

    def start(seed: int) -> tuple[Array, Array]:
        qpos = model.qpos0.copy()
        qpos[limited] = uniform(seed, low, high)
        return qpos + model.opt.timestep * push, push

    def reward(fields: Fields, velocity: Array, actions: Array) -> Array:
        return _up_to(fields("sensordata")[:, 0], _CHEETAH_SPEED, _CHEETAH_SPEED, 0.0)

    return Robot(
        fields=("sensordata",),
        start=start,
        warmstart=warmstart,
        settle=_SETTLING - 1,
        observe=lambda fields: [fields("qpos")[:, 1:], fields("qvel")],
        reward=reward,
        **common,
    )


def _walker(model: Any, uniform: Uniform, speed: float, common: Mapping[str, Any]) -> Robot:
    limited, hinge = model.jnt_limited == 1, model.jnt_type == int(mujoco.mjtJoint.mjJNT_HINGE)
    drawn = limited | hinge
    low, high = np.where(limited[:, None], model.jnt_range, [-np.pi, np.pi])[drawn].T
    torso = model.body("torso").id

    def start(seed: int) -> tuple[Array, Array]:
        qpos = model.qpos0.copy()
        qpos[drawn] = uniform(seed, low, high)
        return qpos, np.zeros(model.nv)

    def observe(fields: Fields) -> list[Array]:
        orientations = fields("xmat")[:, 1:, [0, 2]]
        return [orientations.reshape(len(orientations), -1), fields("xpos")[:, torso, 2:], fields("qvel")]

    def reward(fields: Fields, velocity: Array, actions: Array) -> Array:
        standing = _gaussian_up_to(fields("xpos")[:, torso, 2], _WALKER_HEIGHT, _WALKER_HEIGHT / 2)
        upright = (1 + fields("xmat")[:, torso, 8]) / 2
        stands: Array = (3 * standing + upright) / 4
        if not speed:
            return stands
        moves = _up_to(fields("sensordata")[:, 0], speed, speed / 2, 0.5)
        paid: Array = stands * (5 * moves + 1) / 6
        return paid

    return Robot(
        fields=("xpos", "xmat", "sensordata"),
        start=start,
        warmstart=np.zeros(model.nv),
        observe=observe,
        reward=reward,
        **common,
    )


def _first_push(model: Any) -> tuple[Array, Array]:
    """Return velocities and accelerations [nv] after the first sub-step of the cheetah's settling.

    The suite makes it with the forces of the model's own pose, whatever pose was drawn: they are computed before.
    """
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    mujoco.mj_step2(model, data)
    return data.qvel.copy(), data.qacc_warmstart.copy()


def _up_to(values: Array, bound: float, margin: float, at_margin: float) -> Array:
    """Return 1 for `values` [B] from `bound` on; below it falls linearly, to `at_margin` at `margin` from it, and to 0.

    This is dm_control's `tolerance` with the sigmoid `linear`.
    """
    distance = (bound - values) / margin * (1 - at_margin)
    below: Array = np.where(np.abs(distance) < 1, 1 - distance, 0.0)
    return np.where(values >= bound, 1.0, below)


def _gaussian_up_to(values: Array, bound: float, margin: float, at_margin: float = 0.1) -> Array:
    """Return as `_up_to`, but below the bound it falls as a normal density (the sigmoid `gaussian`)."""
    distance = (bound - values) / margin * np.sqrt(-2 * np.log(at_margin))
    return np.where(values >= bound, 1.0, np.exp(-0.5 * distance**2))
