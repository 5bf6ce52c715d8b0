"""Checks of the numbers that environments and policies give: finite, and so small that sums of them stay finite."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ddrl.types import Array, EnvSpec, EnvStep

LIMIT = 1e12
"""Largest size of a reward, or of a number of an observation.

float32 ends at 3.4e38. A value adds up some 1e4 rewards (a discount of 0.9999), a loss squares it, and a batch adds up
a million of them: (1e4 x 1e12)^2 x 1e6 = 1e38. MuJoCo gives a simulation up at 1e10.
"""
_LIMIT_SQUARED = LIMIT**2


class BadNumber(NamedTuple):
    """A number that is not allowed."""

    column: int
    what: str
    """Which number, its value, and what is allowed."""


def malformed(step: EnvStep, spec: EnvSpec, num_envs: int) -> str:
    """Return which part of a step is no array of the right shape and kind, "" where all are.

    Without this check torch would fail later, far from the environment, with a message that does not name it.
    """
    shapes = dict.fromkeys(EnvStep._fields, (num_envs,)) | {"observation": (num_envs, *spec.observation_shape)}
    parts: tuple[Any, ...] = step  # whatever an adapter has put there
    for name, values in zip(EnvStep._fields, parts, strict=True):
        kinds, allowed = ("fiu", "numbers") if name in ("reward", "observation") else ("b", "bool")
        if not isinstance(values, np.ndarray):
            return f"{name} is a {type(values).__name__}; allowed: a NumPy array"
        if values.shape != shapes[name]:
            return f"{name} has the shape {list(values.shape)}; allowed: {list(shapes[name])}"
        if values.dtype.kind not in kinds:
            return f"{name} is of dtype {values.dtype}; allowed: {allowed}"
    return ""


def fault(step: EnvStep) -> BadNumber | None:
    """Return the first number of a step [B] that is NaN, infinite or beyond `LIMIT`; rewards before observations.

    Integers, such as pixels, are not looked at.
    """
    if _is_small(step.reward) and _is_small(step.observation):
        return None
    for name, values in (("reward", step.reward), ("observation", step.observation)):
        wrong = np.argwhere(~(np.abs(values) <= LIMIT)) if values.dtype.kind == "f" else np.empty(0)
        if len(wrong):
            column, *inner = wrong[0].tolist()
            value, index = values[tuple(wrong[0])], f"{inner}" if inner else ""
            return BadNumber(column, f"{name}{index} is {value:g}; allowed: finite numbers within {LIMIT:g} of 0")
    return None


def _is_small(values: Array) -> bool:
    """Return whether numbers are fine by one pass without temporary arrays; False: each must be looked at.

    The sum of squares is NaN or too large where any number is. It may be too large without that.
    """
    return values.dtype.kind != "f" or bool(np.vdot(values, values) <= _LIMIT_SQUARED)


def diverged(actions: Array) -> str:
    """Return what is wrong with a policy's actions [B, A] or [B], "" where all are finite."""
    if actions.dtype.kind != "f" or np.isfinite(actions).all():
        return ""
    place = np.argwhere(~np.isfinite(actions))[0]
    return f"the policy's action in column {place[0]} is {actions[tuple(place)]:g}"
