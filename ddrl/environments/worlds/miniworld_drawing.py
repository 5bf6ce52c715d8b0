"""Draws MiniWorld's worlds without a screen, from any thread.

MiniWorld gives every environment an OpenGL context, two frame buffers (one of 800x600) and the display list number 1.
Contexts of one process share their lists, so each environment would draw the walls of whichever began an episode last.
Here all environments of a process share one context and one frame buffer, and each has a list of its own. A context
is current in one thread at a time: `current` takes it, and gives it back, which costs some microseconds.

Mesa draws, in software, also where there is a card: pictures do not depend on the driver, and cards are the learner's.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import CFUNCTYPE, POINTER, byref, c_char_p, c_int, c_uint, c_void_p, cast
from functools import cache
from typing import Any

import numpy as np

from ddrl.errors import UserError
from ddrl.types import Array

PACKAGES = "apt install libegl1 libgl1 libglu1-mesa libgl1-mesa-dri"
"""Debian's packages with the libraries."""
_EGL_EXTENSIONS, _MAX_DEVICES = 0x3055, 64
_Z_NEAR, _Z_FAR = 0.04, 100.0
_LOCK = threading.RLock()


def prepare() -> Any:
    """Import pyglet with the options that must be set first, and return the module.

    Raise UserError where a graphics library is missing, ModuleNotFoundError without pyglet.
    """
    os.environ.setdefault("LP_NUM_THREADS", "0")  # Mesa's own threads: pictures are small, and cores are the actors'
    import pyglet

    pyglet.options.update(headless=True, debug_gl=False, shadow_window=False)
    try:
        from pyglet import gl
        from pyglet.libs.egl import egl
    except ImportError as error:
        raise UserError(f"MiniWorld draws with OpenGL, but: {error} Needed: {PACKAGES}") from error
    assert egl is not None and gl is not None
    return pyglet


@contextmanager
def current() -> Iterator[Canvas]:
    """Make the canvas's context the calling thread's until the block ends; yield the process's canvas."""
    with _LOCK:
        canvas = _canvas()
        canvas.window.switch_to()
        try:
            yield canvas
        finally:
            canvas.give_back()


@cache
def _canvas() -> Canvas:
    return Canvas()


class Canvas:
    """A context and a frame buffer; textures and meshes, which MiniWorld keeps per process, belong to the context."""

    def __init__(self) -> None:
        pyglet = prepare()
        from pyglet import gl
        from pyglet.libs.egl import egl

        self.gl, self._egl = gl, egl
        pyglet.options["headless_device"] = _software_device(egl)
        try:
            self.window = pyglet.window.Window(width=1, height=1, visible=False)
        except Exception as error:  # whatever pyglet makes of an EGL that finds nothing to draw with
            text = " ".join(str(error).split())
            raise UserError(f"MiniWorld draws with OpenGL, but EGL finds no device: {text}; {PACKAGES}") from error
        gl.glGenLists(1)  # number 1 is what MiniWorld's own environments write to
        gl.glEnable(gl.GL_DEPTH_TEST)
        gl.glEnable(gl.GL_CULL_FACE)
        self._frame_buffers: dict[tuple[int, int], Any] = {}

    def give_back(self) -> None:
        """Release the context, so that any thread may take it."""
        self._egl.eglMakeCurrent(self.window.context.display_connection, 0, 0, None)

    def compile(self, world: Any, display_list: int) -> int:
        """Record what does not move in a world; `display_list` is the one to use again, 0 for a new one."""
        gl = self.gl
        display_list = display_list or int(gl.glGenLists(1))
        gl.glNewList(display_list, gl.GL_COMPILE)
        light = zip(
            (gl.GL_POSITION, gl.GL_AMBIENT, gl.GL_DIFFUSE),
            ((*(world.light_pos + 1), 0.0), (*world.light_ambient, 0.0), (*world.light_color, 0.0)),
            strict=True,
        )
        for name, values in light:  # as MiniWorld sets it: a direction, since it adds 1 to three numbers
            gl.glLightfv(gl.GL_LIGHT0, name, (gl.GLfloat * 4)(*values))
        for switch in (gl.GL_LIGHTING, gl.GL_LIGHT0, gl.GL_COLOR_MATERIAL, gl.GL_TEXTURE_2D):
            gl.glEnable(switch)
        gl.glShadeModel(gl.GL_SMOOTH)
        gl.glColorMaterial(gl.GL_FRONT_AND_BACK, gl.GL_AMBIENT_AND_DIFFUSE)
        for room in world.rooms:
            room._render()
        for entity in world.entities:
            if entity.is_static:
                entity.render()
        gl.glEndList()
        return display_list

    def compile_shape(self, world: Any, display_list: int) -> int:
        """Record the shapes of a world's rooms alone, without colours, for `depth`; `display_list` as for `compile`."""
        gl = self.gl
        display_list = display_list or int(gl.glGenLists(1))
        gl.glNewList(display_list, gl.GL_COMPILE)
        for switch in (gl.GL_LIGHTING, gl.GL_TEXTURE_2D):
            gl.glDisable(switch)
        for room in world.rooms:
            parts = [(gl.GL_POLYGON, room.floor_verts), (gl.GL_QUADS, room.wall_verts)]
            for kind, corners in parts if room.no_ceiling else [*parts, (gl.GL_POLYGON, room.ceil_verts)]:
                gl.glBegin(kind)
                for corner in corners.tolist():
                    gl.glVertex3f(*corner)
                gl.glEnd()
        gl.glEndList()
        return display_list

    def depth(self, world: Any, display_list: int, height: int, width: int) -> Array:
        """Return how far what the agent of a world sees is: [height, width] float32, metres along its line of sight.

        What is nearer than 4 cm is not drawn, and nothing is farther than 100 m. Only the recorded shapes are drawn.
        """
        gl = self.gl
        self._look(world, height, width)
        gl.glColorMask(False, False, False, False)
        gl.glClear(gl.GL_DEPTH_BUFFER_BIT)
        gl.glCallList(display_list)
        gl.glColorMask(True, True, True, True)
        stored = np.empty((height, width), dtype=np.float32)
        place = stored.ctypes.data_as(POINTER(gl.GLfloat))
        gl.glReadPixels(0, 0, width, height, gl.GL_DEPTH_COMPONENT, gl.GL_FLOAT, place)
        metres: Array = _Z_NEAR * _Z_FAR / (_Z_FAR - stored * np.float32(_Z_FAR - _Z_NEAR))  # inverts `gluPerspective`
        return metres[::-1]  # OpenGL begins at the bottom

    def draw(self, world: Any, display_list: int, height: int, width: int) -> Array:
        """Return what the agent of a world sees: [height, width, 3] uint8."""
        gl, agent = self.gl, world.agent
        self._look(world, height, width)
        gl.glClearColor(*world.sky_color, 1.0)
        gl.glClear(gl.GL_COLOR_BUFFER_BIT | gl.GL_DEPTH_BUFFER_BIT)
        gl.glCallList(display_list)
        for entity in world.entities:
            if not entity.is_static and entity is not agent:
                entity.render()
        picture = np.empty((height, width, 3), dtype=np.uint8)
        gl.glPixelStorei(gl.GL_PACK_ALIGNMENT, 1)
        place = picture.ctypes.data_as(POINTER(gl.GLubyte))
        gl.glReadPixels(0, 0, width, height, gl.GL_RGB, gl.GL_UNSIGNED_BYTE, place)
        return picture[::-1]  # OpenGL begins at the bottom

    def _look(self, world: Any, height: int, width: int) -> None:
        """Draw from now on what a world's agent sees, into the frame buffer of that size."""
        gl, agent = self.gl, world.agent
        gl.glBindFramebuffer(gl.GL_FRAMEBUFFER, self._frame_buffer(height, width))
        gl.glViewport(0, 0, width, height)
        gl.glMatrixMode(gl.GL_PROJECTION)
        gl.glLoadIdentity()
        gl.gluPerspective(agent.cam_fov_y, width / height, _Z_NEAR, _Z_FAR)
        gl.glMatrixMode(gl.GL_MODELVIEW)
        gl.glLoadIdentity()
        eye = agent.cam_pos
        gl.gluLookAt(*eye, *(eye + agent.cam_dir), 0.0, 1.0, 0.0)

    def _frame_buffer(self, height: int, width: int) -> Any:
        """Return the frame buffer of that size, without multisampling. Raise UserError where the driver has none."""
        if (height, width) not in self._frame_buffers:
            gl = self.gl
            frame_buffer, buffers = gl.GLuint(), (gl.GLuint * 2)()
            gl.glGenFramebuffers(1, byref(frame_buffer))
            gl.glBindFramebuffer(gl.GL_FRAMEBUFFER, frame_buffer)
            gl.glGenRenderbuffers(2, buffers)
            kinds = ((gl.GL_RGBA8, gl.GL_COLOR_ATTACHMENT0), (gl.GL_DEPTH_COMPONENT24, gl.GL_DEPTH_ATTACHMENT))
            for buffer, (form, attachment) in zip(buffers, kinds, strict=True):
                gl.glBindRenderbuffer(gl.GL_RENDERBUFFER, buffer)
                gl.glRenderbufferStorage(gl.GL_RENDERBUFFER, form, width, height)
                gl.glFramebufferRenderbuffer(gl.GL_FRAMEBUFFER, attachment, gl.GL_RENDERBUFFER, buffer)
            if gl.glCheckFramebufferStatus(gl.GL_FRAMEBUFFER) != gl.GL_FRAMEBUFFER_COMPLETE:
                raise UserError(f"MiniWorld draws with OpenGL, but this driver has no frame buffers: {PACKAGES}")
            self._frame_buffers[(height, width)] = frame_buffer
        return self._frame_buffers[(height, width)]


def _software_device(egl: Any) -> int:
    """Return the index of Mesa's software device among EGL's, 0 where none says that it is one."""
    address = CFUNCTYPE(c_void_p, c_char_p)(("eglGetProcAddress", egl._lib))
    if not address(b"eglQueryDeviceStringEXT") or not address(b"eglQueryDevicesEXT"):
        return 0
    describe = CFUNCTYPE(c_char_p, c_void_p, c_int)(address(b"eglQueryDeviceStringEXT"))
    query = CFUNCTYPE(c_uint, c_int, c_void_p, c_void_p)(address(b"eglQueryDevicesEXT"))
    devices, count = (c_void_p * _MAX_DEVICES)(), c_int()
    query(_MAX_DEVICES, cast(devices, c_void_p), cast(byref(count), c_void_p))
    for index in range(count.value):
        if b"EGL_MESA_device_software" in (describe(devices[index], _EGL_EXTENSIONS) or b""):
            return index
    return 0
