"""A few numbers packed with an image into one observation of bytes: what an agent knows beside what it sees.

As `instruction_words` does for words: unrolls, queues, replays and messages carry one array per observation. The bytes
of the image [C, H, W] come first, then those of the numbers, float32 and little-endian. `EnvSpec.image_shape` and
`EnvSpec.vector_size` are set where observations are packed so.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ddrl.types import Array

if TYPE_CHECKING:  # processes that only step environments need no torch
    import torch

_BYTES = 4


def packed_shape(image_shape: tuple[int, int, int], vector_size: int) -> tuple[int]:
    """Return the shape of an observation with an image of this shape and so many numbers."""
    return (math.prod(image_shape) + _BYTES * vector_size,)


def pack(image: Array, vector: Array) -> Array:
    """Pack an image [C, H, W] uint8 and numbers [n] into an observation [packed_shape] uint8."""
    return np.concatenate([image.reshape(-1), vector.astype("<f4", copy=False).view(np.uint8)])


def vector_of(observation: Array, vector_size: int) -> Array:
    """Return the numbers [..., vector_size] float32 of packed observations [..., n] uint8."""
    return np.ascontiguousarray(observation[..., -_BYTES * vector_size :]).view("<f4")


def unpack(
    observation: torch.Tensor, image_shape: tuple[int, int, int], vector_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Unpack observations [N, packed_shape] uint8 to images [N, C, H, W] uint8 (a view) and numbers [N, n] float32."""
    import torch  # here, since processes that only step environments need no torch

    start = math.prod(image_shape)
    image, numbers = observation[:, :start], observation[:, start:]
    # A copy begins where four bytes may be read as one number; a view of the observations need not.
    return image.view(len(image), *image_shape), numbers.clone(memory_format=torch.contiguous_format).view(
        torch.float32
    )
