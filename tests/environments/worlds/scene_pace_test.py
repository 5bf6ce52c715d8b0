"""Paces of scenes: their mean and spread, when they change, and that they change nothing but time."""

from __future__ import annotations

import time

import numpy as np
import pytest

from ddrl.environments.base import registry
from ddrl.environments.worlds.scene_pace import SCENE_STEPS, ScenePace


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    seconds: list[float] = []
    monkeypatch.setattr(time, "sleep", seconds.append)
    return seconds


def test_scenes_have_the_mean_and_the_spread_that_are_given(slept: list[float]) -> None:
    pace = ScenePace(1, 4.0, 0.5)
    for _ in range(2000 * SCENE_STEPS):
        pace.wait()
    scenes = np.array(slept).reshape(-1, SCENE_STEPS)
    assert (scenes == scenes[:, :1]).all(), "a scene has one pace"
    assert scenes.mean() == pytest.approx(0.004, rel=0.05)
    assert np.log(scenes[:, 0]).std() == pytest.approx(0.5, rel=0.05)


def test_without_spread_all_steps_take_as_long(slept: list[float]) -> None:
    pace = ScenePace(1, 4.0, 0.0)
    for _ in range(2 * SCENE_STEPS):
        pace.wait()
    assert set(slept) == {0.004}


def test_without_milliseconds_nothing_sleeps(slept: list[float]) -> None:
    ScenePace(1, 0.0, 0.5).wait()
    assert slept == []


def test_scenes_follow_from_the_seed(slept: list[float]) -> None:
    for seed in (1, 1, 2):
        ScenePace(seed, 4.0, 0.5).wait()
    assert slept[0] == slept[1] != slept[2]


def test_pointnav_sleeps_once_a_step_of_all_environments_and_plays_the_same(slept: list[float]) -> None:
    plain, paced = (registry.make("pointnav/small", 4, 7, **pace) for pace in ({}, {"step_ms": 3.0}))
    assert plain.spec == paced.spec
    generator = np.random.default_rng(0)
    plain.reset()
    paced.reset()
    for _ in range(20):
        actions = generator.integers(0, 4, 4)
        for one, other in zip(plain.step(actions), paced.step(actions), strict=True):
            assert np.array_equal(one, other)
    assert slept == [0.003] * 20
