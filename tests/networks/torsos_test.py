"""Torsos: sizes, scaling, pooling and what they refuse."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from ddrl.errors import UserError
from ddrl.networks.initialisation import convolution
from ddrl.networks.torsos import (
    NETWORKS,
    DeepTorso,
    described,
    make_torso,
    max_pool_same,
    scaled_convolution,
)
from ddrl.types import EnvSpec


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def spec(shape: tuple[int, ...], dtype: str = "uint8") -> EnvSpec:
    return EnvSpec("toy/test", shape, dtype, 3, 1, "test")


def images(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator())


@pytest.mark.parametrize(
    ("network", "shape", "size"),
    [("shallow", (4, 84, 84), 256), ("nature", (4, 84, 84), 512), ("deep", (3, 72, 96), 256), ("mlp", (2, 5), 64)],
)
def test_a_torso_gives_rows_of_its_size(network: str, shape: tuple[int, ...], size: int) -> None:
    torso = make_torso(spec(shape), network, generator())
    assert torso.size == size
    assert torso(images(3, *shape)).shape == (3, size)


def test_the_deep_torso_has_15_convolutions() -> None:
    torso = DeepTorso((4, 84, 84), generator())
    assert sum(isinstance(module, nn.Conv2d) for module in torso.modules()) == 15


def test_the_deep_torso_is_the_published_layer_list() -> None:
    torso = DeepTorso((3, 12, 14), generator()).double()
    x = images(2, 3, 12, 14)
    expected = x.double() / 255
    for entry, blocks in zip(torso.entries, torso.blocks, strict=True):
        expected = entry(expected)
        height, width = expected.shape[-2:]
        padded = nn.functional.pad(expected, tf_same_padding(width) + tf_same_padding(height), value=-math.inf)
        expected = nn.functional.max_pool2d(padded, 3, stride=2)
        for block in blocks:
            expected = expected + block.second(torch.relu(block.first(torch.relu(expected))))
    expected = torch.relu(torso.hidden(torch.relu(expected).reshape(2, -1)))
    found = torso.float()(x)
    torch.testing.assert_close(found, expected.float(), rtol=1e-4, atol=1e-5)


def tf_same_padding(side: int) -> tuple[int, int]:
    """What TensorFlow's "SAME" adds before and after a side, for a window of 3 and a stride of 2."""
    total = max(0, (math.ceil(side / 2) - 1) * 2 + 3 - side)
    return total // 2, total - total // 2


@pytest.mark.parametrize("height", [2, 3, 9, 11, 42])
@pytest.mark.parametrize("width", [4, 5])
def test_pooling_is_tensorflows_same(height: int, width: int) -> None:
    x = torch.randn(2, 3, height, width, generator=generator())
    padded = nn.functional.pad(x, tf_same_padding(width) + tf_same_padding(height), value=-math.inf)
    found = max_pool_same(x)
    assert found.shape[-2:] == (math.ceil(height / 2), math.ceil(width / 2))
    torch.testing.assert_close(found, nn.functional.max_pool2d(padded, 3, stride=2), rtol=0, atol=0)


def test_pixels_are_scaled_by_1_over_255() -> None:
    layer = convolution(4, 8, 8, generator(), stride=4)
    nn.init.normal_(layer.bias, generator=generator())
    x = images(2, 4, 20, 20).float()
    torch.testing.assert_close(scaled_convolution(layer, x), layer(x / 255))


@pytest.mark.parametrize("network", ["shallow", "nature", "vision", "deep", "mlp"])
def test_unscaled_pixels_reach_the_first_layer_as_0_to_255(network: str) -> None:
    spec = EnvSpec("test/images", (4, 84, 84), "uint8", num_actions=2, frame_skip=1, protocol="test")
    one, other = (make_torso(spec, network, generator(), scaled_pixels=scaled) for scaled in (True, False))
    first = next(layer for layer in other.modules() if isinstance(layer, nn.Conv2d | nn.Linear))
    with torch.no_grad():
        first.weight /= 255.0
    x = images(2, 4, 84, 84)
    torch.testing.assert_close(one(x), other(x))


def test_the_mlp_scales_uint8_but_not_float32() -> None:
    x = images(5, 7)
    scaled, plain = make_torso(spec((7,)), "mlp", generator()), make_torso(spec((7,), "float32"), "mlp", generator())
    torch.testing.assert_close(scaled(x), plain(x.float() / 255))


def test_the_network_names_are_shown_when_one_is_wrong() -> None:
    with pytest.raises(UserError, match=r"unknown network 'deeep' \(did you mean 'deep'\?\); allowed: deep, mlp"):
        make_torso(spec((4, 84, 84)), "deeep", generator())


@pytest.mark.parametrize("network", ["shallow", "nature", "deep"])
def test_an_image_network_refuses_flat_or_float_observations(network: str) -> None:
    for wrong in (spec((5,)), spec((4, 84, 84), "float32")):
        with pytest.raises(UserError, match=r"needs uint8 images .* 'toy/test' has"):
            make_torso(wrong, network, generator())


def test_a_too_small_image_is_refused() -> None:
    with pytest.raises(UserError, match="at least 20x20 pixels, not 20x19"):
        make_torso(spec((1, 20, 19)), "shallow", generator())
    make_torso(spec((1, 20, 20)), "shallow", generator())


@pytest.mark.parametrize(
    ("shape", "dtype", "allowed"),
    [
        ((4, 84, 84), "uint8", {"shallow", "nature", "vision", "deep", "mlp"}),
        ((4, 42, 42), "uint8", {"shallow", "nature", "vision", "deep", "mlp"}),
        ((3, 72, 96), "uint8", {"shallow", "nature", "deep", "mlp"}),
        ((3, 30, 30), "uint8", {"shallow", "deep", "mlp"}),
        ((3, 10, 10), "uint8", {"deep", "mlp"}),
        ((5,), "uint8", {"mlp"}),
        ((4, 84, 84), "float32", {"mlp", "tanh_mlp"}),
        ((5,), "float32", {"mlp", "tanh_mlp"}),
    ],
)
def test_the_networks_that_an_error_offers_are_those_that_fit(
    shape: tuple[int, ...], dtype: str, allowed: set[str]
) -> None:
    for network in NETWORKS:
        if network in allowed:
            make_torso(spec(shape, dtype), network, generator())
            continue
        with pytest.raises(UserError) as caught:
            make_torso(spec(shape, dtype), network, generator())
        message = str(caught.value)
        assert message.startswith(f"network '{network}' needs ")
        assert set(message.split("; allowed: ")[1].split(", ")) == allowed


BODY = EnvSpec("test/body", (5,), "float32", num_actions=2, frame_skip=1, protocol="test", body_size=3)


def test_two_streams_see_the_body_and_its_surroundings_apart_and_are_joined_by_a_layer() -> None:
    torso = make_torso(BODY, "two_stream", generator(), mlp_size=4)
    observation = torch.randn(6, 5, generator=generator())
    body, rest = (
        torch.tanh(layers[1](torch.tanh(layers[0](part))))
        for layers, part in (
            (torso.body.layers, observation[:, :3]),
            (torso.surroundings.layers, observation[:, 3:]),
        )
    )
    joined = torch.tanh(torso.joint(torch.cat([body, rest], dim=1)))
    torch.testing.assert_close(torso(observation), joined, rtol=0, atol=0)
    assert described(torso) == {
        "kind": "two_stream",
        "streams": [{"kind": "mlp", "hidden": [4, 4], "activation": "tanh", "scale": 1.0}] * 2,
        "joint": 4,
    }


def test_two_streams_need_an_environment_that_says_what_is_of_the_body() -> None:
    with pytest.raises(UserError, match="needs to know which numbers are of the body, but 'test/body' does not say"):
        make_torso(replace(BODY, body_size=0), "two_stream", generator())


@pytest.mark.parametrize(("network", "default"), [("mlp", 64), ("tanh_mlp", 256)])
def test_the_key_sets_the_units_of_both_layers(network: str, default: int) -> None:
    spec = EnvSpec("test/numbers", (5,), "float32", num_actions=2, frame_skip=1, protocol="test")
    for size in (None, 7):
        torso = make_torso(spec, network, torch.Generator().manual_seed(0), mlp_size=size)
        assert torso.size == (size or default)
        assert [tuple(layer.weight.shape) for layer in torso.layers] == [(torso.size, 5), (torso.size, torso.size)]
