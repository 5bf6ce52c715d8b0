"""Actors whose environments fail, for the tests of runtime ray: their processes import them from here."""

from __future__ import annotations

import os
from typing import Any

from ddrl.acting import LoneActor, act_alone
from ddrl.config import RunConfig


def raising_actor(config: RunConfig, index: int, generation: tuple[int, int], first_index: int, link: Any) -> LoneActor:
    """The environments of actor 1 raise in their third unroll."""
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
