"""MuJoCo's own pictures of an episode, drawn without a screen, for `ddrl watch`."""

from __future__ import annotations

import ctypes.util
import os
from collections.abc import Callable
from functools import cache
from typing import Any

import mujoco
import numpy as np

from ddrl.environments.tools.camera import Camera, twin_camera
from ddrl.errors import UserError
from ddrl.types import Array, VectorEnv

SIZE = 480
"""Pixels each way."""
_MAX_GEOMS = 10_000
_LIBRARIES = {"egl": "EGL", "osmesa": "OSMesa"}
_PACKAGES = "apt install libegl1 libgl1-mesa-dri (or libosmesa6)"


def simulator_camera(twin: VectorEnv, scene: Callable[[], tuple[Any, Any]], seconds_per_step: float) -> Camera:
    """Make a camera that draws a second simulation: by the model's first camera, or a free one where it has none.

    `scene` returns the simulator's model, always the same, and its data. Raise UserError without a graphics library.
    """
    context = _graphics()(SIZE, SIZE)

    @cache
    def painter() -> _Painter:  # made with the first picture: a task may change its terrain when an episode begins
        context.make_current()
        return _Painter(scene()[0])

    def free() -> None:
        painter.cache_clear()
        context.free()

    def draw() -> Array:
        return painter().draw(scene()[1])

    return twin_camera(twin, draw, "the simulator's own picture", 1.0 / seconds_per_step, free=free)


class _Painter:
    """Draws simulations of one model in the graphics context that is current."""

    def __init__(self, model: Any) -> None:
        self._model = model
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

    def draw(self, data: Any) -> Array:
        """Return one picture [1, height, width, 3] uint8."""
        everything = mujoco.mjtCatBit.mjCAT_ALL.value
        mujoco.mjv_updateScene(self._model, data, self._option, None, self._camera, everything, self._scene)
        mujoco.mjr_render(self._frame, self._scene, self._context)
        picture = np.empty((SIZE, SIZE, 3), dtype=np.uint8)
        mujoco.mjr_readPixels(picture, None, self._frame, self._context)
        return np.flipud(picture)[None].copy()


def _graphics() -> Any:
    """Return the class of graphics contexts without a screen: MUJOCO_GL names one, else the first that is installed.

    Raise UserError where there is none.
    """
    wanted = os.environ.get("MUJOCO_GL", "").lower()
    for name in [wanted] if wanted in _LIBRARIES else _LIBRARIES:
        if ctypes.util.find_library(_LIBRARIES[name]) is None:
            continue
        try:
            return _context_class(name)
        except (ImportError, AttributeError, RuntimeError) as error:
            raise UserError(f"videos of MuJoCo: {name} does not work here ({error}): {_PACKAGES}") from error
    raise UserError(f"videos of MuJoCo need a graphics library, and there is none: {_PACKAGES}")


def _context_class(name: str) -> Any:
    """Import one class of contexts and try it once: a library may be installed and have no driver."""
    if name == "egl":
        from mujoco.egl import GLContext
    else:
        from mujoco.osmesa import GLContext
    GLContext(SIZE, SIZE).free()
    return GLContext
