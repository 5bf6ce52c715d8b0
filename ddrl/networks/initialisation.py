"""How layers start: the two ways of the papers' code, as configuration keys, and the layers made so.

Every weight comes from the generator that is passed, every bias starts at 0. An LSTM keeps the start of the authors'
cell (`ddrl.networks.recurrent`).
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, TypeVar

import torch
from pydantic import Field, PositiveFloat
from pydantic.dataclasses import dataclass
from torch import Generator, nn

from ddrl.system.config_types import STRICT


@dataclass(frozen=True, config=STRICT)
class TruncatedNormal:
    """A normal distribution with standard deviation 1/sqrt(fan_in), cut at two of them: Sonnet's default.

    The authors' code of IMPALA keeps it; the paper does not state an initialisation.
    """

    name: Literal["truncated_normal"] = "truncated_normal"

    @property
    def gains(self) -> tuple[None, None, None]:
        """Of hidden layers, policy head and value head: none is orthogonal."""
        return None, None, None


@dataclass(frozen=True, config=STRICT)
class Orthogonal:
    """Orthogonal rows or columns (Saxe et al. 2014), scaled by the gains of ppo2 (Huang et al. 2022, core detail 2)."""

    name: Literal["orthogonal"] = "orthogonal"
    hidden_gain: PositiveFloat = math.sqrt(2)
    policy_gain: PositiveFloat = 0.01
    """So small that the first policy hardly depends on the observation."""
    value_gain: PositiveFloat = 1.0

    @property
    def gains(self) -> tuple[float, float, float]:
        """Of hidden layers, policy head and value head."""
        return self.hidden_gain, self.policy_gain, self.value_gain


Initialisation = Annotated[TruncatedNormal | Orthogonal, Field(discriminator="name")]
"""A configuration key; `name` says which."""

Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)


def default_initialisation(network: str) -> TruncatedNormal | Orthogonal:
    """What a network starts with where a configuration does not say: orthogonal for PPO's `tanh_mlp` alone."""
    return Orthogonal() if network == "tanh_mlp" else TruncatedNormal()


def linear(inputs: int, outputs: int, generator: Generator, gain: float | None = None) -> nn.Linear:
    """A linear layer; `gain`: orthogonal, None: truncated normal."""
    return _initialised(nn.Linear(inputs, outputs, device="meta"), inputs, generator, gain)


def convolution(
    inputs: int,
    outputs: int,
    kernel: int,
    generator: Generator,
    gain: float | None = None,
    *,
    stride: int = 1,
    padding: int = 0,
) -> nn.Conv2d:
    """A square convolution; `gain`: orthogonal (of its kernel as [outputs, inputs x kernel^2]), None: truncated."""
    layer = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=padding, device="meta")
    return _initialised(layer, inputs * kernel * kernel, generator, gain)


def _initialised(layer: Layer, fan_in: int, generator: Generator, gain: float | None) -> Layer:
    # Made on the meta device: layers that start on the CPU draw from the global generator first. `to_empty` would do,
    # but imports a library for symbols, 500 modules, in each process that builds a network.
    for name, parameter in layer.named_parameters(recurse=False):
        setattr(layer, name, nn.Parameter(torch.empty(parameter.shape)))
    deviation = 1.0 / math.sqrt(fan_in)
    nn.init.trunc_normal_(layer.weight, std=deviation, a=-2 * deviation, b=2 * deviation, generator=generator)
    if gain is not None:
        # After the draws above and not instead of them: so seeds keep the weights that they have always had.
        nn.init.orthogonal_(layer.weight, gain, generator=generator)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer
