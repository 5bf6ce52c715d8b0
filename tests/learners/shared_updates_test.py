"""Gradients that several bring: what is computed, in which shards it is applied, and what is counted and told."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ddrl.errors import NonFiniteError
from ddrl.learners.all_reduce import SingleLearner
from ddrl.learners.core import Setting
from ddrl.learners.optimizers import RMSPropConfig
from ddrl.learners.shared_updates import SharedUpdates, gradient_of, shards
from ddrl.system.seeding import numpy_generator
from ddrl.types import Begun, Gradients, Metrics


def layers() -> nn.Sequential:
    """A network of four parameters, of 6, 2, 2 and 1 numbers."""
    return nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))


def updates(network: nn.Module, **keys: Any) -> SharedUpdates:
    """The shared updates of a network, of version 7, whose learning rate of 0.1 falls over 1,000 frames."""
    setting = Setting(4, torch.device("cpu"), "float32", 1, numpy_generator(0, "replay"), SingleLearner(), **keys)
    config = SimpleNamespace(optimizer=RMSPropConfig(learning_rate=0.1, decay_frames=1000))
    params: Any = SimpleNamespace(version=7, publish=lambda network: None, serve=lambda *_: None)
    return SharedUpdates(config, network, params, setting)


def brought(network: nn.Module, *, items: int = 5, steps: int = 5) -> Gradients:
    """A gradient of ones, of the mean version 4.5, of which the oldest is 3."""
    tensors = tuple(torch.ones_like(parameter) for parameter in network.parameters())
    return Gradients(tensors, 2.5, steps, 4.5, 3, {"loss": 20.0}, items)


def squares(network: nn.Module) -> tuple[Tensor, Metrics]:
    """Half the sum of squares of all parameters, whose gradient is the parameters."""
    loss = torch.stack([parameter.square().sum() for parameter in network.parameters()]).sum() / 2
    return loss, {"loss": float(loss.detach())}


@pytest.mark.parametrize(("steps", "counted"), [(None, 6), (0, 0), (9, 9)])
def test_a_gradient_counts_the_steps_it_is_given_or_its_items(steps: int | None, counted: int) -> None:
    network = layers()
    found = gradient_of(squares, network, nullcontext(), None, version=3, items=6, steps=steps)
    assert (found.items, found.steps, found.version, found.oldest_version) == (6, counted, 3, 3)
    torch.testing.assert_close(list(found.tensors), [parameter.detach() for parameter in network.parameters()])
    norm = float(torch.cat([parameter.detach().flatten() for parameter in network.parameters()]).norm())
    assert found.norm == pytest.approx(norm)
    assert found.metrics == {"loss": pytest.approx(norm**2 / 2)}


def test_a_gradient_is_of_its_own_loss_alone_and_clipped() -> None:
    network = layers()
    first = gradient_of(squares, network, nullcontext(), None, version=0, items=1)
    second = gradient_of(squares, network, nullcontext(), first.norm / 2, version=0, items=1)
    assert second.norm == first.norm
    torch.testing.assert_close(list(second.tensors), [tensor / 2 for tensor in first.tensors])


def test_what_is_not_finite_is_told_with_the_first_update_that_it_could_be() -> None:
    network = layers()
    with torch.no_grad():
        network[0].bias.fill_(float("inf"))
    with pytest.raises(NonFiniteError, match=r"^update 4 or after: .*loss is inf, gradient_norm is"):
        gradient_of(squares, network, nullcontext(), None, version=3, items=1)


@pytest.mark.parametrize(
    ("sizes", "number", "expected"),
    [
        ([10, 10, 10, 10], 1, [[10, 10, 10, 10]]),
        ([10, 10, 10, 10], 2, [[10, 10], [10, 10]]),
        ([10, 10, 10, 10], 3, [[10, 10], [10], [10]]),
        ([10, 10, 10, 10], 4, [[10], [10], [10], [10]]),
        ([10, 10, 10, 10], 9, [[10], [10], [10], [10]]),
        ([9, 1, 1, 1], 2, [[9], [1, 1, 1]]),
        ([1, 1, 1, 9], 2, [[1, 1, 1, 9]]),
        ([4, 1, 1, 4, 1, 1], 2, [[4, 1, 1], [4, 1, 1]]),
    ],
)
def test_shards_end_where_the_parameters_so_far_are_their_share(
    sizes: list[int], number: int, expected: list[list[int]]
) -> None:
    parameters = [nn.Parameter(torch.zeros(size)) for size in sizes]
    found = shards(parameters, number)
    assert [[parameter.numel() for parameter in part] for _, part in found] == expected
    assert [[parameter.numel() for parameter in parameters[place]] for place, _ in found] == expected


@pytest.mark.parametrize(("parameter_shards", "number"), [(None, 1), (1, 1), (2, 2), (3, 3), (9, 4)])
def test_there_is_an_optimizer_for_each_shard_and_one_without_shards(parameter_shards: int | None, number: int) -> None:
    core = updates(layers(), parameter_shards=parameter_shards)
    assert len(core.state_dict()["optimizers"]) == number


def test_an_update_changes_every_shard_and_counts_steps_and_frames() -> None:
    network = layers()
    core = updates(network, parameter_shards=2)
    assert (core.updates, core.agent_steps, core.env_frames) == (0, 0, 0)
    before = [parameter.detach().clone() for parameter in network.parameters()]
    core.apply(brought(network, steps=5))
    assert (core.updates, core.agent_steps, core.env_frames) == (1, 5, 20)
    core.apply(brought(network, steps=0))
    core.apply(brought(network, steps=2))
    assert (core.updates, core.agent_steps, core.env_frames) == (3, 7, 28)
    for parameter, old in zip(network.parameters(), before, strict=True):
        assert bool((parameter < old).all())


@pytest.mark.parametrize(("items", "loss"), [(5, 4.0), (1, 20.0), (0, 20.0)])
def test_what_is_told_of_an_update_is_of_one_item_and_of_the_versions_since(items: int, loss: float) -> None:
    network = layers()
    core = updates(network)
    core.env_frames = 250
    assert core.apply(brought(network, items=items)) == {
        "loss": loss,
        "gradient_norm": 2.5,
        "learning_rate": pytest.approx(0.075),
        "policy_lag_mean": 2.5,
        "policy_lag_max": 4.0,
    }


def test_an_update_that_shards_began_has_the_version_and_the_rate_of_its_beginning() -> None:
    network = layers()
    core = updates(network)
    assert core.begin() == Begun(7, 0.1)
    metrics = core.apply(brought(network), Begun(6, 0.02))
    assert (metrics["policy_lag_mean"], metrics["learning_rate"]) == (1.5, 0.02)


def test_a_state_without_the_optimizer_of_a_shard_is_refused() -> None:
    state = updates(layers(), parameter_shards=2).state_dict()
    state["optimizers"] = state["optimizers"][:1]
    with pytest.raises(ValueError, match="zip"):
        updates(layers(), parameter_shards=2).load_state_dict(state)
