"""Cameras: colour pictures of one environment's first episode, for `ddrl watch`.

A camera does not play itself: its `reset` and `step` are told what the player of the episode saw. An adapter that can
show more than what its agents see exports `camera`; for the others, `camera_for` shows what the agent sees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True)
class Camera:
    """Pictures of one episode: arrays [n, height, width, 3] uint8, n at least 1, always of the same size."""

    reset: Callable[[EnvStep], Array]
    """The step that the player's environment returned from `reset` -> the picture that the episode begins with."""
    step: Callable[[Any, EnvStep], Array]
    """An action, an integer or numbers [A], and the step that it led the player to -> the pictures of that step.

    Raise RuntimeError where a second environment returns something else: another episode would be filmed."""
    shows: str
    """The kind of pictures, in a few words."""
    frames_per_second: float
    actions: Sequence[str] = ()
    """Names of the actions; empty where they have none."""
    close: Callable[[], None] = lambda: None
    """Frees native resources."""


def camera_for(name: str, seed: int, options: Mapping[str, Any]) -> Camera:
    """Return the camera for `registry.make(name, num_envs=1, seed=seed, **options)`."""
    prefix, _, task = name.partition("/")
    adapter = registry.adapter(prefix)
    if adapter.camera is not None:
        return adapter.camera(task, seed, **registry.resolve_options(name, options))
    return observed_camera(registry.spec_for(name, **options))


def observed_camera(spec: EnvSpec) -> Camera:
    """Make a camera that shows what the agent sees: its newest frame, its image, or its numbers as cells."""
    if spec.image_shape is not None and spec.image_shape[0] == 3:
        return image_camera(spec, EMULATOR_HERTZ / spec.frame_skip)
    if len(spec.observation_shape) == 3:
        return observation_camera(
            _newest_frame(spec), "the newest frame that the agent sees", EMULATOR_HERTZ / spec.frame_skip
        )
    return cell_camera((1, int(np.prod(spec.observation_shape))))


def _newest_frame(spec: EnvSpec) -> Callable[[Array], Array]:
    """Return what draws the newest frame of a stack: in colour where its images have three channels, otherwise grey."""
    if spec.frame_stack == 1 and spec.observation_shape[0] % 3 == 0:
        return lambda stack: stack[-3:].transpose(1, 2, 0)[None]
    return lambda stack: _as_colour(stack[-1:])


def observation_camera(
    draw: Callable[[Array], Array], shows: str, frames_per_second: float, actions: Sequence[str] = ()
) -> Camera:
    """Make a camera that shows what the agent sees: one picture of each observation.

    `draw` makes a picture [1, height, width, 3] uint8 of one environment's observation.
    """
    return Camera(
        reset=lambda seen: draw(seen.observation[0]),
        step=lambda action, seen: draw(seen.observation[0]),
        shows=shows,
        frames_per_second=frames_per_second,
        actions=actions,
    )


def cell_camera(board: tuple[int, int], actions: Sequence[str] = ()) -> Camera:
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

    return observation_camera(draw, "what the agent sees, as cells", CELLS_PER_SECOND, actions)


def image_camera(
    spec: EnvSpec,
    frames_per_second: float,
    actions: Sequence[str] = (),
    *,
    shows: str = "the image that the agent sees",
    scale: int = IMAGE_SCALE,
) -> Camera:
    """Make a camera that shows the colour image in observations that also hold an instruction, enlarged by `scale`."""

    def draw(observation: Array) -> Array:
        image = image_of(observation, spec).transpose(1, 2, 0)
        return image[None].repeat(scale, axis=1).repeat(scale, axis=2)

    return observation_camera(draw, shows, frames_per_second, actions)


def twin_camera(
    twin: VectorEnv,
    draw: Callable[[], Array],
    shows: str,
    frames_per_second: float,
    actions: Sequence[str] = (),
    free: Callable[[], None] = lambda: None,
) -> Camera:
    """Make a camera that shows a second environment, which plays the same episode as the player's.

    `twin` is one environment with the player's seed and options; `draw` makes a picture of its present state. `free`
    frees what `draw` needed, before `twin` is closed.
    """

    def picture(own: EnvStep, seen: EnvStep) -> Array:
        if any(not np.array_equal(getattr(own, field), getattr(seen, field)) for field in EnvStep._fields):
            raise RuntimeError("the camera's environment plays another episode than the agent's")
        return draw()

    def step(action: Any, seen: EnvStep) -> Array:
        dtype = np.float32 if twin.spec.action_size else np.int64
        return picture(twin.step(np.asarray(action, dtype=dtype)[None]), seen)

    def close() -> None:
        free()
        twin.close()

    return Camera(lambda seen: picture(twin.reset(), seen), step, shows, frames_per_second, actions, close)


def emulator_camera(twin: VectorEnv, frame_skip: int, frames_per_second: float, actions: Sequence[str]) -> Camera:
    """Make a camera that shows every frame of a second emulator with the player's seed, stepped frame by frame.

    `twin`: one environment whose observations are frames [1, 1, height, width, 3], without skip and cap.
    """

    def step(action: Any, seen: EnvStep) -> Array:
        """Return as many frames as one agent step takes: fewer when the game ends."""
        steps: list[EnvStep] = []
        while len(steps) < frame_skip and not (steps and steps[-1].ended[0]):
            steps.append(twin.step(np.array([action])))
        over = bool(steps[-1].ended[0]) or bool(seen.truncated[0])  # only the player's environment has a cap
        if sum(float(step.reward[0]) for step in steps) != seen.reward[0] or over != seen.ended[0]:
            raise RuntimeError("the second emulator plays another episode than the agent's")
        return np.concatenate([step.observation[0] for step in steps])

    shows = "all emulator frames in colour"
    return Camera(lambda seen: twin.reset().observation[0], step, shows, frames_per_second, actions, twin.close)


def _as_colour(grey: Array) -> Array:
    """Return grey pictures [n, height, width] in colour, [n, height, width, 3]."""
    return np.repeat(grey[..., None], 3, axis=-1)
