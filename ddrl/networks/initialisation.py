"""Initialisation of layers: the kinds in the papers' code, as configuration keys, and functions that make layers.

All weights are drawn from the generator that is passed. Biases start at 0, but for `Uniform`. LSTMs:
`ddrl.networks.recurrent`.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, TypeVar

import torch
from pydantic import Field, PositiveFloat
from pydantic.dataclasses import dataclass
from torch import Generator, nn

from ddrl.errors import UserError
from ddrl.system.config_types import STRICT

Gain = float | Literal["glorot", "uniform"] | None
"""How a layer starts: orthogonal with this gain, as one of the two kinds of that name below, or truncated normal."""


@dataclass(frozen=True, config=STRICT)
class TruncatedNormal:
    """Normal weights of standard deviation 1/sqrt(fan_in), cut at two deviations: Sonnet's default.

    IMPALA's code uses it; the paper does not state an initialisation.
    """

    name: Literal["truncated_normal"] = "truncated_normal"

    @property
    def gains(self) -> tuple[None, None, None]:
        """Gains of hidden layers, policy head and value head; None: not orthogonal."""
        return None, None, None


@dataclass(frozen=True, config=STRICT)
class Orthogonal:
    """Orthogonal weights (Saxe et al. 2014), scaled by the gains of ppo2 (Huang et al. 2022, core detail 2)."""

    name: Literal["orthogonal"] = "orthogonal"
    hidden_gain: PositiveFloat = math.sqrt(2)
    policy_gain: PositiveFloat = 0.01
    """Small, so that the first policy hardly depends on the observation."""
    value_gain: PositiveFloat = 1.0

    @property
    def gains(self) -> tuple[float, float, float]:
        """Gains of hidden layers, policy head and value head."""
        return self.hidden_gain, self.policy_gain, self.value_gain


@dataclass(frozen=True, config=STRICT)
class Glorot:
    """Uniform weights of variance 2 / (fan_in + fan_out) (Glorot and Bengio 2010): TensorFlow's default.

    RLlib's networks for images had it; weights of its value head have the norm 1 in any direction (normc_initializer).
    """

    name: Literal["glorot"] = "glorot"

    @property
    def gains(self) -> tuple[Gain, Gain, Gain]:
        """Gains of hidden layers, policy head and value head, a row of which is orthogonal."""
        return "glorot", "glorot", 1.0


@dataclass(frozen=True, config=STRICT)
class Uniform:
    """Weights and biases uniform within 1/sqrt(fan_in): PyTorch's default, and so that of many libraries.

    torch 2.9, nn/modules/linear.py, `Linear.reset_parameters`; as the layers of LeCun et al. 1998, section 4.6, scaled.
    """

    name: Literal["uniform"] = "uniform"

    @property
    def gains(self) -> tuple[Gain, Gain, Gain]:
        """Gains of hidden layers, policy head and value head: all alike."""
        return "uniform", "uniform", "uniform"


Kind = TruncatedNormal | Orthogonal | Glorot | Uniform
Initialisation = Annotated[Kind, Field(discriminator="name")]
"""A configuration key; `name` says which of them."""

Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)


def default_initialisation(network: str) -> Kind:
    """Return the initialisation of a network if a configuration names none: orthogonal where PPO's layers have tanh."""
    return Orthogonal() if network in ("tanh_mlp", "two_stream") else TruncatedNormal()


def linear(inputs: int, outputs: int, generator: Generator, gain: Gain = None) -> nn.Linear:
    """Return a linear layer whose weights start as `gain` says."""
    return _initialised(nn.Linear(inputs, outputs, device="meta"), inputs, generator, gain)


def convolution(
    inputs: int,
    outputs: int,
    kernel: int,
    generator: Generator,
    gain: Gain = None,
    *,
    stride: int = 1,
    padding: int = 0,
) -> nn.Conv2d:
    """Return a square convolution; orthogonal weights are so as a matrix [outputs, inputs x kernel^2]."""
    layer = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=padding, device="meta")
    return _initialised(layer, inputs * kernel * kernel, generator, gain)


def _room_for(shape: torch.Size) -> torch.Tensor:
    """Return a tensor of this shape with any content. Raise UserError where there is no memory for it."""
    try:
        return torch.empty(shape)
    except RuntimeError as error:
        if "memory" not in str(error).lower():
            raise
        size = 4 * math.prod(shape) / 1e9
        raise UserError(f"network: a layer of {' x '.join(map(str, shape))} weights needs {size:,.0f} GB") from error


def _initialised(layer: Layer, fan_in: int, generator: Generator, gain: Gain) -> Layer:
    # The layer comes from the meta device: made on the CPU, it would first draw from the global generator. `to_empty`
    # would do the same as this loop, but imports 500 modules (sympy) in each process that builds a network.
    for name, parameter in layer.named_parameters(recurse=False):
        setattr(layer, name, nn.Parameter(_room_for(parameter.shape)))
    deviation = 1.0 / math.sqrt(fan_in)
    nn.init.trunc_normal_(layer.weight, std=deviation, a=-2 * deviation, b=2 * deviation, generator=generator)
    # After the draws above, not instead of them, so that a seed keeps the weights that it has always had.
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    if gain == "glorot":
        nn.init.xavier_uniform_(layer.weight, generator=generator)
    elif gain == "uniform":
        nn.init.uniform_(layer.weight, -deviation, deviation, generator=generator)
        nn.init.uniform_(layer.bias, -deviation, deviation, generator=generator)
    elif gain is not None:
        nn.init.orthogonal_(layer.weight, gain, generator=generator)
    return layer
