"""The Q-network: parameter counts, the dueling heads, what reaches the LSTM, and what is refused."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch

from ddrl.errors import UserError
from ddrl.networks.initialisation import Orthogonal, TruncatedNormal, Uniform
from ddrl.networks.q_network import QNetwork
from ddrl.types import EnvSpec, NetworkOutput
from tests.networks.actor_critic_test import ATARI, CONTINUOUS, FLAT, SMALL, inputs

LSTM = {"lstm_size": 8}
DUELING = {"dueling": True}


def make(spec: EnvSpec, network: str, seed: int = 0, **keys: Any) -> QNetwork:
    plain = {"lstm_size": 0, "feed_last_action_and_reward": False, "dueling": False, "head_size": 16}
    return QNetwork(spec, network=network, generator=torch.Generator().manual_seed(seed), **plain | keys)


def outputs_of(network: QNetwork, data: dict[str, torch.Tensor]) -> NetworkOutput:
    output: NetworkOutput = network(**data, state=network.initial_state(data["start"].shape[1]))
    return output


def count(network: QNetwork) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


CONVOLUTIONS = 8_224 + 32_832 + 36_928
"""32x(4x8x8) + 32, 64x(32x4x4) + 64, 64x(64x3x3) + 64 (Mnih et al. 2015)."""


def test_feed_forward_it_is_the_dueling_network_of_wang_et_al() -> None:
    """Figure 1: the convolutions, then two streams of 512 units each, straight from the 3136 numbers they put out."""
    streams = 2 * (3136 * 512 + 512) + (512 * 18 + 18) + (512 + 1)
    assert count(make(ATARI, "nature", dueling=True, head_size=512)) == CONVOLUTIONS + streams


def test_feed_forward_with_one_stream_it_is_the_network_of_mnih_et_al() -> None:
    expected = CONVOLUTIONS + (3136 * 512 + 512) + (512 * 18 + 18)
    assert count(make(ATARI, "nature", head_size=512)) == expected


def test_with_an_lstm_the_torso_keeps_its_linear_layer() -> None:
    linear, core = 3136 * 512 + 512, 4 * 512 * (512 + 18 + 1 + 512 + 1)
    heads = 2 * (512 * 512 + 512) + (512 * 18 + 18) + (512 + 1)
    network = make(ATARI, "nature", lstm_size=512, feed_last_action_and_reward=True, dueling=True, head_size=512)
    assert count(network) == CONVOLUTIONS + linear + core + heads


@pytest.mark.parametrize(
    ("size", "widths"), [((120,), [120]), ((32, 16, 8), [32, 16, 8]), (24, [24, 24]), (None, [64, 64])]
)
def test_layers_of_vectors_have_the_units_that_are_asked_for(size: Any, widths: list[int]) -> None:
    network = make(FLAT, "mlp", mlp_size=size, head_size=84)
    ends = [*FLAT.observation_shape, *widths, 84, FLAT.num_actions]
    assert count(network) == sum(inputs * outputs + outputs for inputs, outputs in pairwise(ends))
    assert network.describe()["torso"]["hidden"] == widths


def test_first_weights_are_those_of_the_key_in_every_layer() -> None:
    network = make(FLAT, "mlp", head_size=84, dueling=True, initialisation=Orthogonal(hidden_gain=1.5, value_gain=0.5))
    hidden = [*network.torso.layers, network.advantage.hidden]  # type: ignore[union-attr, list-item]
    for layer, gain in [*((one, 1.5) for one in hidden), (network.advantage.output, 0.5)]:
        singular = torch.linalg.svdvals(layer.weight)
        assert singular.tolist() == pytest.approx([gain] * len(singular), rel=1e-4)
    assert make(FLAT, "mlp", initialisation=Uniform()).advantage.output.bias.any()
    plain, named = make(FLAT, "mlp"), make(FLAT, "mlp", initialisation=TruncatedNormal())
    assert all(map(torch.equal, plain.parameters(), named.parameters()))
    assert plain.describe()["gains"] == [None, None, None]


@pytest.mark.parametrize("keys", [{}, LSTM, DUELING, LSTM | DUELING])
@pytest.mark.parametrize(("spec", "network"), [(SMALL, "shallow"), (SMALL, "deep"), (FLAT, "mlp"), (FLAT, "tanh_mlp")])
def test_an_unroll_equals_its_single_steps(spec: EnvSpec, network: str, keys: dict[str, Any]) -> None:
    model, data = make(spec, network, feed_last_action_and_reward=True, **keys), inputs(spec, 5, 3)
    whole = outputs_of(model, data)
    assert whole.distribution.shape == (5, 3, spec.num_actions)
    assert torch.equal(whole.value, whole.distribution.amax(dim=-1))
    state = model.initial_state(3)
    for t in range(5):
        step: NetworkOutput = model(**{name: value[t : t + 1] for name, value in data.items()}, state=state)
        state = step.state
        torch.testing.assert_close(step.distribution[0], whole.distribution[t])
    torch.testing.assert_close(state, whole.state)


@pytest.mark.parametrize("lstm_size", [0, 8])
def test_the_mean_of_dueling_values_is_the_value_stream(lstm_size: int) -> None:
    """Wang et al. 2016, eq. 9: Q = V + A - mean A, so the mean advantage is 0."""
    network, data = make(FLAT, "mlp", dueling=True, lstm_size=lstm_size), inputs(FLAT, 4, 2)
    streams: dict[str, torch.Tensor] = {}
    for name in ("advantage", "value"):
        getattr(network, name).register_forward_hook(lambda _m, _i, out, name=name: streams.__setitem__(name, out))
    q = outputs_of(network, data).distribution.flatten(0, 1)
    torch.testing.assert_close(q.mean(dim=-1), streams["value"].squeeze(-1))
    for i in range(3):
        advantages = streams["advantage"][4].tolist()
        expected = streams["value"][4].item() + advantages[i] - sum(advantages) / 3
        assert q[4, i].item() == pytest.approx(expected, abs=1e-6)


def test_what_all_advantages_share_is_no_advantage() -> None:
    network, data = make(FLAT, "mlp", dueling=True), inputs(FLAT, 4, 2)
    before = outputs_of(network, data).distribution
    with torch.no_grad():
        network.advantage.output.bias.add_(5.0)
    torch.testing.assert_close(outputs_of(network, data).distribution, before)
    assert network.value is not None
    with torch.no_grad():
        network.value.output.bias.add_(5.0)
    torch.testing.assert_close(outputs_of(network, data).distribution, before + 5.0)


def test_the_state_is_zeroed_where_an_episode_starts() -> None:
    network, data = make(FLAT, "mlp", lstm_size=8), inputs(FLAT, 5, 2)
    data["start"] = torch.zeros(5, 2, dtype=torch.bool)
    data["start"][2, 0] = True
    noise = torch.Generator().manual_seed(5)
    some = tuple(torch.randn(part.shape, generator=noise) for part in network.initial_state(2))
    found, from_zeros = network(**data, state=some), outputs_of(network, data)
    torch.testing.assert_close(found.distribution[2:, 0], from_zeros.distribution[2:, 0])
    alone = {name: value[2:, :1] for name, value in data.items()}
    torch.testing.assert_close(found.distribution[2:, :1], outputs_of(network, alone).distribution)
    assert not torch.isclose(found.distribution[:2, 0], from_zeros.distribution[:2, 0]).any()
    assert not torch.isclose(found.distribution[:, 1], from_zeros.distribution[:, 1]).all(dim=-1).any()


@pytest.mark.parametrize("lstm_size", [0, 8])
@pytest.mark.parametrize("name", ["last_action", "last_reward"])
def test_last_action_and_reward_are_inputs_only_when_asked_for(lstm_size: int, name: str) -> None:
    data = inputs(FLAT, 4, 2)
    changed = data | {name: (data[name] + 1) % 3}
    for feed in (False, True):
        network = make(FLAT, "mlp", lstm_size=lstm_size, feed_last_action_and_reward=feed)
        same = torch.equal(outputs_of(network, data).distribution, outputs_of(network, changed).distribution)
        assert same != feed


@pytest.mark.parametrize("reward_input", ["raw", "tanh"])
def test_they_reach_the_lstm_beside_what_the_torso_puts_out(reward_input: str) -> None:
    """The reward as it is, not clipped as the actor-critic's, or its tanh, then the action as one of three."""
    keys = {"feed_last_action_and_reward": True, "reward_input": reward_input}
    network, data = make(FLAT, "mlp", lstm_size=8, **keys), inputs(FLAT, 4, 2)
    data["last_reward"] *= 10
    seen: list[torch.Tensor] = []
    assert network.core is not None
    network.core.register_forward_pre_hook(lambda _module, given: seen.append(given[0]))
    outputs_of(network, data)
    features = network.torso(data["observation"].flatten(0, 1)).unflatten(0, (4, 2))
    torch.testing.assert_close(seen[0][..., :64], features)
    reward = data["last_reward"].tanh() if reward_input == "tanh" else data["last_reward"]
    assert torch.equal(seen[0][..., 64], reward)
    assert torch.equal(seen[0][..., 65:].argmax(dim=-1), data["last_action"])
    assert torch.equal(seen[0][..., 65:].sum(dim=-1), torch.ones(4, 2))


def test_a_feed_forward_network_has_no_state() -> None:
    network, data = make(FLAT, "mlp"), inputs(FLAT, 4, 2)
    assert network.initial_state(2) == ()
    assert outputs_of(network, data).state == ()
    other = data | {"start": ~data["start"]}
    assert torch.equal(outputs_of(network, data).distribution, outputs_of(network, other).distribution)


def test_the_same_generator_gives_the_same_weights_and_the_global_one_is_left_alone() -> None:
    before = torch.get_rng_state()
    first, again, other = (make(FLAT, "mlp", seed, **LSTM, **DUELING).state_dict() for seed in (0, 0, 1))
    assert torch.equal(before, torch.get_rng_state())
    for name, value in first.items():
        assert torch.equal(value, again[name])
        assert torch.equal(value, other[name]) == (not value.any() or name == "core.bias")


@pytest.mark.parametrize("keys", [DUELING, LSTM | DUELING])
def test_bfloat16_autocast_returns_float32_close_to_full_precision(keys: dict[str, Any]) -> None:
    model, data = make(SMALL, "shallow", feed_last_action_and_reward=True, **keys), inputs(SMALL, 4, 2)
    full = outputs_of(model, data)
    with torch.autocast("cpu", torch.bfloat16):
        low = outputs_of(model, data)
        low.distribution.sum().backward()
    assert {low.distribution.dtype, low.value.dtype, *(part.dtype for part in low.state)} == {torch.float32}
    torch.testing.assert_close(low.distribution, full.distribution, rtol=0.05, atol=0.05)
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())


def test_before_an_episode_there_was_no_action() -> None:
    action = make(FLAT, "mlp").no_action(3)
    assert (action.tolist(), action.dtype) == ([0, 0, 0], torch.int64)


def test_continuous_actions_are_refused() -> None:
    with pytest.raises(UserError, match=r"^'mujoco/test' has continuous actions; Q-learning needs discrete ones$"):
        make(CONTINUOUS, "tanh_mlp")


def test_a_network_that_does_not_fit_is_refused() -> None:
    with pytest.raises(UserError, match="network 'nature' needs uint8 images"):
        make(FLAT, "nature")
