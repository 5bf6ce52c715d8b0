"""MuJoCo's own pictures of an episode, drawn without a screen, for `ddrl watch`."""

from __future__ import annotations

import ctypes.util
import os
from collections.abc import Sequence
from typing import Any

import mujoco
import numpy as np

from ddrl.environments.base.contract import check_same_step
from ddrl.environments.worlds.physics import PhysicsEnvs
from ddrl.errors import UserError
from ddrl.types import Array, EnvStep

SIZE = 480
"""Pixels each way."""
_MAX_GEOMS = 10_000
_LIBRARIES = {"egl": "EGL", "osmesa": "OSMesa"}
_PACKAGES = "apt install libegl1 libgl1-mesa-dri (or libosmesa6)"


class SimulatorCamera:
    """Follows with a second simulation: the model's first camera, or a free one where it has none."""

    actions: Sequence[str] = ()
    shows = "the simulator's own picture"

    def __init__(self, twin: PhysicsEnvs) -> None:
        """`twin`: one environment with the player's seed and options.

        Raises: UserError without a graphics library.
        """
        self._twin = twin
        self._context = _graphics()(SIZE, SIZE)
        self._painter: _Painter | None = None
        self.frames_per_second = 1.0 / twin.simulations[0].seconds_per_step

    def reset(self, seen: EnvStep) -> Array:
        """The picture that the episode begins with.

        Raises: RuntimeError if it begins differently from the one seen.
        """
        own = self._twin.reset()
        if self._painter is None:  # only now: a task may change its terrain when an episode begins
            self._context.make_current()
            self._painter = _Painter(*self._twin.simulations[0].scene())
        return self._picture(own, seen)

    def step(self, action: Any, seen: EnvStep) -> Array:
        """One picture; `action` [A].

        Raises: RuntimeError if observation, reward or end differ from those seen: another episode would be filmed.
        """
        return self._picture(self._twin.step(np.asarray(action, dtype=np.float32)[None]), seen)

    def close(self) -> None:
        """Frees the second simulation and the graphics."""
        self._painter = None
        self._context.free()
        self._twin.close()

    def _picture(self, own: EnvStep, seen: EnvStep) -> Array:
        check_same_step(own, seen)
        assert self._painter is not None, "step before reset"
        return self._painter.draw()[None]


class _Painter:
    """Draws one simulation in the graphics context that is current."""

    def __init__(self, model: Any, data: Any) -> None:
        self._model, self._data = model, data
        model.vis.global_.offwidth, model.vis.global_.offheight = SIZE, SIZE
        model.vis.quality.offsamples = 0
        self._scene, self._option = mujoco.MjvScene(model, maxgeom=_MAX_GEOMS), mujoco.MjvOption()
        for costly in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
            self._scene.flags[costly] = 0  # with smoothing (above) most of the time without a graphics card
        self._camera, self._frame = mujoco.MjvCamera(), mujoco.MjrRect(0, 0, SIZE, SIZE)
        if model.ncam:
            self._camera.type, self._camera.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, 0
        else:
            mujoco.mjv_defaultFreeCamera(model, self._camera)
        self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100.value)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, self._context)

    def draw(self) -> Array:
        """The picture [height, width, 3] uint8."""
        everything = mujoco.mjtCatBit.mjCAT_ALL.value
        mujoco.mjv_updateScene(self._model, self._data, self._option, None, self._camera, everything, self._scene)
        mujoco.mjr_render(self._frame, self._scene, self._context)
        picture = np.empty((SIZE, SIZE, 3), dtype=np.uint8)
        mujoco.mjr_readPixels(picture, None, self._frame, self._context)
        return np.flipud(picture).copy()


def _graphics() -> Any:
    """The class of graphics contexts without a screen: MUJOCO_GL names one, else the first that is installed.

    Raises: UserError where there is none.
    """
    wanted = os.environ.get("MUJOCO_GL", "").lower()
    names = [wanted] if wanted in _LIBRARIES else list(_LIBRARIES)
    for name in names:
        if ctypes.util.find_library(_LIBRARIES[name]) is None:
            continue
        try:
            return _context_class(name)
        except (ImportError, AttributeError, RuntimeError) as error:
            raise UserError(f"videos of MuJoCo: {name} does not work here ({error}): {_PACKAGES}") from error
    raise UserError(f"videos of MuJoCo need a graphics library, and there is none: {_PACKAGES}")


def _context_class(name: str) -> Any:
    """Tried once: a library may be installed and have no driver."""
    if name == "egl":
        from mujoco.egl import GLContext
    else:
        from mujoco.osmesa import GLContext
    GLContext(SIZE, SIZE).free()
    return GLContext
