"""The networks of a deterministic policy: bounds, sizes, where the action enters, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from ddrl.errors import UserError
from ddrl.networks.deterministic import DeterministicActorCritic
from ddrl.networks.initialisation import Orthogonal
from ddrl.types import EnvSpec

SPEC = EnvSpec("test/continuous", (5,), "float32", num_actions=0, frame_skip=1, protocol="test", action_size=2)
KEYS: dict[str, Any] = {
    "network": "mlp",
    "policy_layers": (30, 20),
    "critic_layers": (40, 25),
    "action_input": "second_layer",
    "outputs": 7,
    "noise": 0.3,
}


def make(spec: EnvSpec = SPEC, seed: int = 0, **keys: Any) -> DeterministicActorCritic:
    return DeterministicActorCritic(spec, generator=torch.Generator().manual_seed(seed), **KEYS | keys)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


def count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_policy_and_critic_have_their_own_sizes_and_share_nothing() -> None:
    network = make()
    policy = (5 * 30 + 30) + (30 * 20 + 20) + (20 * 2 + 2)
    critic = (5 * 40 + 40) + (42 * 25 + 25) + (25 * 7 + 7)
    assert count(network.critic) == critic
    assert count(network) == policy + critic
    assert count(make(action_input="first_layer").critic) == (7 * 40 + 40) + (40 * 25 + 25) + (25 * 7 + 7)


def test_actions_are_the_tanh_of_a_linear_layer_and_the_distribution_names_them_and_the_noise() -> None:
    network, observation = make(), random(9, 5)
    hidden = observation
    for layer in network.torso.layers:
        hidden = F.relu(F.linear(hidden, layer.weight, layer.bias))  # type: ignore[arg-type]
    expected = torch.tanh(F.linear(hidden, network.policy.weight, network.policy.bias))
    torch.testing.assert_close(network.actions(observation), expected)
    distribution, value = network.of_steps(observation)
    torch.testing.assert_close(distribution[:, :2], expected)
    torch.testing.assert_close(distribution[:, 2:], torch.full((9, 2), math.log(0.3)))
    assert value.isnan().all() and value.shape == (9,)
    output = network(observation.view(3, 3, 5), None, None, None, ())
    torch.testing.assert_close(output.distribution, distribution.view(3, 3, 4))
    assert output.value.shape == (3, 3) and output.state == ()


def test_large_outputs_stay_within_the_bounds_of_actions() -> None:
    network = make()
    with torch.no_grad():
        network.policy.weight.mul_(1e4)
    actions = network.actions(random(50, 5))
    assert float(actions.abs().max()) <= 1.0 and float(actions.abs().max()) > 0.99


@pytest.mark.parametrize(("name", "activation"), [("mlp", F.relu), ("tanh_mlp", torch.tanh)])
def test_the_action_is_added_at_the_second_layer_or_stands_beside_the_observation(name: str, activation: Any) -> None:
    observation, action = random(9, 5), random(9, 2)
    critic = make(network=name).critic
    first, second = (layer for layer in critic.layers if isinstance(layer, torch.nn.Linear))
    hidden, own = activation(first(observation)), second.weight[:, 40:]
    added = F.linear(hidden, second.weight[:, :40], second.bias) + action @ own.T
    torch.testing.assert_close(critic(observation, action), critic.output(activation(added)))
    assert float(own.detach().abs().max()) <= 2 / math.sqrt(42), "as small as the other weights of its layer"
    critic = make(network=name, action_input="first_layer").critic
    first, second = critic.layers
    hidden = activation(first(torch.cat([observation, action], dim=-1)))
    torch.testing.assert_close(critic(observation, action), critic.output(activation(second(hidden))))


def test_initialisation_has_three_gains_and_all_weights_come_from_the_generator() -> None:
    assert all(torch.equal(a, b) for a, b in zip(make().parameters(), make().parameters(), strict=True))
    assert not torch.equal(make().policy.weight, make(seed=1).policy.weight)
    network = make(initialisation=Orthogonal(policy_gain=0.01, value_gain=2.0))
    rows = network.policy.weight @ network.policy.weight.T
    torch.testing.assert_close(rows, 1e-4 * torch.eye(2), atol=1e-8, rtol=0)
    rows = network.critic.output.weight @ network.critic.output.weight.T
    torch.testing.assert_close(rows, 4.0 * torch.eye(7), atol=1e-5, rtol=0)


def test_it_has_no_state_and_says_what_it_is_made_of() -> None:
    network = make()
    assert network.initial_state(3) == ()
    assert network.no_action(3).tolist() == [[0.0, 0.0]] * 3
    described = {"hidden": [40, 25], "outputs": 7, "action_layer": 1, "layer_norm": False}
    assert network.describe()["critic"] == described
    assert network.describe()["torso"]["hidden"] == [30, 20]
    assert make(layer_norm=True).describe()["critic"] == described | {"layer_norm": True}


def test_a_normalised_first_layer_is_followed_by_tanh_and_the_others_by_their_activation() -> None:
    network = make(layer_norm=True, action_input="first_layer")
    observation, action = random(9, 5), random(9, 2)

    def expected(first: torch.nn.Module, second: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        x = first(x)
        deviation = ((x - x.mean(-1, keepdim=True)).square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return torch.relu(second(torch.tanh((x - x.mean(-1, keepdim=True)) / deviation)))

    policy = torch.tanh(network.policy(expected(*network.torso.layers, observation)))
    torch.testing.assert_close(network.actions(observation), policy)
    critic = network.critic.output(expected(*network.critic.layers, torch.cat([observation, action], dim=-1)))
    torch.testing.assert_close(network.critic(observation, action), critic)


def test_discrete_actions_are_refused() -> None:
    spec = EnvSpec("test/discrete", (5,), "float32", num_actions=3, frame_skip=1, protocol="test")
    with pytest.raises(UserError, match=r"^'test/discrete' has discrete actions; a deterministic policy needs"):
        make(spec)
