"""How weights start: their distribution, their gains, and which a configuration gets."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch import nn

from ddrl.errors import UserError
from ddrl.networks.actor_critic import ActorCritic
from ddrl.networks.initialisation import (
    Glorot,
    Initialisation,
    Kind,
    Orthogonal,
    TruncatedNormal,
    Uniform,
    convolution,
    default_initialisation,
    linear,
)
from ddrl.networks.torsos import NETWORKS
from ddrl.types import EnvSpec

FLOATS = EnvSpec("mujoco/test", (5,), "float32", 0, 1, "test", action_size=2, body_size=3)
IMAGES = EnvSpec("atari/test", (4, 84, 84), "uint8", 6, 4, "test")


TANH = ("tanh_mlp", "two_stream")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make(network: str, initialisation: Kind | None = None, **keys: bool) -> ActorCritic:
    spec = FLOATS if network in TANH else IMAGES
    return ActorCritic(spec, network=network, generator=generator(), initialisation=initialisation, **keys)


def layers_of(module: nn.Module) -> list[nn.Linear | nn.Conv2d]:
    return [layer for layer in module.modules() if isinstance(layer, (nn.Linear, nn.Conv2d))]


def gain_of(layer: nn.Linear | nn.Conv2d) -> float | None:
    """The gain of an orthogonal layer; None where its rows (or columns, if there are more rows) are not orthogonal."""
    weight = layer.weight.detach().flatten(1).double()
    products = weight @ weight.T if weight.shape[0] <= weight.shape[1] else weight.T @ weight
    square = float(products.diagonal().mean())
    wanted = square * torch.eye(len(products), dtype=torch.float64)
    return math.sqrt(square) if torch.allclose(products, wanted, rtol=0, atol=1e-5 * max(square, 1e-5)) else None


def test_truncated_normal_weights_have_the_fan_in_scale() -> None:
    for layer, fan_in in ((linear(400, 500, generator()), 400), (convolution(8, 64, 9, generator()), 648)):
        weights = layer.weight.detach().numpy() * math.sqrt(fan_in)
        assert abs(weights).max() <= 2.0
        assert weights.std() == pytest.approx(0.8796, abs=0.005)  # a unit normal cut at 2
        assert gain_of(layer) is None


@pytest.mark.parametrize("gain", [0.01, 1.0, math.sqrt(2)])
def test_orthogonal_weights_have_their_gain(gain: float) -> None:
    for layer in (linear(40, 10, generator(), gain), linear(10, 40, generator(), gain)):
        assert gain_of(layer) == pytest.approx(gain, rel=1e-5)
    assert gain_of(convolution(4, 16, 3, generator(), gain)) == pytest.approx(gain, rel=1e-5)


def test_glorot_weights_are_uniform_and_scaled_by_both_fans() -> None:
    for layer, fans in (
        (linear(400, 500, generator(), "glorot"), 900),
        (convolution(8, 64, 9, generator(), "glorot"), (8 + 64) * 81),
    ):
        weights = layer.weight.detach().numpy() / math.sqrt(6 / fans)
        assert 0.99 < abs(weights).max() <= 1.0
        assert weights.std() == pytest.approx(1 / math.sqrt(3), abs=0.005)


def test_uniform_layers_are_drawn_as_pytorch_draws_its_own_but_from_the_generator() -> None:
    for layer, inputs in (
        (linear(400, 500, generator(), "uniform"), 400),
        (convolution(8, 64, 9, generator(), "uniform"), 648),
    ):
        for part in (layer.weight, layer.bias):
            assert part is not None
            values = part.detach().numpy() * math.sqrt(inputs)
            assert 0.95 < abs(values).max() <= 1.0
            assert values.std() == pytest.approx(1 / math.sqrt(3), abs=0.05)
    torch.manual_seed(0)
    theirs = torch.nn.Linear(400, 500)
    own = linear(400, 500, generator(), "uniform")
    assert float(own.weight.std()) == pytest.approx(float(theirs.weight.std()), rel=0.01)
    assert float(own.bias.std()) == pytest.approx(float(theirs.bias.std()), rel=0.1)
    again = linear(400, 500, generator(), "uniform")
    assert torch.equal(own.weight, again.weight) and torch.equal(own.bias, again.bias)


def test_a_glorot_network_has_a_value_head_of_norm_1_as_rllibs() -> None:
    made = make("vision", Glorot())
    assert gain_of(made.value) == pytest.approx(1.0)
    for layer in [*layers_of(made.torso), made.policy]:
        fans = layer.weight[0].numel() + layer.weight[:, 0].numel()
        assert 0.9 < float(layer.weight.abs().max()) / math.sqrt(6 / fans) <= 1.0


@pytest.mark.parametrize("network", NETWORKS)
def test_every_network_takes_every_gain_and_biases_start_at_0(network: str) -> None:
    gains = Orthogonal(hidden_gain=1.5, policy_gain=0.25, value_gain=0.75)
    made = make(network, gains, separate_value_network=True)
    assert made.value_torso is not None
    hidden = layers_of(made.torso) + layers_of(made.value_torso)
    assert [gain_of(layer) for layer in hidden] == pytest.approx([1.5] * len(hidden), rel=1e-5)
    assert gain_of(made.policy) == pytest.approx(0.25, rel=1e-5)
    assert gain_of(made.value) == pytest.approx(0.75, rel=1e-5)
    assert not any(layer.bias is None or layer.bias.detach().any() for layer in layers_of(made))


@pytest.mark.parametrize("network", NETWORKS)
def test_a_network_without_the_key_starts_as_its_source_has_it(network: str) -> None:
    own, named = make(network), make(network, default_initialisation(network))
    assert all(torch.equal(a, b) for a, b in zip(own.parameters(), named.parameters(), strict=True))
    assert isinstance(default_initialisation(network), Orthogonal) == (network in TANH)
    other = TruncatedNormal() if network in TANH else Orthogonal()
    assert not torch.equal(own.policy.weight, make(network, other).policy.weight)


def test_a_layer_that_no_memory_holds_is_one_line() -> None:
    with pytest.raises(UserError, match=r"^network: a layer of \d+ x 4 weights needs [\d,]+ GB$"):
        linear(4, 10**14, generator())


def test_a_configuration_names_the_one_it_wants() -> None:
    adapter = TypeAdapter[Kind](Initialisation)
    assert adapter.validate_python({"name": "orthogonal", "policy_gain": 1.0}) == Orthogonal(policy_gain=1.0)
    assert adapter.validate_python({"name": "truncated_normal"}) == TruncatedNormal()
    assert adapter.validate_python({"name": "glorot"}) == Glorot()
    assert adapter.validate_python({"name": "uniform"}) == Uniform()
    for wrong in ({"name": "xavier"}, {"name": "truncated_normal", "policy_gain": 1.0}, {"policy_gain": 1.0}, {}):
        with pytest.raises(ValidationError):
            adapter.validate_python(wrong)
    for gain in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValidationError, match="hidden_gain"):
            Orthogonal(hidden_gain=gain)


def test_no_layer_imports_a_library_for_symbols() -> None:
    code = """
import sys, torch
from ddrl.networks.initialisation import convolution, linear
generator = torch.Generator()
linear(2, 2, generator), linear(2, 2, generator, 1.0), convolution(1, 2, 3, generator)
assert "sympy" not in sys.modules
torch.nn.Linear(2, 2, device="meta").to_empty(device="cpu")
assert "sympy" in sys.modules, "torch itself does so no longer: _initialised need not care"
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def test_the_global_generator_is_not_drawn_from() -> None:
    state = torch.get_rng_state()
    linear(2, 2, torch.Generator(), 1.0), convolution(1, 2, 3, torch.Generator())
    assert torch.equal(torch.get_rng_state(), state)
