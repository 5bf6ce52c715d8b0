"""Actors and environments that fail, for the tests of runtimes: the processes of ray import them from here."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ddrl.environments.toy import ToyEnvs
from ddrl.runtimes.ray.launch import make_learner
from ddrl.system.seeding import seed_for
from ddrl.training.builder import LoneActor, act_alone
from ddrl.training.config.run_config import RunConfig
from ddrl.types import Array, EnvStep

CRASHES = {"actor": 1, "evaluation": 0}
"""Role -> whose environments `broken_step` breaks."""


def raising_actor(config: RunConfig, index: int, generation: tuple[int, int], first_index: int, link: Any) -> LoneActor:
    """Actor 1 raises in its third unroll."""
    actor = act_alone(config, index, generation, first_index, link)

    def step() -> None:
        nonlocal unrolls
        unrolls += 1
        if index == 1 and unrolls == 3:
            raise ArithmeticError("the ball fell through\nthe floor")
        made()

    unrolls, made = 0, actor.step
    actor.step = step
    return actor


def vanishing_actor(
    config: RunConfig, index: int, generation: tuple[int, int], first_index: int, link: Any
) -> LoneActor:
    """Every process of the actor ends at once, without a word."""
    os._exit(1)


def crashing_actor(
    config: RunConfig, index: int, generation: tuple[int, int], first_index: int, link: Any
) -> LoneActor:
    """As it is, in a process where the environments of actor 1 raise."""
    ToyEnvs.step = broken_step("actor", config.seed)  # type: ignore[method-assign]
    return act_alone(config, index, generation, first_index, link)


def crashing_learner(config: RunConfig, *others: Any, **options: Any) -> Any:
    """As it is, in a process where the environments of the first evaluation raise."""
    ToyEnvs.step = broken_step("evaluation", config.seed)  # type: ignore[method-assign]
    return make_learner(config, *others, **options)


def broken_step(role: str, seed: int) -> Callable[[ToyEnvs, Array], EnvStep]:
    """`ToyEnvs.step` of a run with that seed, where the environments of a role raise in their seventh step."""
    number, whole, steps = environment_seed(role, seed), ToyEnvs.step, 0

    def step(self: ToyEnvs, actions: Array) -> EnvStep:
        nonlocal steps
        if self._seed == number:
            steps += 1
            if steps == 7:
                raise ArithmeticError("the ball fell through\nthe floor")
        return whole(self, actions)

    return step


def environment_seed(role: str, seed: int) -> int:
    """Of the role that `broken_step` breaks."""
    return seed_for(seed, f"{role}-environment", CRASHES[role])
