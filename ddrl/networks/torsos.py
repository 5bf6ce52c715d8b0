"""Torsos: observations [N, ...] -> features [N, size]. Images are channel-first uint8 and scaled by 1/255 here.

`gain` is that of orthogonal weights, None stands for truncated normal ones (`ddrl.networks.initialisation`).
"""

from __future__ import annotations

import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ddrl.errors import UserError, unknown_name
from ddrl.networks.initialisation import convolution, linear
from ddrl.types import EnvSpec

IMAGE_SCALE = 1.0 / 255.0
SHALLOW: dict[str, tuple[tuple[tuple[int, int, int], ...], int]] = {
    # Mnih et al. 2016, section 8; Figure 3 (left) of IMPALA calls the DeepMind Lab network "similar" to it.
    "shallow": (((16, 8, 4), (32, 4, 2)), 256),
    # "three convolutional layers" (section 5.3.2, Atari) without sizes: most likely those of Mnih et al. 2015.
    "nature": (((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512),
}
"""Name -> ((channels, kernel, stride) of each convolution, hidden units)."""
VISION: dict[int, tuple[tuple[int, int, int], ...]] = {
    84: ((16, 8, 4), (32, 4, 2), (256, 11, 1)),
    42: ((16, 4, 2), (32, 4, 2), (256, 11, 1)),
}
"""Side of the image -> (channels, kernel, stride) of each convolution: RLlib's default filters."""
NETWORKS = ("shallow", "nature", "vision", "deep", "mlp", "tanh_mlp")


class ShallowTorso(nn.Module):
    """Unpadded convolutions, each followed by a rectifier, then a rectified linear layer.

    `layers` lists (channels, kernel, stride). Features [N, hidden]; with `hidden` 0 there is no linear layer, and they
    are what the convolutions put out.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        layers: tuple[tuple[int, int, int], ...],
        hidden: int,
        generator: torch.Generator,
        gain: float | None = None,
    ) -> None:
        super().__init__()
        channels, height, width = shape
        convolutions = []
        for outputs, kernel, stride in layers:
            convolutions.append(convolution(channels, outputs, kernel, generator, gain, stride=stride))
            channels, height, width = outputs, (height - kernel) // stride + 1, (width - kernel) // stride + 1
        self.convolutions = nn.ModuleList(convolutions)
        size = channels * height * width
        self.hidden = linear(size, hidden, generator, gain) if hidden else None
        self.size = hidden or size

    def forward(self, observation: Tensor) -> Tensor:
        """Image [N, C, H, W] uint8 -> [N, size]."""
        x = F.relu_(scaled_convolution(self.convolutions[0], _to_compute_dtype(observation)))
        for layer in list(self.convolutions)[1:]:
            x = F.relu_(layer(x))
        x = x.flatten(1)
        return x if self.hidden is None else F.relu_(self.hidden(x))


class ResidualBlock(nn.Module):
    """x + conv(relu(conv(relu(x)))) with 3x3 convolutions that keep the shape."""

    def __init__(self, channels: int, generator: torch.Generator, gain: float | None = None) -> None:
        super().__init__()
        self.first = convolution(channels, channels, 3, generator, gain, padding=1)
        self.second = convolution(channels, channels, 3, generator, gain, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> the same shape."""
        branch: Tensor = self.second(F.relu_(self.first(F.relu(x))))
        return x + branch


class DeepTorso(nn.Module):
    """The residual network of Figure 3 (right): 15 convolutions in three sections of 16, 32 and 32 channels.

    A section is a 3x3 convolution, a 3x3 max-pooling of stride 2 and two residual blocks; then a rectifier and a
    rectified linear layer of 256. Layer list: google-deepmind/scalable_agent, experiment.py. Features [N, 256].
    """

    def __init__(self, shape: tuple[int, int, int], generator: torch.Generator, gain: float | None = None) -> None:
        super().__init__()
        inputs, height, width = shape
        entries, blocks = [], []
        for channels in (16, 32, 32):
            entries.append(convolution(inputs, channels, 3, generator, gain, padding=1))
            blocks.append(
                nn.Sequential(ResidualBlock(channels, generator, gain), ResidualBlock(channels, generator, gain))
            )
            inputs, height, width = channels, math.ceil(height / 2), math.ceil(width / 2)
        self.entries, self.blocks = nn.ModuleList(entries), nn.ModuleList(blocks)
        self.hidden = linear(inputs * height * width, 256, generator, gain)
        self.size = 256
        # Several times faster on CPU than channels-first for 3x3 convolutions.
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, observation: Tensor) -> Tensor:
        """Image [N, C, H, W] uint8 -> [N, 256]."""
        x = _to_compute_dtype(observation).contiguous(memory_format=torch.channels_last)
        for index, (entry, blocks) in enumerate(zip(self.entries, self.blocks, strict=True)):
            x = scaled_convolution(entry, x) if index == 0 else entry(x)
            x = blocks(max_pool_same(x))
        return F.relu(self.hidden(F.relu(x).flatten(1)))


class MLPTorso(nn.Module):
    """Two rectified linear layers of 64 over the flattened observation: for the toy environments. Features [N, 64]."""

    def __init__(
        self, shape: tuple[int, ...], scale: float, generator: torch.Generator, gain: float | None = None
    ) -> None:
        super().__init__()
        self.scale = scale
        self.layers = nn.ModuleList([linear(inputs, 64, generator, gain) for inputs in (math.prod(shape), 64)])
        self.size = 64

    def forward(self, observation: Tensor) -> Tensor:
        """[N, ...] -> [N, 64]."""
        x = observation.flatten(1).to(torch.float32)
        if self.scale != 1.0:
            x = x * self.scale
        for layer in self.layers:
            x = F.relu(layer(x))
        return x


class VisionTorso(nn.Module):
    """The network that the authors of IMPACT trained with in RLlib: rectified convolutions, no linear layer.

    All but the last pad as TensorFlow's "SAME"; the last covers what is left, 11x11. Layers: ray-project/ray,
    rllib/models/utils.py, `get_filter_config`. Features [N, 256].
    """

    def __init__(self, shape: tuple[int, int, int], generator: torch.Generator, gain: float | None = None) -> None:
        super().__init__()
        channels, height, width = shape
        assert height == width
        convolutions = []
        for outputs, kernel, stride in VISION[height]:
            convolutions.append(convolution(channels, outputs, kernel, generator, gain, stride=stride))
            channels = outputs
        self.convolutions = nn.ModuleList(convolutions)
        self.size = channels

    def forward(self, observation: Tensor) -> Tensor:
        """Image [N, C, S, S] uint8 -> [N, 256]."""
        x = _to_compute_dtype(observation)
        last = len(self.convolutions) - 1
        for index, layer in enumerate(self.convolutions):
            assert isinstance(layer, nn.Conv2d)
            if index < last:
                x = pad_same(x, layer.kernel_size[0], layer.stride[0])
            x = F.relu_(scaled_convolution(layer, x) if index == 0 else layer(x))
        return x.flatten(1)


class TanhMLPTorso(nn.Module):
    """Two linear layers of 256 units, each followed by a hyperbolic tangent. Features [N, 256]."""

    def __init__(self, shape: tuple[int, ...], generator: torch.Generator, gain: float | None = None) -> None:
        super().__init__()
        self.size = 256
        sizes = (math.prod(shape), self.size, self.size)
        self.layers = nn.ModuleList(
            linear(inputs, outputs, generator, gain) for inputs, outputs in itertools.pairwise(sizes)
        )

    def forward(self, observation: Tensor) -> Tensor:
        """[N, ...] float32 -> [N, 256]."""
        x = observation.flatten(1)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


Torso = ShallowTorso | VisionTorso | DeepTorso | MLPTorso | TanhMLPTorso


def pad_same(x: Tensor, kernel: int, stride: int) -> Tensor:
    """Zeros around images [N, C, H, W] as TensorFlow's "SAME" padding: the odd one out goes to the end."""
    missing = [max(0, (math.ceil(side / stride) - 1) * stride + kernel - side) for side in x.shape[:-3:-1]]
    return F.pad(x, [part for total in missing for part in (total // 2, total - total // 2)])


def scaled_convolution(layer: nn.Module, pixels: Tensor) -> Tensor:
    """conv(pixels / 255): the scale goes to the few weights instead of the many pixels."""
    assert isinstance(layer, nn.Conv2d)
    return F.conv2d(pixels, layer.weight * IMAGE_SCALE, layer.bias, layer.stride, layer.padding)


def max_pool_same(x: Tensor) -> Tensor:
    """3x3 max-pooling of stride 2 with TensorFlow's "SAME" padding: ceil(side / 2), an even side padded at its end."""
    # Ceil mode lets the last window overhang an even side by the one cell that "SAME" pads, without a copy of x.
    return F.max_pool2d(x, 3, stride=2, padding=(x.shape[-2] % 2, x.shape[-1] % 2), ceil_mode=True)


def make_torso(
    spec: EnvSpec,
    network: str,
    generator: torch.Generator,
    gain: float | None = None,
    *,
    convolutions_only: bool = False,
) -> Torso:
    """The torso called `network`; `convolutions_only`: of those in `SHALLOW`, without their linear layer.

    Raises `UserError` if it is unknown or does not fit the observations of `spec`.
    """
    if network not in NETWORKS:
        raise unknown_name("network", network, NETWORKS)
    if problem := _misfit(network, spec):
        allowed = ", ".join(name for name in NETWORKS if not _misfit(name, spec))
        raise UserError(f"network '{network}' {problem}; allowed: {allowed}")
    shape = spec.observation_shape
    if network == "mlp":
        scale = IMAGE_SCALE if spec.observation_dtype == "uint8" else 1.0
        return MLPTorso(shape, scale, generator, gain)
    if network == "tanh_mlp":
        return TanhMLPTorso(shape, generator, gain)
    image = (shape[0], shape[1], shape[2])
    if network == "deep":
        return DeepTorso(image, generator, gain)
    if network == "vision":
        return VisionTorso(image, generator, gain)
    layers, hidden = SHALLOW[network]
    return ShallowTorso(image, layers, 0 if convolutions_only else hidden, generator, gain)


def _misfit(network: str, spec: EnvSpec) -> str:
    """Why a network cannot take the observations of `spec`; empty where it can."""
    shape, dtype = spec.observation_shape, spec.observation_dtype
    if network == "mlp":
        return ""
    if network == "tanh_mlp":
        return "" if dtype == "float32" else f"needs float32 observations, but '{spec.name}' has {dtype}"
    if len(shape) != 3 or dtype != "uint8":
        found = f"'{spec.name}' has {dtype} observations of shape {shape}"
        return f"needs uint8 images (channels, height, width), but {found}"
    height, width = shape[1:]
    if network == "vision" and (height != width or height not in VISION):
        return f"needs square images of {' or '.join(map(str, sorted(VISION)))} pixels, not {height}x{width}"
    if network in SHALLOW and min(height, width) < (smallest := _smallest_side(SHALLOW[network][0])):
        return f"needs images of at least {smallest}x{smallest} pixels, not {height}x{width}"
    return ""


def _smallest_side(layers: tuple[tuple[int, int, int], ...]) -> int:
    """Of an image of which unpadded convolutions leave one pixel."""
    side = 1
    for _, kernel, stride in reversed(layers):
        side = (side - 1) * stride + kernel
    return side


def _to_compute_dtype(observation: Tensor) -> Tensor:
    device = observation.device.type
    # bfloat16 holds 0..255 exactly, so one conversion suffices under autocast.
    return observation.to(torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else torch.float32)
