"""Torsos: networks that map observations [N, ...] to features [N, size]. Images are uint8, channels first.

Pixels are scaled by 1/255 here, unless a torso has another `pixel_scale`. `gain` says how weights start
(`ddrl.networks.initialisation`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ddrl.errors import UserError, unknown_name
from ddrl.networks.initialisation import Gain, convolution, linear
from ddrl.types import EnvSpec

IMAGE_SCALE = 1.0 / 255.0
Layers = tuple[tuple[int, int, int], ...]
"""(channels, kernel, stride) of each convolution."""
SHALLOW: dict[str, tuple[Layers, int]] = {
    # Mnih et al. 2016, section 8; Figure 3 (left) of IMPALA calls the DeepMind Lab network "similar" to it.
    "shallow": (((16, 8, 4), (32, 4, 2)), 256),
    # "three convolutional layers" (section 5.3.2, Atari) without sizes: most likely those of Mnih et al. 2015.
    "nature": (((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512),
}
"""Name -> (convolutions, hidden units)."""
VISION: dict[int, Layers] = {
    84: ((16, 8, 4), (32, 4, 2), (256, 11, 1)),
    42: ((16, 4, 2), (32, 4, 2), (256, 11, 1)),
}
"""Side of the image -> convolutions: RLlib's default filters, which IMPACT's authors used. All but the last pad as
"SAME"; the last covers the 11x11 that are left (ray-project/ray, rllib/models/utils.py, `get_filter_config`)."""
NETWORKS = ("shallow", "nature", "vision", "deep", "mlp", "tanh_mlp", "two_stream")
VECTORS = ("mlp", "tanh_mlp", "two_stream")
"""Those whose layers have a size of one's own choice."""


class ConvolutionalTorso(nn.Module):
    """Convolutions, each followed by a rectifier, then a rectified linear layer of `hidden` units.

    With `hidden` 0 there is no linear layer, and the features are the outputs of the last convolution. With `pad_same`
    all convolutions but the last pad as TensorFlow's "SAME", otherwise none pads. Pixels are multiplied by
    `pixel_scale`.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        layers: Layers,
        hidden: int,
        generator: torch.Generator,
        gain: Gain = None,
        *,
        pad_same: bool = False,
        pixel_scale: float = IMAGE_SCALE,
    ) -> None:
        super().__init__()
        self.pixel_scale = pixel_scale
        channels, *sides = shape
        convolutions = []
        for outputs, kernel, stride in layers:
            convolutions.append(convolution(channels, outputs, kernel, generator, gain, stride=stride))
            padded = pad_same and len(convolutions) < len(layers)
            sides = [math.ceil(side / stride) if padded else (side - kernel) // stride + 1 for side in sides]
            channels = outputs
        self.convolutions = nn.ModuleList(convolutions)
        self.pad_same = pad_same
        size = channels * math.prod(sides)
        self.hidden = linear(size, hidden, generator, gain) if hidden else None
        self.size = hidden or size

    def forward(self, observation: Tensor) -> Tensor:
        """Map images [N, C, H, W] uint8 to features [N, size]."""
        x = _to_compute_dtype(observation)
        for index, layer in enumerate(self.convolutions):
            assert isinstance(layer, nn.Conv2d)
            if self.pad_same and index + 1 < len(self.convolutions):
                x = pad_same(x, layer.kernel_size[0], layer.stride[0])
            x = F.relu_(scaled_convolution(layer, x, self.pixel_scale) if index == 0 else layer(x))
        x = x.flatten(1)
        return x if self.hidden is None else F.relu_(self.hidden(x))


class ResidualBlock(nn.Module):
    """x + conv(relu(conv(relu(x)))) with 3x3 convolutions that keep the shape [N, C, H, W]."""

    def __init__(self, channels: int, generator: torch.Generator, gain: Gain = None) -> None:
        super().__init__()
        self.first = convolution(channels, channels, 3, generator, gain, padding=1)
        self.second = convolution(channels, channels, 3, generator, gain, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        branch: Tensor = self.second(F.relu_(self.first(F.relu(x))))
        return x + branch


class DeepTorso(nn.Module):
    """The residual network of Figure 3 (right): 15 convolutions in three sections of 16, 32 and 32 channels.

    A section is a 3x3 convolution, a 3x3 max-pooling of stride 2 and two residual blocks; then a rectifier and a
    rectified linear layer of 256. Layer list: google-deepmind/scalable_agent, experiment.py. Features [N, 256].
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        generator: torch.Generator,
        gain: Gain = None,
        *,
        pixel_scale: float = IMAGE_SCALE,
    ) -> None:
        super().__init__()
        self.pixel_scale = pixel_scale
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
        """Map images [N, C, H, W] uint8 to features [N, 256]."""
        x = _to_compute_dtype(observation).contiguous(memory_format=torch.channels_last)
        for index, (entry, blocks) in enumerate(zip(self.entries, self.blocks, strict=True)):
            x = scaled_convolution(entry, x, self.pixel_scale) if index == 0 else entry(x)
            x = blocks(max_pool_same(x))
        return F.relu(self.hidden(F.relu(x).flatten(1)))


class MLPTorso(nn.Module):
    """Linear layers of `sizes` units over the flattened observation times `scale`, each followed by `activation`.

    With `layer_norm` the first one is followed by a normalisation over its units (Ba et al. 2016) and tanh instead.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        sizes: tuple[int, ...],
        activation: Callable[[Tensor], Tensor],
        scale: float,
        generator: torch.Generator,
        gain: Gain = None,
        *,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        self.size, self.activation, self.scale = sizes[-1], activation, scale
        widths = pairwise((math.prod(shape), *sizes))
        self.layers = nn.ModuleList([linear(inputs, outputs, generator, gain) for inputs, outputs in widths])
        self.norm = nn.LayerNorm(sizes[0]) if layer_norm else None

    def forward(self, observation: Tensor) -> Tensor:
        """Map observations [N, ...] to features [N, size]."""
        x = observation if observation.dim() == 2 else observation.flatten(1)
        x = x if x.dtype == torch.float32 else x.to(torch.float32)
        if self.scale != 1.0:
            x = x * self.scale
        first, *rest = self.layers
        x = first.forward(x)
        x = self.activation(x) if self.norm is None else torch.tanh(self.norm.forward(x))
        for layer in rest:
            x = self.activation(layer.forward(x))
        return x


class TwoStreamTorso(nn.Module):
    """Two subnetworks, one for the body and one for its surroundings (Heess et al. 2017, section 4), then one layer.

    Each is an `MLPTorso` with tanh; the layer that joins them has as many units as the last of one of them. How they
    are joined, and all sizes, are in a supplement that could not be read: a layer, since with none the surroundings
    could not change what the body's state does to an action.
    """

    def __init__(
        self, shape: tuple[int, ...], body: int, sizes: tuple[int, ...], generator: torch.Generator, gain: Gain = None
    ) -> None:
        """`body` is the number of an observation's first numbers that are of the body."""
        super().__init__()
        self.split = (body, math.prod(shape) - body)
        body_size, rest = self.split
        self.body = MLPTorso((body_size,), sizes, torch.tanh, 1.0, generator, gain)
        self.surroundings = MLPTorso((rest,), sizes, torch.tanh, 1.0, generator, gain)
        self.joint = linear(2 * sizes[-1], sizes[-1], generator, gain)
        self.size = sizes[-1]

    def forward(self, observation: Tensor) -> Tensor:
        """Map observations [N, ...] to features [N, size]."""
        body, rest = observation.flatten(1).split(self.split, dim=1)
        found = torch.cat([self.body.forward(body), self.surroundings.forward(rest)], dim=1)
        return torch.tanh(self.joint.forward(found))


Torso = ConvolutionalTorso | DeepTorso | MLPTorso | TwoStreamTorso


def pad_same(x: Tensor, kernel: int, stride: int) -> Tensor:
    """Pad images [N, C, H, W] with zeros as TensorFlow's "SAME"; an odd total pads one more at the end."""
    missing = [max(0, (math.ceil(side / stride) - 1) * stride + kernel - side) for side in x.shape[:-3:-1]]
    return F.pad(x, [part for total in missing for part in (total // 2, total - total // 2)])


def scaled_convolution(layer: nn.Module, pixels: Tensor, scale: float = IMAGE_SCALE) -> Tensor:
    """Return conv(pixels x `scale`), with the scale applied to the few weights instead of the many pixels."""
    assert isinstance(layer, nn.Conv2d)
    return F.conv2d(pixels, layer.weight * scale, layer.bias, layer.stride, layer.padding)


def max_pool_same(x: Tensor) -> Tensor:
    """Max-pool 3x3 with stride 2 and TensorFlow's "SAME" padding: ceil(side / 2), an even side padded at its end."""
    # Ceil mode lets the last window overhang an even side by the one cell that "SAME" pads, without a copy of x.
    return F.max_pool2d(x, 3, stride=2, padding=(x.shape[-2] % 2, x.shape[-1] % 2), ceil_mode=True)


def make_torso(
    spec: EnvSpec,
    network: str,
    generator: torch.Generator,
    gain: Gain = None,
    *,
    convolutions_only: bool = False,
    mlp_size: int | tuple[int, ...] | None = None,
    layer_norm: bool = False,
    scaled_pixels: bool = True,
) -> Torso:
    """Return the torso called `network`; with `convolutions_only`, those in `SHALLOW` get no linear layer.

    `mlp_size` is the number of units of both layers of `mlp`, `tanh_mlp` and each stream of `two_stream`, or of each of
    any number of layers; None means 64, 256 and 256. `layer_norm` is for the first two (`MLPTorso`). Images are uint8:
    with `scaled_pixels` a network sees them as 0 to 1, otherwise as 0 to 255.

    Raises `UserError` if it is unknown or does not fit the observations of `spec`.
    """
    if network not in NETWORKS:
        raise unknown_name("network", network, NETWORKS)
    if problem := _misfit(network, spec):
        allowed = ", ".join(name for name in NETWORKS if not _misfit(name, spec))
        raise UserError(f"network '{network}' {problem}; allowed: {allowed}")
    shape, pixel_scale = spec.observation_shape, IMAGE_SCALE if scaled_pixels else 1.0
    if network == "mlp":
        scale = pixel_scale if spec.observation_dtype == "uint8" else 1.0
        return MLPTorso(shape, _layers(mlp_size or 64), F.relu, scale, generator, gain, layer_norm=layer_norm)
    if network == "tanh_mlp":
        return MLPTorso(shape, _layers(mlp_size or 256), torch.tanh, 1.0, generator, gain, layer_norm=layer_norm)
    if network == "two_stream":
        return TwoStreamTorso(shape, spec.body_size, _layers(mlp_size or 256), generator, gain)
    image = (shape[0], shape[1], shape[2])
    if network == "deep":
        return DeepTorso(image, generator, gain, pixel_scale=pixel_scale)
    if network == "vision":
        return ConvolutionalTorso(image, VISION[shape[1]], 0, generator, gain, pad_same=True, pixel_scale=pixel_scale)
    layers, hidden = SHALLOW[network]
    size = 0 if convolutions_only else hidden
    return ConvolutionalTorso(image, layers, size, generator, gain, pixel_scale=pixel_scale)


def described(torso: Torso) -> dict[str, Any]:
    """Return the layers of a torso as plain data: `kind`, and for each kind the numbers that its layers follow from."""
    if isinstance(torso, DeepTorso):
        return {"kind": "residual", "channels": [entry.out_channels for entry in torso.entries], "hidden": torso.size}
    if isinstance(torso, MLPTorso):
        activation = {F.relu: "relu", torch.tanh: "tanh"}[torso.activation]
        sizes = [layer.out_features for layer in torso.layers]
        return {"kind": "mlp", "hidden": sizes, "activation": activation, "scale": torso.scale}
    if isinstance(torso, TwoStreamTorso):
        return {
            "kind": "two_stream",
            "streams": [described(torso.body), described(torso.surroundings)],
            "joint": torso.size,
        }
    found = [layer for layer in torso.convolutions if isinstance(layer, nn.Conv2d)]
    layers = [[layer.out_channels, layer.kernel_size[0], layer.stride[0]] for layer in found]
    hidden = torso.hidden.out_features if torso.hidden else 0
    return {"kind": "convolutional", "convolutions": layers, "hidden": hidden, "pad_same": torso.pad_same}


def _layers(size: int | tuple[int, ...]) -> tuple[int, ...]:
    """Return the units of each layer, of which there are two if `size` is one number."""
    return (size, size) if isinstance(size, int) else size


def _misfit(network: str, spec: EnvSpec) -> str:
    """Return why a network cannot take the observations of `spec`; empty if it can."""
    shape, dtype = spec.observation_shape, spec.observation_dtype
    if network == "mlp":
        return ""
    if network == "tanh_mlp":
        return "" if dtype == "float32" else f"needs float32 observations, but '{spec.name}' has {dtype}"
    if network == "two_stream":
        return "" if spec.body_size else f"needs to know which numbers are of the body, but '{spec.name}' does not say"
    if len(shape) != 3 or dtype != "uint8":
        found = f"'{spec.name}' has {dtype} observations of shape {shape}"
        return f"needs uint8 images (channels, height, width), but {found}"
    height, width = shape[1:]
    if network == "vision" and (height != width or height not in VISION):
        return f"needs square images of {' or '.join(map(str, sorted(VISION)))} pixels, not {height}x{width}"
    if network in SHALLOW:
        smallest = 1  # side of an image of which unpadded convolutions leave one pixel
        for _, kernel, stride in reversed(SHALLOW[network][0]):
            smallest = (smallest - 1) * stride + kernel
        if min(height, width) < smallest:
            return f"needs images of at least {smallest}x{smallest} pixels, not {height}x{width}"
    return ""


def _to_compute_dtype(observation: Tensor) -> Tensor:
    device = observation.device.type
    # bfloat16 holds 0..255 exactly, so one conversion suffices under autocast.
    return observation.to(torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else torch.float32)
