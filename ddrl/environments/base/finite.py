"""Which numbers may pass between environments and a run: finite ones, and none so large that sums of them are not."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ddrl.types import Array, EnvSpec, EnvStep

LIMIT = 1e12
"""Largest size of a reward, or of a number of an observation.

float32 ends at 3.4e38. A value adds up some 1e4 rewards (a discount of 0.9999), a loss squares it, and a batch adds up
a million of them: (1e4 x 1e12)^2 x 1e6 = 1e38. MuJoCo gives a simulation up at 1e10.
"""
_SQUARE = LIMIT**2
_NUMBERS = "fiu"
"""NumPy's kinds of floats and integers."""


class Fault(NamedTuple):
    """A number that may not pass."""

    column: int
    what: str
    """Which number, what it is, and what is allowed."""


def malformed(step: EnvStep, spec: EnvSpec, num_envs: int) -> str:
    """Return what of a step is no array of the right shape and kind, "" where all of it is.

    Else torch would say so later, far from the environment and in words of its own.
    """
    shapes = dict.fromkeys(EnvStep._fields, (num_envs,)) | {"observation": (num_envs, *spec.observation_shape)}
    parts: tuple[Any, ...] = step  # whatever an adapter has put there
    for name, values in zip(EnvStep._fields, parts, strict=True):
        kinds = _NUMBERS if name in ("reward", "observation") else "b"
        if not isinstance(values, np.ndarray):
            return f"{name} is a {type(values).__name__}; allowed: a NumPy array"
        if values.shape != shapes[name]:
            return f"{name} has the shape {list(values.shape)}; allowed: {list(shapes[name])}"
        if values.dtype.kind not in kinds:
            return f"{name} is of dtype {values.dtype}; allowed: {'numbers' if kinds == _NUMBERS else 'bool'}"
    return ""


def fault(step: EnvStep) -> Fault | None:
    """The first number of a step [B] that is NaN, infinite or beyond `LIMIT`; rewards before observations.

    Numbers that are no floats, such as pixels, are not looked at.
    """
    if _is_sane(step.reward) and _is_sane(step.observation):
        return None
    return _first_fault("reward", step.reward) or _first_fault("observation", step.observation)


def diverged(actions: Array) -> str:
    """What is wrong with actions [B, A] or [B], "" where they are all finite: a policy that says so has diverged."""
    if actions.dtype.kind != "f" or np.isfinite(actions).all():
        return ""
    place = np.argwhere(~np.isfinite(actions))[0]
    return f"the policy's action in column {place[0]} is {actions[tuple(place)]:g}"


def _is_sane(values: Array) -> bool:
    # One pass without temporary arrays: the sum of squares is NaN or too large where any number is. It may be too large
    # without that: `_first_fault` looks at each.
    return values.dtype.kind != "f" or bool(np.vdot(values, values) <= _SQUARE)


def _first_fault(name: str, values: Array) -> Fault | None:
    if values.dtype.kind != "f":
        return None
    wrong = ~(np.abs(values) <= LIMIT)
    if not wrong.any():
        return None
    column, *inner = (int(index) for index in np.argwhere(wrong)[0])
    value = values[(column, *inner)]
    index = f"[{', '.join(map(str, inner))}]" if inner else ""
    return Fault(column, f"{name}{index} is {value:g}; allowed: finite numbers within {LIMIT:g} of 0")
