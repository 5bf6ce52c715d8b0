"""What a task of many robots is: functions of arrays with a row for each robot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ddrl.environments.worlds.spaces import Bounds
from ddrl.types import Array

Fields: TypeAlias = Callable[[str], Array]
"""Name of one of MuJoCo's fields -> its values [B, ...] (`batch_engines.Engine.field`)."""


@dataclass(frozen=True, kw_only=True)
class Robot:
    """One task."""

    model: Any
    sub_steps: int
    bounds: Bounds
    fields: tuple[str, ...] = ()
    """The derived fields that the functions below read."""
    current: bool = False
    """Whether they are of the new state (`batch_engines.ThreadsEngine`)."""
    force_model: Any = None
    """The model with a sensor of forces, where contact forces are read too."""
    start: Callable[[int], tuple[Array, Array]]
    """Seed of an episode -> positions [nq] and velocities [nv] at its start."""
    warmstart: Array
    """[nv]: where the solver of contacts begins."""
    settle: int = 0
    """Sub-steps that pass before the episode begins."""
    place: Callable[[Fields], Array]
    """Copies of where each robot is along its way [B], in metres; what lies between two is the reward's velocity."""
    observe: Callable[[Fields], list[Array]]
    """Parts [B, n] of the observations, in their order."""
    reward: Callable[[Fields, Array, Array], Array]
    """Fields, velocities [B] and actions [B, A] in the actuators' units -> rewards [B]."""
    healthy: Callable[[Fields], Array]
    """Whether episodes go on [B]."""

    @property
    def seconds_per_step(self) -> float:
        """Simulated time of an agent step."""
        return self.sub_steps * float(self.model.opt.timestep)


def always(field: Fields) -> Array:
    """Return True for each robot: no state ends an episode."""
    return np.ones(len(field("qpos")), dtype=np.bool_)


def along(field: Fields) -> Array:
    """Return copies of the first coordinates [B]."""
    first: Array = field("qpos")[:, 0].copy()
    return first


def within(values: Array, low: float, high: float) -> Array:
    """Return whether values [B] lie strictly between two bounds."""
    inside: Array = (low < values) & (values < high)
    return inside


def flat(values: Array) -> Array:
    """Return [B, ...] as [B, n]."""
    return values.reshape(len(values), -1)
