"""MiniWorld's rooms and mazes (Chevalier-Boisvert et al. 2023), with the nine actions of `firstperson`.

An agent step is four of MiniWorld's steps ("frames"), of which only the last is drawn (`miniworld_drawing`).

- forward, backward: 0.15 m a frame, as there. look left, right: 5 degrees a frame instead of 15, so that a step turns
  by 20 degrees and not by 60. forward + look: both in every frame. strafe left, right: nothing; MiniWorld has no such
  action.
- fire, in the first of the four frames: picks up what lies before the agent or, if it carries something, drops it.
- What a task's own action space lacks does nothing here either: backward and fire count only in CollectHealth,
  PickupObjects and PutNext. So no task is changed; Sign's own action that ends the episode is left out.
- In all tasks a step costs, looks and moves the same; Sign's own steps of 0.7 m and 45 degrees are not used.
- Most rewards are 1 - 0.2 frames / limit, with the limit of this suite (or the option `max_frames`), not MiniWorld's.
- Sign: colour (on the sign) and kind (in the instruction) of what to touch are drawn for each episode.
- No domain randomisation: no task has it by default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from ddrl.environments.worlds import miniworld_drawing
from ddrl.environments.worlds.firstperson_tasks import ACTIONS, Task
from ddrl.system import instruction_words
from ddrl.system.seeding import numpy_generator
from ddrl.types import Array

DEGREES = 5.0
"""The angle by which a look turns, per frame."""
ACTION_PROTOCOL = f"forward0.15m,turn{DEGREES:g}deg,fire-picks-up-or-drops"
PICTURE_PROTOCOL = "software-rendered,no-multisampling,no-domain-randomisation"
_SIGN_KINDS = ("box", "key")
_SIGN_COLOURS = 3


class MiniWorld:
    """One of MiniWorld's environments, as a `replayed.Replayable`."""

    def __init__(self, task: Task, limit: int, frame_skip: int, size: tuple[int, int]) -> None:
        """`limit`: frames, on which rewards depend. `size`: height and width of observations.

        Raise UserError where a graphics library is missing, ModuleNotFoundError without the package.
        """
        self.env = environment(task.source)
        self.env.max_episode_steps = limit
        self._frame_skip, self._scale, self._size = frame_skip, task.reward_scale, size
        self._list = 0
        self._words = instruction_words.hashed("")

    def reset(self, seed: int) -> Array:
        """Start the episode that `seed` determines; return its first observation."""
        if hasattr(self.env, "_color_index"):
            generator = numpy_generator(seed, "sign")
            self.env._color_index, self.env._goal = int(generator.integers(_SIGN_COLOURS)), int(generator.integers(2))
            self._words = instruction_words.hashed(f"go to the {_SIGN_KINDS[self.env._goal]}")
        with miniworld_drawing.current() as canvas:  # new textures and meshes are loaded
            self.env.reset(seed=seed)
            self._list = canvas.compile(self.env, self._list)
        return self._observation()

    def step(self, action: Any) -> tuple[Array, float, bool, bool]:
        """Return observation, reward (the sum over the frames), terminated and truncated (never)."""
        total, terminated = 0.0, False
        for frame in range(self._frame_skip):
            _, reward, terminated, _, _ = self.env.step(self._own_action(int(action), first=frame == 0))
            total += float(reward)
            if terminated:
                break
        return self._observation(), self._scale * total, bool(terminated), False

    def close(self) -> None:
        """Free what was recorded of the world."""
        with miniworld_drawing.current() as canvas:
            canvas.gl.glDeleteLists(self._list, 1)
        self._list = 0

    def _own_action(self, action: int, *, first: bool) -> int:
        """Return the step of MiniWorld that a frame takes; do the look, which is no step, at once."""
        own = self.env.actions
        parts = ACTIONS[action].split(" + ")
        if "look left" in parts:
            self.env.turn_agent(DEGREES)
        if "look right" in parts:
            self.env.turn_agent(-DEGREES)
        if "forward" in parts:
            return int(own.move_forward)
        full = self.env.action_space.n > own.pickup
        if "backward" in parts and full:
            return int(own.move_back)
        if "fire" in parts and first and full:
            return int(own.drop if self.env.agent.carrying else own.pickup)
        return int(own.done)  # which does nothing

    def _observation(self) -> Array:
        with miniworld_drawing.current() as canvas:
            picture = canvas.draw(self.env, self._list, *self._size)
        return instruction_words.pack(np.ascontiguousarray(picture.transpose(2, 0, 1)), self._words)


def environment(kind: str, build: Callable[[Any], None] | None = None) -> Any:
    """Make one of MiniWorld's environments, which draws nothing itself; `build` puts up its rooms and all in them.

    Without `build` these are the environment's own. Raise UserError where a graphics library is missing,
    ModuleNotFoundError without the package.
    """
    miniworld_drawing.prepare()
    _remember_files()
    from miniworld import envs
    from miniworld.params import DEFAULT_PARAMS

    own_class = getattr(envs, kind)
    env = own_class.__new__(own_class)
    if build is not None:
        env._gen_world = partial(build, env)
    env.render_obs = env._render_static = lambda: None  # MiniWorld would draw in every frame
    with miniworld_drawing.current() as canvas, _without_windows(canvas):
        env.__init__()
    env.params = DEFAULT_PARAMS  # of Sign too
    return env


@cache
def _remember_files() -> None:
    """Let MiniWorld look once for the file of each texture, not for each room: that was two fifths of a reset."""
    from miniworld import opengl

    module: Any = opengl
    module.get_file_path = cache(module.get_file_path)


@contextmanager
def _without_windows(canvas: miniworld_drawing.Canvas) -> Iterator[None]:
    """Make MiniWorld's constructor use the process's context, without frame buffers and fonts of its own."""
    from miniworld import miniworld

    module: Any = miniworld
    real = module.pyglet, module.FrameBuffer
    module.pyglet = SimpleNamespace(
        window=SimpleNamespace(Window=lambda **_: canvas.window), text=SimpleNamespace(Label=lambda **_: None)
    )
    module.FrameBuffer = lambda *_: None
    try:
        yield
    finally:
        module.pyglet, module.FrameBuffer = real
