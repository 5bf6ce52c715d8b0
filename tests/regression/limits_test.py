"""The limit of frames to a target, and what exceeds it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ddrl.errors import UserError
from ddrl.regression import limits

FRAMES = [20_000, 22_000, 24_000, 18_000, 26_000, 21_000, 23_000, 19_000, 25_000, 22_500]


def judged(new: list[float], level: float = 0.05) -> bool | None:
    return limits.judge(FRAMES, new, budget=90_000, level=level).passed


def test_new_seeds_of_the_same_kind_exceed_the_limit_as_often_as_the_level_says() -> None:
    generator = np.random.default_rng(1)
    level, others, tries = 0.05, 3, 4000
    worse = 0
    for _ in range(tries):
        recorded, new = generator.lognormal(10, 0.3, 8), generator.lognormal(10, 0.3, others)
        worse += limits.mean(new) > limits.limit(recorded, others, level)
    assert worse / tries == pytest.approx(level, abs=0.012)


def test_a_lower_level_and_fewer_new_seeds_allow_more() -> None:
    assert limits.limit(FRAMES, 3, 0.005) > limits.limit(FRAMES, 3, 0.05)
    assert limits.limit(FRAMES, 1, 0.05) > limits.limit(FRAMES, 5, 0.05)


def test_slower_seeds_fail_and_faster_ones_never_do() -> None:
    assert judged([22_000, 21_000, 23_000])
    assert judged([1000, 1000, 1000])
    assert not judged([44_000, 42_000, 46_000])


def test_a_seed_that_never_gets_there_counts_as_its_budget_and_is_named() -> None:
    outcome = limits.judge(FRAMES, [math.inf, math.inf, math.inf], budget=90_000, level=0.05)
    assert outcome.passed is False
    assert outcome.line.startswith("90,000 frames over 3 seeds, 3 of them never (counted as their budget); at most ")
    assert f"(recorded {limits.mean(FRAMES):,.0f} over 10 seeds)" in outcome.line


def test_a_budget_in_which_the_check_could_not_fail_is_refused() -> None:
    limits.check_budget(FRAMES, 3, 90_000, 0.05, "point.json")
    with pytest.raises(UserError, match=r"point\.json: the limit is .* frames; key 'env_frames' must be above"):
        limits.check_budget(FRAMES, 3, 24_000, 0.05, "point.json")
    with pytest.raises(UserError, match="1 of 11 seeds never reached"):
        limits.check_budget([*FRAMES, math.inf], 3, 90_000, 0.05, "point.json")
