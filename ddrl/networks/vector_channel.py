"""Numbers beside an image, such as a compass: they join the torso's features as they are.

It has no weights. What follows the torso (the LSTM, or the heads) has its own for them.
"""

from __future__ import annotations

from torch import Tensor, nn

from ddrl.system.packed_vector import unpack
from ddrl.types import EnvSpec


class VectorChannel(nn.Module):
    """Unpacks observations (`ddrl.system.packed_vector`) into images and numbers."""

    def __init__(self, image_shape: tuple[int, int, int], size: int) -> None:
        """`size` is how many numbers an observation holds."""
        super().__init__()
        self.image_shape = image_shape
        self.size = size

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Return images [N, C, H, W] uint8 and vectors [N, size] float32 of packed observations [N, n] uint8."""
        return unpack(observation, self.image_shape, self.size)


def vector_channel(spec: EnvSpec) -> VectorChannel | None:
    """Return what unpacks the numbers in observations of `spec`; None if these hold none beside an image."""
    if spec.image_shape is None or not spec.vector_size:
        return None
    return VectorChannel(spec.image_shape, spec.vector_size)
