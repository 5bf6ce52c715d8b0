"""Gymnasium's robots, version 5, for many at once.

Starts, observations, rewards and ends are gymnasium's, number by number and in the same precision: where it adds up
squared actions in float32, so does this. Models, bounds and sub-steps are read from its environments; the coefficients
of rewards belong to the tasks' version, and are written down here again.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np

from ddrl.environments.worlds.batched_robots import Fields, Robot, along, always, flat, within
from ddrl.environments.worlds.spaces import Bounds
from ddrl.types import Array

_UNDRIVEN = 6
"""Velocities of a free root."""


@dataclass(frozen=True, kw_only=True)
class _Rules:
    """What one task adds to its model."""

    noise: float
    """Half width of the uniform noise on first positions."""
    normal: bool
    """Whether first velocities are normal, with `noise` as standard deviation; otherwise they are uniform too."""
    observe: Callable[[Fields], list[Array]]
    reward: Callable[[Fields, Array, Array], Array]
    healthy: Callable[[Fields], Array] = always
    place: Callable[[Any, Fields], Array] = lambda model, fields: along(fields)
    fields: tuple[str, ...] = ()
    forces: bool = False
    """Whether contact forces are part of rewards, and of observations unless the option says otherwise."""


def robot(task: str, env: Any, *, terminate_when_unhealthy: bool = True, contact_forces: bool = True) -> Robot:
    """Return the robot of `env`, one of gymnasium's environments; the options are those of `mujoco/<task>`."""
    rules, model = RULES[task], copy.copy(env.model)

    def start(seed: int) -> tuple[Array, Array]:
        generator, noise = np.random.default_rng(seed), rules.noise
        qpos: Array = model.qpos0 + generator.uniform(-noise, noise, model.nq)
        if rules.normal:
            return qpos, noise * generator.standard_normal(model.nv)
        return qpos, generator.uniform(-noise, noise, model.nv)

    def observe(fields: Fields) -> list[Array]:
        parts = rules.observe(fields)
        return [*parts, flat(_observed_forces(task, fields))] if rules.forces and contact_forces else parts

    return Robot(
        model=model,
        sub_steps=env.frame_skip,
        bounds=Bounds.between(env.action_space.low, env.action_space.high),
        fields=rules.fields,
        force_model=_with_force_sensor(env.fullpath) if rules.forces else None,
        start=start,
        warmstart=np.zeros(model.nv),
        place=lambda fields: rules.place(model, fields),
        observe=observe,
        reward=rules.reward,
        healthy=rules.healthy if terminate_when_unhealthy else always,
    )


def _squares(values: Array) -> Array:
    """Return the sums of squares [B] of `values` [B, n], in their own precision."""
    sums: Array = np.square(values).sum(axis=1)
    return sums


# HalfCheetah-v5 ------------------------------------------------------------------------------------------------------


def _observe_half_cheetah(fields: Fields) -> list[Array]:
    return [fields("qpos")[:, 1:], fields("qvel")]


def _reward_half_cheetah(fields: Fields, velocity: Array, actions: Array) -> Array:
    reward: Array = velocity - 0.1 * _squares(actions)
    return reward


# Walker2d-v5 ---------------------------------------------------------------------------------------------------------


def _observe_walker(fields: Fields) -> list[Array]:
    return [fields("qpos")[:, 1:], np.clip(fields("qvel"), -10, 10)]


def _walker_stands(fields: Fields) -> Array:
    height, angle = fields("qpos")[:, 1], fields("qpos")[:, 2]
    return within(height, 0.8, 2.0) & within(angle, -1.0, 1.0)


def _reward_walker(fields: Fields, velocity: Array, actions: Array) -> Array:
    reward: Array = velocity + _walker_stands(fields) - 1e-3 * _squares(actions)
    return reward


# Ant-v5 --------------------------------------------------------------------------------------------------------------


def _observe_ant(fields: Fields) -> list[Array]:
    return [fields("qpos")[:, 2:], fields("qvel")]


def _ant_stands(fields: Fields) -> Array:
    height = fields("qpos")[:, 2]
    finite = np.isfinite(fields("qpos")).all(axis=1) & np.isfinite(fields("qvel")).all(axis=1)
    stands: Array = finite & (height >= 0.2) & (height <= 1.0)
    return stands


def _reward_ant(fields: Fields, velocity: Array, actions: Array) -> Array:
    touched = np.clip(fields("cfrc_ext"), -1.0, 1.0)
    costs = 0.5 * _squares(actions) + 5e-4 * _squares(flat(touched))
    reward: Array = velocity + _ant_stands(fields) - costs
    return reward


# Humanoid-v5 ---------------------------------------------------------------------------------------------------------


def _observe_humanoid(fields: Fields) -> list[Array]:
    inertias, velocities = flat(fields("cinert")[:, 1:]), flat(fields("cvel")[:, 1:])
    return [fields("qpos")[:, 2:], fields("qvel"), inertias, velocities, fields("qfrc_actuator")[:, _UNDRIVEN:]]


def _humanoid_stands(fields: Fields) -> Array:
    return within(fields("qpos")[:, 2], 1.0, 2.0)


def _reward_humanoid(fields: Fields, velocity: Array, actions: Array) -> Array:
    control = 0.1 * _squares(actions.astype(np.float64))
    contact = np.minimum(5e-7 * _squares(flat(fields("cfrc_ext"))), 10.0)
    reward: Array = 1.25 * velocity + 5.0 * _humanoid_stands(fields) - (control + contact)
    return reward


def _centre_of_mass(model: Any, fields: Fields) -> Array:
    """Return the first coordinates [B] of the centres of mass of all bodies."""
    centre: Array = np.einsum("b,nb->n", model.body_mass, fields("xipos")[:, :, 0]) / model.body_mass.sum()
    return centre


# ---------------------------------------------------------------------------------------------------------------------


def _observed_forces(task: str, fields: Fields) -> Array:
    """Return the contact forces [B, bodies, 6] as observed: the ant's are clipped."""
    forces = fields("cfrc_ext")[:, 1:]
    return np.clip(forces, -1.0, 1.0) if task == "Ant-v5" else forces


def _with_force_sensor(path: str) -> Any:
    """Return the model in a file with a sensor that needs the forces on all bodies."""
    spec = mujoco.MjSpec.from_file(path)
    spec.body("torso").add_site(name="force")
    spec.add_sensor(type=mujoco.mjtSensor.mjSENS_FORCE, objtype=mujoco.mjtObj.mjOBJ_SITE, objname="force")
    return spec.compile()


RULES = {
    "HalfCheetah-v5": _Rules(noise=0.1, normal=True, observe=_observe_half_cheetah, reward=_reward_half_cheetah),
    "Walker2d-v5": _Rules(
        noise=5e-3, normal=False, observe=_observe_walker, reward=_reward_walker, healthy=_walker_stands
    ),
    "Ant-v5": _Rules(
        noise=0.1,
        normal=True,
        observe=_observe_ant,
        reward=_reward_ant,
        healthy=_ant_stands,
        place=lambda model, fields: fields("xpos")[:, 1, 0].copy(),
        fields=("xpos",),
        forces=True,
    ),
    "Humanoid-v5": _Rules(
        noise=1e-2,
        normal=False,
        observe=_observe_humanoid,
        reward=_reward_humanoid,
        healthy=_humanoid_stands,
        place=_centre_of_mass,
        fields=("xipos", "cinert", "cvel", "qfrc_actuator"),
        forces=True,
    ),
}
