"""Cameras: colour pictures of one environment's first episode, for `ddrl watch`.

A camera follows a game that somebody else plays: `reset` and `step` are told what the player saw. An adapter that can
show more than what its agents see exports `camera`; for the others, `camera_for` shows what the agent sees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    """What the pictures are, in a few words."""

    def reset(self, seen: EnvStep) -> Array:
        """The picture that an episode begins with; `seen` is what `reset` of the player's environment returned."""

    def step(self, action: Any, seen: EnvStep) -> Array:
        """The pictures of one agent step: `action` was taken, and the player's environment returned `seen`.

        `action` is an integer, or numbers [A] where actions are continuous.
        """

    def close(self) -> None:
        """Frees native resources."""


def camera_for(name: str, seed: int, options: Mapping[str, Any]) -> Camera:
    """The camera for `registry.make(name, num_envs=1, seed=seed, **options)`."""
    prefix, _, task = name.partition("/")
    adapter = registry.adapter(prefix)
    if hasattr(adapter, "camera"):
        camera: Camera = adapter.camera(task, seed, **registry.resolve_options(name, options))
        return camera
    spec = registry.spec_for(name, **options)
    if spec.image_shape is not None and spec.image_shape[0] == 3:
        return ImageCamera(spec, EMULATOR_HERTZ / spec.frame_skip)
    return ObservationCamera(spec)


class EmulatorCamera:
    """Every frame of an emulator: a second one with the same seed and actions, stepped frame by frame."""

    shows = "all emulator frames in colour"

    def __init__(self, twin: VectorEnv, frame_skip: int, frames_per_second: float, actions: Sequence[str]) -> None:
        """`twin`: one environment whose observations are frames [1, 1, height, width, 3], without skip and cap."""
        self.frames_per_second, self.actions = frames_per_second, tuple(actions)
        self._twin, self._frame_skip = twin, frame_skip

    def reset(self, seen: EnvStep) -> Array:
        """The frame that the episode begins with."""
        return cast(Array, self._twin.reset().observation[0])

    def step(self, action: Any, seen: EnvStep) -> Array:
        """Up to frame-skip many frames: fewer when the game ends.

        Raises: RuntimeError if reward or end differ from those seen: another episode would be filmed.
        """
        steps: list[EnvStep] = []
        while len(steps) < self._frame_skip and not (steps and steps[-1].ended[0]):
            steps.append(self._twin.step(np.array([action])))
        over = bool(steps[-1].ended[0]) or bool(seen.truncated[0])  # only the player's environment has a cap
        if sum(float(step.reward[0]) for step in steps) != seen.reward[0] or over != seen.ended[0]:
            raise RuntimeError("the second emulator plays another episode than the agent's")
        return np.concatenate([step.observation[0] for step in steps])

    def close(self) -> None:
        """Frees the second emulator."""
        self._twin.close()


class CellCamera:
    """A flat observation drawn as a board of cells between lines, the smallest value black and the largest white."""

    frames_per_second = CELLS_PER_SECOND
    shows = "what the agent sees, as cells"

    def __init__(self, board: tuple[int, int], actions: Sequence[str] = ()) -> None:
        """`board`: rows and columns; their product is the observation's length."""
        self.actions = tuple(actions)
        self._board = board
        self._pixels = max(1, min(CELL_PIXELS, BOARD_PIXELS // max(board)))

    def reset(self, seen: EnvStep) -> Array:
        """One picture."""
        flat = seen.observation[0].astype(np.float64)
        low, high = min(0.0, flat.min()), max(1.0, flat.max())
        cells = np.round(255 * (flat - low) / (high - low)).astype(np.uint8)
        board = cells.reshape(1, *self._board).repeat(self._pixels, axis=1).repeat(self._pixels, axis=2)
        if self._pixels > 2:
            board[:, :: self._pixels] = board[:, :, :: self._pixels] = LINE_GREY
        return _as_colour(board)

    def step(self, action: Any, seen: EnvStep) -> Array:
        """One picture."""
        return self.reset(seen)

    def close(self) -> None:
        """Nothing to free."""


class ImageCamera:
    """The image of an observation that also holds an instruction: [3, height, width], in colour and enlarged."""

    actions: Sequence[str]
    shows = "the image that the agent sees"

    def __init__(self, spec: EnvSpec, frames_per_second: float, actions: Sequence[str] = ()) -> None:
        """`spec` has an `image_shape` of three channels."""
        self.frames_per_second, self.actions = frames_per_second, tuple(actions)
        self._spec = spec

    def reset(self, seen: EnvStep) -> Array:
        """One picture."""
        image = image_of(seen.observation[0], self._spec).transpose(1, 2, 0)
        return image[None].repeat(IMAGE_SCALE, axis=1).repeat(IMAGE_SCALE, axis=2)

    def step(self, action: Any, seen: EnvStep) -> Array:
        """One picture."""
        return self.reset(seen)

    def close(self) -> None:
        """Nothing to free."""


class ObservationCamera:
    """What the agent sees: the newest frame of a stack [stack, height, width], or a flat observation as cells."""

    actions: Sequence[str] = ()

    def __init__(self, spec: EnvSpec) -> None:
        images = len(spec.observation_shape) == 3
        self.shows = "the newest frame that the agent sees" if images else CellCamera.shows
        self.frames_per_second = EMULATOR_HERTZ / spec.frame_skip if images else CELLS_PER_SECOND
        self._cells = None if images else CellCamera((1, int(np.prod(spec.observation_shape))))

    def reset(self, seen: EnvStep) -> Array:
        """One picture."""
        return self._cells.reset(seen) if self._cells else _as_colour(seen.observation[0][-1:])

    def step(self, action: Any, seen: EnvStep) -> Array:
        """One picture."""
        return self.reset(seen)

    def close(self) -> None:
        """Nothing to free."""


def _as_colour(grey: Array) -> Array:
    """[n, height, width] -> [n, height, width, 3]."""
    return np.repeat(grey[..., None], 3, axis=-1)
