"""MuJoCo's pictures belong to the episode that is played; without a graphics library one line says what to install."""

from __future__ import annotations

import ctypes.util
from itertools import pairwise

import numpy as np
import pytest

from ddrl.environments.base import registry
from ddrl.environments.tools import simulator_camera
from ddrl.environments.tools.camera import camera_for
from ddrl.errors import UserError
from ddrl.types import Array

OPTIONS = {"max_steps": 6}


@pytest.fixture
def graphics() -> None:
    """Skips where nothing can be drawn."""
    try:
        simulator_camera._graphics()
    except UserError as error:
        pytest.skip(str(error))


def film(name: str, seed: int = 3, camera_seed: int = 3) -> tuple[list[Array], float]:
    """The pictures of one episode of constant actions, and how many there are for a second."""
    env, camera = registry.make(name, 1, seed, **OPTIONS), camera_for(name, camera_seed, OPTIONS)
    try:
        step = env.reset()
        shots, action = [camera.reset(step)], np.full((1, env.spec.action_size), 0.5, dtype=np.float32)
        while not step.ended[0]:
            step = env.step(action)
            shots.append(camera.step(action[0], step))
        return shots, camera.frames_per_second
    finally:
        camera.close()
        env.close()


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("mujoco/HalfCheetah-v5", 20),
        ("mujoco/Reacher-v5", 50),
        ("dm_control/cheetah-run", 100),
        ("mujoco_batch/Ant-v5", 20),
    ],
)
def test_an_episode_is_filmed_at_the_speed_of_the_simulation(graphics: None, name: str, rate: int) -> None:
    shots, found = film(name)
    assert found == pytest.approx(rate)
    assert [shot.shape for shot in shots] == [(1, 480, 480, 3)] * 7
    assert all(shot.dtype == np.uint8 and shot.std() > 5 for shot in shots)
    assert all(np.abs(a.astype(int) - b).max() > 50 for a, b in pairwise(shots))


def test_a_camera_refuses_to_film_another_episode(graphics: None) -> None:
    with pytest.raises(RuntimeError, match="another episode"):
        film("mujoco/Hopper-v5", camera_seed=4)


def test_without_a_graphics_library_the_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: None)
    with pytest.raises(UserError, match=r"none: apt install libegl1 libgl1-mesa-dri \(or libosmesa6\)"):
        camera_for("mujoco/Hopper-v5", 1, {})


def test_a_library_without_a_driver_is_one_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise ImportError("no display")

    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: "libOSMesa.so.8")
    monkeypatch.setattr(simulator_camera, "_context_class", broken)
    with pytest.raises(UserError, match=r"osmesa does not work here \(no display\): apt install"):
        camera_for("mujoco/Hopper-v5", 1, {})
