"""Instructions in words beside an image: hashed, and packed with it into one observation of bytes.

Everything that carries observations (unrolls, queues, replays, messages between processes) carries one array. So an
image [C, H, W] and the words of an instruction travel as its bytes, then two bytes for each of `WORDS` words; only
those who make an observation and the network that reads it know of the parts. Where an observation is packed,
`EnvSpec.image_shape` is the image's.
"""

from __future__ import annotations

import math
import zlib
from typing import TYPE_CHECKING

import numpy as np

from ddrl.types import Array, EnvSpec

if TYPE_CHECKING:  # who steps environments alone needs no torch
    import torch

WORDS = 16
"""Of an instruction, at most; longer ones are cut."""
BUCKETS = 1000
"""Words are numbers 1..BUCKETS, by a hash (of as many: google-deepmind/scalable_agent, experiment.py); 0: no word."""
_WORD_BYTES = 2 * WORDS


def packed_shape(image_shape: tuple[int, int, int]) -> tuple[int]:
    """The shape of an observation that holds such an image and an instruction."""
    return (math.prod(image_shape) + _WORD_BYTES,)


def hashed(instruction: str) -> Array:
    """The words as numbers [WORDS] uint16; the same on every machine."""
    words = np.zeros(WORDS, dtype=np.uint16)
    for place, word in enumerate(instruction.lower().split()[:WORDS]):
        words[place] = 1 + zlib.crc32(word.encode()) % BUCKETS
    return words


def pack(image: Array, words: Array) -> Array:
    """Image [C, H, W] uint8 and words [WORDS] uint16 -> one observation [packed_shape] uint8."""
    return np.concatenate([image.reshape(-1), words.astype("<u2", copy=False).view(np.uint8)])


def unpack(observation: torch.Tensor, image_shape: tuple[int, int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Observations [N, packed_shape] uint8 -> images [N, C, H, W] uint8 (a view) and words [N, WORDS] int64."""
    image, low_and_high = observation[:, :-_WORD_BYTES], observation[:, -_WORD_BYTES:].long()
    return image.view(len(image), *image_shape), low_and_high[:, ::2] + 256 * low_and_high[:, 1::2]


def image_of(observation: Array, spec: EnvSpec) -> Array:
    """The image [..., C, H, W] of observations [..., n] as `spec` has them; as they are where nothing is packed."""
    if spec.image_shape is None:
        return observation
    return observation[..., :-_WORD_BYTES].reshape(*observation.shape[:-1], *spec.image_shape)
