"""Parts of a network as plain attributes: they stay those that torch has, through copies, moves and replacements."""

from __future__ import annotations

import copy

import torch
from torch import nn

from ddrl.networks.actor_critic import ActorCritic
from ddrl.system.seeding import torch_generator
from ddrl.types import EnvSpec

SPEC = EnvSpec("test/numbers", (4,), "float32", num_actions=0, frame_skip=1, protocol="test", action_size=2)


def network() -> ActorCritic:
    return ActorCritic(SPEC, network="tanh_mlp", generator=torch_generator(0, "network"), separate_value_network=True)


def are_direct(root: nn.Module) -> bool:
    """Return whether every part is a plain attribute, and the one that torch lists."""
    parts = [(module, name, part) for module in root.modules() for name, part in module._modules.items()]
    parameters = [(module, name, part) for module in root.modules() for name, part in module._parameters.items()]
    return all(vars(module)[name] is part for module, name, part in parts + parameters)


def test_every_module_and_parameter_is_found_without_torchs_search() -> None:
    assert are_direct(network())


def test_a_copy_has_its_own() -> None:
    original = network()
    copied = copy.deepcopy(original)
    assert are_direct(copied)
    assert copied.policy.weight is not original.policy.weight


def test_what_takes_the_name_of_a_part_is_found_in_its_place() -> None:
    changed = network()
    changed.policy = nn.Linear(3, 2)
    changed.value.weight = nn.Parameter(torch.ones(1, 2))
    assert changed.policy is changed._modules["policy"]
    assert torch.equal(changed.value.weight, torch.ones(1, 2))


def test_parameters_are_listed_once() -> None:
    names = [name for name, _ in network().named_parameters()]
    assert len(names) == len(set(names)) == 13
    assert sorted(network().state_dict()) == sorted(names)
