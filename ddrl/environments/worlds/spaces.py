"""Gymnasium's spaces as networks and policies know them: images, flat numbers, one choice, or numbers in [-1, 1].

- Observations. A uint8 box of three axes (or two, for grey pictures) whose sides are `SMALLEST_IMAGE` pixels or more is
  an image: uint8, channels first. Everything else is flattened as `gymnasium.spaces.flatten` does it, to float32:
  boxes row by row, choices as one-hot vectors, tuples and dictionaries part by part.
- Actions. `Discrete` is one choice; `MultiDiscrete` and `MultiBinary` are one choice among all combinations. A box is
  flattened; each dimension is clipped to [-1, 1] and mapped to its bounds, or taken as it is where it has none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces

from ddrl.errors import UserError
from ddrl.types import Array

SMALLEST_IMAGE = 20
"""Pixels: the smallest side that a convolutional network takes (`ddrl.networks.torsos`)."""
MOST_CHANNELS = 4
MOST_COMBINATIONS = 1024
"""Combinations of several choices that a policy may choose among."""
IMAGES = (
    "Convolutions take images of uint8, [height, width], [height, width, channels] or [channels, height, width], with "
    f"sides of {SMALLEST_IMAGE} pixels or more: wrap the environment to make such ones."
)
_FLAT = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


@dataclass(frozen=True)
class Bounds:
    """The affine map from [-1, 1] to each actuator's bounds: [A], of the type that the environment takes."""

    centre: Array
    half: Array

    @classmethod
    def between(cls, low: Array, high: Array) -> Bounds:
        """Map -1 to `low` and 1 to `high` [A]; a range of 1e9 or more stands for none: actions stay as they are."""
        dtype, unbounded = low.dtype, ~(high.astype(np.float64) - low.astype(np.float64) < 1e9)
        low, high = np.where(unbounded, -1.0, low), np.where(unbounded, 1.0, high)
        return cls(((low + high) / 2).astype(dtype), ((high - low) / 2).astype(dtype))

    def scale(self, actions: Array) -> Array:
        """Return actions [..., A] in [-1, 1] in the environment's units."""
        scaled: Array = self.centre + self.half * actions
        return scaled


@dataclass(frozen=True)
class Observed:
    """Observations as a network sees them."""

    shape: tuple[int, ...]
    """(channels, height, width) of an image; (size,) of numbers."""
    dtype: str
    """uint8 of images, float32 of numbers."""
    encode: Callable[[Any], Array]
    """An observation of the space -> an array of this shape and type."""
    holds: Callable[[Any], bool]
    """Whether a value is an observation of the space, by its structure and shapes."""
    words: str
    """For the protocol id."""
    flattened_image: str = ""
    """Shape and type of a box that looks like images but is flattened."""

    @property
    def is_image(self) -> bool:
        """Return whether a convolutional network can take it."""
        return self.dtype == "uint8"


@dataclass(frozen=True)
class Acted:
    """Actions as a policy gives them; either `num_actions` or `size` is 0."""

    num_actions: int
    size: int
    """Dimensions of a continuous action."""
    decode: Callable[[Any], Any]
    """An integer below `num_actions`, or numbers [size] in [-1, 1] -> an action of the space."""
    words: str
    """For the protocol id."""


def observed(space: spaces.Space[Any], name: str) -> Observed:
    """Return how observations of `space` are seen. Raise UserError, naming the environment, for an unsupported one."""
    if isinstance(space, spaces.Box) and _is_image(space):
        return _image(space)
    parts = _parts(space)
    if unsupported := [part for part in parts if not isinstance(part, _FLAT)]:
        kind = type(unsupported[0]).__name__
        raise UserError(
            f"environment '{name}': its observations are of the space {kind}, which no network here takes; allowed: "
            "Box, Discrete, MultiDiscrete, MultiBinary, and Dict or Tuple of these (wrap the environment to make one)"
        )
    if len(parts) > 1 and any(isinstance(part, spaces.Box) and _is_image(part) for part in parts):
        raise UserError(
            f"environment '{name}': its observations hold an image beside other parts; allowed: an image alone, or no "
            "image (wrap the environment, for instance in gymnasium.wrappers.FilterObservation)"
        )
    size = spaces.flatdim(space)

    def encode(observation: Any) -> Array:
        return np.asarray(spaces.flatten(space, observation), dtype=np.float32)

    def encode_box(observation: Any) -> Array:  # the same, without the search for what flattens its kind of space
        return np.asarray(observation, dtype=space.dtype).ravel().astype(np.float32)

    images = [
        f"{part.shape} {part.dtype}" for part in parts if isinstance(part, spaces.Box) and _looks_like_images(part)
    ]
    words = "float32-observations,flattened"
    encode_any = encode_box if isinstance(space, spaces.Box) else encode
    return Observed((size,), "float32", encode_any, partial(_holds, space), words, next(iter(images), ""))


def acted(space: spaces.Space[Any], name: str) -> Acted:
    """Return how actions of `space` are given. Raise UserError, naming the environment, for an unsupported one."""
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        _check_choices(int(space.n), name)
        return Acted(int(space.n), 0, lambda action: int(action) + start, "discrete-actions")
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        return _combinations(space, name)
    if isinstance(space, spaces.Box) and np.dtype(space.dtype).kind == "f":
        bounds = Bounds.between(space.low.ravel(), space.high.ravel())
        shape, dtype = space.shape, space.dtype

        def decode(action: Any) -> Array:
            return bounds.scale(action).reshape(shape).astype(dtype)

        return Acted(0, int(np.prod(shape)), decode, "actions-clipped-to-1,actions-scaled-to-bounds")
    raise UserError(
        f"environment '{name}': its actions are of the space {space}, which no policy here gives; allowed: Discrete, "
        "MultiDiscrete, MultiBinary and Box of floating-point numbers (wrap the environment to make one)"
    )


def _is_image(space: spaces.Box) -> bool:
    if space.dtype != np.uint8 or len(space.shape) not in (2, 3):
        return False
    sides = space.shape if len(space.shape) == 2 else _sides(space.shape)
    return min(sides) >= SMALLEST_IMAGE


def _channels_last(shape: tuple[int, ...]) -> bool:
    return shape[2] <= MOST_CHANNELS or shape[0] > shape[2]


def _sides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape[:2] if _channels_last(shape) else shape[1:]


def _looks_like_images(space: spaces.Box) -> bool:
    """Return whether two or more sides are as long as those of images."""
    return sum(side >= SMALLEST_IMAGE for side in space.shape) >= 2


def _image(space: spaces.Box) -> Observed:
    holds, words = partial(_holds, space), "uint8-image"
    if len(space.shape) == 2:
        return Observed((1, *space.shape), "uint8", lambda image: np.asarray(image)[None], holds, words)
    if not _channels_last(space.shape):
        return Observed(space.shape, "uint8", np.asarray, holds, words)
    height, width, channels = space.shape
    return Observed((channels, height, width), "uint8", lambda image: np.moveaxis(image, -1, 0), holds, words)


def _holds(space: spaces.Space[Any], value: Any) -> bool:
    """Return whether `value` has the structure of `space`; numbers of a box may be of another precision or outside."""
    if isinstance(space, spaces.Dict):
        keys = isinstance(value, Mapping) and value.keys() == space.spaces.keys()
        return keys and all(_holds(part, value[key]) for key, part in space.spaces.items())
    if isinstance(space, spaces.Tuple):
        parts = isinstance(value, tuple) and len(value) == len(space.spaces)
        return parts and all(_holds(part, own) for part, own in zip(space.spaces, value, strict=True))
    if not isinstance(space, spaces.Box):
        return space.contains(value)
    if not isinstance(value, np.ndarray | np.generic):
        return False
    same_kind = value.dtype == np.uint8 if _is_image(space) else value.dtype.kind in "fiub"
    return value.shape == space.shape and same_kind


def _parts(space: spaces.Space[Any]) -> list[spaces.Space[Any]]:
    """Return the spaces that a Dict or Tuple holds, at every depth; any other space alone."""
    if isinstance(space, spaces.Dict):
        return [found for part in space.spaces.values() for found in _parts(part)]
    if isinstance(space, spaces.Tuple):
        return [found for part in space.spaces for found in _parts(part)]
    return [space]


def _combinations(space: spaces.MultiDiscrete | spaces.MultiBinary, name: str) -> Acted:
    """Return one choice among all combinations of several."""
    if isinstance(space, spaces.MultiDiscrete):
        counts, start = np.asarray(space.nvec), np.asarray(space.start)
    else:
        counts, start = np.full(space.shape, 2), np.zeros(space.shape, dtype=np.int64)
    sizes, total = counts.ravel().tolist(), int(np.prod(counts.astype(np.float64)))
    if total > MOST_COMBINATIONS:
        raise UserError(
            f"environment '{name}': its actions {space} have {total:,} combinations; allowed: at most "
            f"{MOST_COMBINATIONS:,} (wrap the environment to give fewer choices)"
        )
    _check_choices(total, name)

    def decode(action: Any) -> Array:
        chosen = np.array(np.unravel_index(int(action), sizes)).reshape(counts.shape) + start
        return chosen.astype(space.dtype)

    return Acted(total, 0, decode, "discrete-actions,all-combinations")


def _check_choices(number: int, name: str) -> None:
    if number < 2:
        raise UserError(f"environment '{name}': has {number} action; allowed: at least 2, or there is nothing to learn")
