"""Instructions in words: hashed, and packed with an image into one observation of bytes.

Unrolls, queues, replays and messages carry one array per observation. So an image [C, H, W] and an instruction are
stored as the image's bytes and two bytes for each of `WORDS` words. `EnvSpec.image_shape` is set where observations
are packed. Numbers may stand in place of the words: `packed_vector`.
"""

from __future__ import annotations

import math
import zlib
from typing import TYPE_CHECKING

import numpy as np

from ddrl.types import Array, EnvSpec

if TYPE_CHECKING:  # processes that only step environments need no torch
    import torch

WORDS = 16
"""The number of words kept of an instruction."""
BUCKETS = 1000
"""Words are hashed to 1..BUCKETS (as many as google-deepmind/scalable_agent, experiment.py); 0 is no word."""
_WORD_BYTES = 2 * WORDS


def packed_shape(image_shape: tuple[int, int, int]) -> tuple[int]:
    """Return the shape of an observation with an image of this shape and an instruction."""
    return (math.prod(image_shape) + _WORD_BYTES,)


def hashed(instruction: str) -> Array:
    """Return the words as numbers [WORDS] uint16, the same on every machine."""
    words = np.zeros(WORDS, dtype=np.uint16)
    for place, word in enumerate(instruction.lower().split()[:WORDS]):
        words[place] = 1 + zlib.crc32(word.encode()) % BUCKETS
    return words


def pack(image: Array, words: Array) -> Array:
    """Pack an image [C, H, W] uint8 and words [WORDS] uint16 into an observation [packed_shape] uint8."""
    return np.concatenate([image.reshape(-1), words.astype("<u2", copy=False).view(np.uint8)])


def unpack(observation: torch.Tensor, image_shape: tuple[int, int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Unpack observations [N, packed_shape] uint8 to images [N, C, H, W] uint8 (a view) and words [N, WORDS] int64."""
    image, low_and_high = observation[:, :-_WORD_BYTES], observation[:, -_WORD_BYTES:].long()
    return image.view(len(image), *image_shape), low_and_high[:, ::2] + 256 * low_and_high[:, 1::2]


def image_of(observation: Array, spec: EnvSpec) -> Array:
    """Return the images [..., C, H, W] of packed observations [..., n], or the observations if `spec` packs nothing."""
    if spec.image_shape is None:
        return observation
    size = math.prod(spec.image_shape)
    return observation[..., :size].reshape(*observation.shape[:-1], *spec.image_shape)
