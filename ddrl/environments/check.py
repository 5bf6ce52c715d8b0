"""The contract of `ddrl.types.VectorEnv` as a check that every environment passes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ddrl.environments import registry
from ddrl.seeding import numpy_generator
from ddrl.types import Array, EnvStep, VectorEnv

Make = Callable[[int], VectorEnv]
"""Seed -> environments."""

_NUM_ENVS = 3
_AFTERWARDS = 40
"""Steps compared after a restored state."""


class ConformanceError(Exception):
    """An environment breaks the contract; the message says what, and where."""


@dataclass(frozen=True)
class Conformance:
    """What the check saw."""

    name: str
    protocol: str
    steps: int
    terminated: int
    truncated: int
    lives_lost: int


def check_environment(name: str, steps: int | None = None, **options: Any) -> Conformance:
    """Checks `name` with `options` (those of the adapter's example, where it has one and none are given).

    Raises: ConformanceError; UserError for an unknown name or option.
    """
    chosen = options or registry.examples().get(name, {})
    return check(lambda seed: registry.make(name, _NUM_ENVS, seed, **chosen), name, steps or 250)


def check(make: Make, name: str, steps: int = 250) -> Conformance:
    """Checks the environments that `make` builds, over `steps` steps of seeded random actions.

    Raises: ConformanceError.
    """
    with ExitStack() as stack:
        env, twin, other = (stack.enter_context(closing(make(seed))) for seed in (1, 1, 2))
        _check_spec(env, name)
        plan = numpy_generator(1, "check").integers(0, env.spec.num_actions, (steps + _AFTERWARDS, env.num_envs))
        first, states = _roll(env, plan)
        _check_steps(env, first)
        _check_same(first, _roll(twin, plan)[0], "two environments with the same seed and actions")
        _check_seeds_matter(first, _roll(other, plan)[0])
        for moment in _moments(first[:-_AFTERWARDS]):
            restored = stack.enter_context(closing(make(1)))
            _check_restored(restored, states[moment], first[moment + 1 :], plan[moment:], moment)
        _check_illegal_actions(env)
    valid_life = [step.terminated & ~step.ended for step in first]
    return Conformance(
        name=name,
        protocol=env.spec.protocol,
        steps=steps,
        terminated=sum(int((step.terminated & step.ended).sum()) for step in first),
        truncated=sum(int(step.truncated.sum()) for step in first),
        lives_lost=sum(int(lost.sum()) for lost in valid_life),
    )
