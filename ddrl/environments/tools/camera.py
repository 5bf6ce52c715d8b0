"""Cameras: colour pictures of one environment's first episode, for `ddrl watch`.

A camera does not play itself: its `reset` and `step` are told what the player of the episode saw. An adapter that can
show more than what its agents see exports `camera`; for the others, `camera_for` shows what the agent sees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, cast

import numpy as np

from ddrl.environments.base import registry
from ddrl.system.instruction_words import image_of
from ddrl.types import Array, EnvSpec, EnvStep, VectorEnv

CELLS_PER_SECOND = 5.0
"""Pictures per second where nothing moves between steps: slow enough to follow."""
EMULATOR_HERTZ = 60.0
CELL_PIXELS, LINE_GREY = 16, 64
IMAGE_SCALE = 4
"""Pixels each way for one of a packed image."""
BOARD_PIXELS = 640
"""A board's longer side is at most this long, where that leaves a pixel for each cell."""


class Camera(Protocol):
    """Pictures of one episode: arrays [n, height, width, 3] uint8, n at least 1, always of the same size."""

    frames_per_second: float
    actions: Sequence[str]
    """Names of the actions; empty where they have none."""
    shows: str
    """The kind of pictures, in a few words."""

    def reset(self, seen: EnvStep) -> Array:
        """Return the picture that an episode begins with; the player's environment returned `seen` from `reset`."""

    def step(self, action: Any, seen: EnvStep) -> Array:
        """Return the pictures of one agent step: `action` was taken, and the player's environment returned `seen`.

        `action` is an integer, or numbers [A] where actions are continuous.
        """

    def close(self) -> None:
        """Free native resources."""


def camera_for(name: str, seed: int, options: Mapping[str, Any]) -> Camera:
    """Return the camera for `registry.make(name, num_envs=1, seed=seed, **options)`."""
    prefix, _, task = name.partition("/")
    adapter = registry.adapter(prefix)
    if hasattr(adapter, "camera"):
        camera: Camera = adapter.camera(task, seed, **registry.resolve_options(name, options))
        return camera
    spec = registry.spec_for(name, **options)
    if spec.image_shape is not None and spec.image_shape[0] == 3:
        return image_camera(spec, EMULATOR_HERTZ / spec.frame_skip)
    if len(spec.observation_shape) == 3:
        shows = "the newest frame that the agent sees"
        return ObservationCamera(lambda stack: _as_colour(stack[-1:]), shows, EMULATOR_HERTZ / spec.frame_skip)
    return cell_camera((1, int(np.prod(spec.observation_shape))))


class ObservationCamera:
    """Pictures of what the agent sees: one of each observation."""

    def __init__(
        self, draw: Callable[[Array], Array], shows: str, frames_per_second: float, actions: Sequence[str] = ()
    ) -> None:
        """`draw` makes a picture [1, height, width, 3] uint8 of one environment's observation."""
        self.shows, self.frames_per_second, self.actions = shows, frames_per_second, actions
        self._draw = draw

    def reset(self, seen: EnvStep) -> Array:
        return self._draw(seen.observation[0])

    def step(self, action: Any, seen: EnvStep) -> Array:
        return self._draw(seen.observation[0])

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


def cell_camera(board: tuple[int, int], actions: Sequence[str] = ()) -> ObservationCamera:
    """Make a camera that draws flat observations as a board of cells; `board` is its rows and columns.

    Lines lie between the cells. The smallest value is black and the largest white.
    """
    pixels = max(1, min(CELL_PIXELS, BOARD_PIXELS // max(board)))

    def draw(observation: Array) -> Array:
        flat = observation.astype(np.float64)
        low, high = min(0.0, flat.min()), max(1.0, flat.max())
        cells = np.round(255 * (flat - low) / (high - low)).astype(np.uint8)
        picture = cells.reshape(1, *board).repeat(pixels, axis=1).repeat(pixels, axis=2)
        if pixels > 2:
            picture[:, ::pixels] = picture[:, :, ::pixels] = LINE_GREY
        return _as_colour(picture)

    return ObservationCamera(draw, "what the agent sees, as cells", CELLS_PER_SECOND, actions)


def image_camera(
    spec: EnvSpec,
    frames_per_second: float,
    actions: Sequence[str] = (),
    *,
    shows: str = "the image that the agent sees",
    scale: int = IMAGE_SCALE,
) -> ObservationCamera:
    """Make a camera that shows the colour image in observations that also hold an instruction, enlarged by `scale`."""
    return ObservationCamera(partial(_image, spec=spec, scale=scale), shows, frames_per_second, actions)


def _image(observation: Array, spec: EnvSpec, scale: int) -> Array:
    image = image_of(observation, spec).transpose(1, 2, 0)
    return image[None].repeat(scale, axis=1).repeat(scale, axis=2)


class TwinCamera:
    """Pictures of a second environment that plays the same episode as the player's."""

    def __init__(
        self,
        twin: VectorEnv,
        draw: Callable[[], Array],
        shows: str,
        frames_per_second: float,
        actions: Sequence[str] = (),
        free: Callable[[], None] = lambda: None,
    ) -> None:
        """`twin` is one environment with the player's seed and options; `draw` makes a picture of its present state.

        `free` frees what `draw` needed, before `twin` is closed.
        """
        self.shows, self.frames_per_second, self.actions = shows, frames_per_second, actions
        self._twin, self._draw, self._free = twin, draw, free

    def reset(self, seen: EnvStep) -> Array:
        """Return the picture that the episode begins with. Raise RuntimeError as `step`."""
        return self._picture(self._twin.reset(), seen)

    def step(self, action: Any, seen: EnvStep) -> Array:
        """Return one picture.

        Raise RuntimeError if the twin's observation, reward or end differ from those seen: another episode would be
        filmed.
        """
        dtype = np.float32 if self._twin.spec.action_size else np.int64
        return self._picture(self._twin.step(np.asarray(action, dtype=dtype)[None]), seen)

    def close(self) -> None:
        self._free()
        self._twin.close()

    def _picture(self, own: EnvStep, seen: EnvStep) -> Array:
        if any(not np.array_equal(getattr(own, field), getattr(seen, field)) for field in EnvStep._fields):
            raise RuntimeError("the camera's environment plays another episode than the agent's")
        return self._draw()


class EmulatorCamera:
    """Every frame of an emulator: a second one with the same seed and actions, stepped frame by frame."""

    shows = "all emulator frames in colour"

    def __init__(self, twin: VectorEnv, frame_skip: int, frames_per_second: float, actions: Sequence[str]) -> None:
        """`twin`: one environment whose observations are frames [1, 1, height, width, 3], without skip and cap."""
        self.frames_per_second, self.actions = frames_per_second, actions
        self._twin, self._frame_skip = twin, frame_skip

    def reset(self, seen: EnvStep) -> Array:
        return cast(Array, self._twin.reset().observation[0])

    def step(self, action: Any, seen: EnvStep) -> Array:
        """Return as many frames as one agent step takes: fewer when the game ends.

        Raise RuntimeError if reward or end differ from those seen: another episode would be filmed.
        """
        steps: list[EnvStep] = []
        while len(steps) < self._frame_skip and not (steps and steps[-1].ended[0]):
            steps.append(self._twin.step(np.array([action])))
        over = bool(steps[-1].ended[0]) or bool(seen.truncated[0])  # only the player's environment has a cap
        if sum(float(step.reward[0]) for step in steps) != seen.reward[0] or over != seen.ended[0]:
            raise RuntimeError("the second emulator plays another episode than the agent's")
        return np.concatenate([step.observation[0] for step in steps])

    def close(self) -> None:
        self._twin.close()


def _as_colour(grey: Array) -> Array:
    """Return grey pictures [n, height, width] in colour, [n, height, width, 3]."""
    return np.repeat(grey[..., None], 3, axis=-1)
