"""Builds the network that a request describes, for libraries that take a torch module.

`{"torso": {"kind": "mlp", "hidden": [64, 64], "activation": "tanh"}, "separate": true, "gains": [1.41, 0.01, 1.0]}`, or
`{"kind": "convolutional", "convolutions": [[16, 8, 4], ...], "hidden": 256, "pad_same": false}` with channels, kernel
and stride. Names of parameters are those of `ddrl`'s own torsos. Images come in as floats in [0, 1].
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ACTIVATIONS = {"tanh": torch.tanh, "relu": F.relu}


class Torso(nn.Module):
    """Maps observations [N, ...] to features [N, size]."""

    def __init__(self, shape: Sequence[int], torso: Mapping[str, Any]) -> None:
        super().__init__()
        self._torso = torso
        self.hidden: nn.Linear | None = None
        if torso["kind"] == "mlp":
            sizes = [math.prod(shape), *torso["hidden"]]
            self.layers = nn.ModuleList([nn.Linear(a, b) for a, b in pairwise(sizes)])
            self.size = sizes[-1]
            return
        if torso["kind"] != "convolutional":
            raise ValueError(f"there is no torso of kind '{torso['kind']}'")
        channels, *sides = shape
        self.convolutions = nn.ModuleList()
        for index, (outputs, kernel, stride) in enumerate(torso["convolutions"]):
            self.convolutions.append(nn.Conv2d(channels, outputs, kernel, stride))
            pads = self._pads(index)
            sides = [math.ceil(side / stride) if pads else (side - kernel) // stride + 1 for side in sides]
            channels = outputs
        self.size = channels * math.prod(sides)
        if torso["hidden"]:
            self.hidden = nn.Linear(self.size, torso["hidden"])
            self.size = torso["hidden"]

    def _pads(self, index: int) -> bool:
        return bool(self._torso["pad_same"]) and index + 1 < len(self._torso["convolutions"])

    def forward(self, observation: Tensor) -> Tensor:
        """Return the features."""
        x = observation
        if self._torso["kind"] == "mlp":
            activation = ACTIVATIONS[self._torso["activation"]]
            x = x.flatten(1)
            for layer in self.layers:
                x = activation(layer(x))
            return x
        for index, layer in enumerate(self.convolutions):
            if self._pads(index):
                x = pad_same(x, layer.kernel_size[0], layer.stride[0])  # type: ignore[index, arg-type]
            x = F.relu(layer(x))
        x = x.flatten(1)
        return x if self.hidden is None else F.relu(self.hidden(x))


def pad_same(x: Tensor, kernel: int, stride: int) -> Tensor:
    """Pad images as TensorFlow's "SAME"."""
    missing = [max(0, (math.ceil(side / stride) - 1) * stride + kernel - side) for side in x.shape[:-3:-1]]
    return F.pad(x, [part for total in missing for part in (total // 2, total - total // 2)])


def initialise(module: nn.Module, gain: float | str | None) -> None:
    """Set all layers: orthogonal weights of this gain, "glorot", "uniform", or (None) normal, cut at two deviations."""
    for layer in module.modules():
        if not isinstance(layer, (nn.Linear, nn.Conv2d)):
            continue
        if gain == "uniform":
            layer.reset_parameters()  # PyTorch's own, also for biases
            continue
        if gain is None:
            inputs = layer.weight[0].numel()
            deviation = 1.0 / math.sqrt(inputs)
            nn.init.trunc_normal_(layer.weight, 0.0, deviation, -2 * deviation, 2 * deviation)
        elif gain == "glorot":
            nn.init.xavier_uniform_(layer.weight)
        else:
            nn.init.orthogonal_(layer.weight, float(gain))
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
