"""An image and a few numbers in one observation of bytes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ddrl.system.instruction_words import image_of
from ddrl.system.packed_vector import pack, packed_shape, unpack, vector_of
from ddrl.types import EnvSpec

SHAPE = (3, 5, 7)


def images(count: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (count, *SHAPE), dtype=np.uint8)


def numbers(count: int, size: int = 3) -> np.ndarray:
    return np.random.default_rng(2).normal(0, 1e3, (count, size)).astype(np.float32)


@pytest.mark.parametrize("count", [1, 2, 9])
@pytest.mark.parametrize("size", [1, 3])
def test_what_was_packed_comes_back_bit_for_bit(count: int, size: int) -> None:
    pixels, vectors = images(count), numbers(count, size)
    packed = np.stack([pack(image, vector) for image, vector in zip(pixels, vectors, strict=True)])
    assert packed.dtype == np.uint8 and packed.shape == (count, *packed_shape(SHAPE, size))
    image, vector = unpack(torch.from_numpy(packed), SHAPE, size)
    assert np.array_equal(image.numpy(), pixels)
    assert np.array_equal(vector.numpy(), vectors)
    assert np.array_equal(vector_of(packed, size), vectors)
    spec = EnvSpec("a/b", packed_shape(SHAPE, size), "uint8", 4, 1, "x", image_shape=SHAPE, vector_size=size)
    assert np.array_equal(image_of(packed, spec), pixels)


def test_numbers_may_begin_at_any_byte_of_a_batch() -> None:
    """A slice of a batch is a view that need not begin at a multiple of four bytes."""
    packed = torch.from_numpy(np.stack([pack(*both) for both in zip(images(4), numbers(4), strict=True)]))
    for row in range(4):
        _, vector = unpack(packed[row : row + 1], SHAPE, 3)
        assert np.array_equal(vector.numpy(), numbers(4)[row : row + 1])
    _, rest = unpack(packed[::2], SHAPE, 3)
    assert np.array_equal(rest.numpy(), numbers(4)[::2])


def test_numbers_are_little_endian_and_follow_the_image() -> None:
    packed = pack(np.zeros((1, 1, 2), dtype=np.uint8), np.array([1.0, -2.0]))
    assert packed.tolist() == [0, 0, 0, 0, 0x80, 0x3F, 0, 0, 0, 0xC0]
