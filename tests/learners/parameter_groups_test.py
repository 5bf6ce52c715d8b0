"""Groups of parameters: one is what a single optimizer is, several are as many, with states that come back."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from ddrl.learners.optimizers import AdamConfig, RMSPropConfig, clip_global_norm, make_optimizer
from ddrl.learners.parameter_groups import GroupOptimizers, ParameterGroup, one_group

FAST = AdamConfig(learning_rate=0.1, decay_frames=1000)
SLOW = RMSPropConfig(learning_rate=0.01, decay_frames=None)


def made(seed: int = 0) -> nn.Linear:
    layer = nn.Linear(3, 2)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return layer


def two(layer: nn.Linear, bounds: Sequence[float | None] = (None, None)) -> GroupOptimizers:
    assert layer.bias is not None
    weight = ParameterGroup("weight", [layer.weight], FAST, bounds[0])
    return GroupOptimizers((weight, ParameterGroup("bias", [layer.bias], SLOW, bounds[1])))


def learn(layer: nn.Linear, seed: int) -> None:
    """Fill in a gradient."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in layer.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_one_group_is_one_optimizer_over_all_parameters() -> None:
    ours, theirs = made(), made()
    config: Any = SimpleNamespace(optimizer=FAST, max_grad_norm=0.5)
    group, optimizer = GroupOptimizers(one_group(ours, config)), make_optimizer(theirs.parameters(), FAST)
    for step in range(4):
        learn(ours, step)
        learn(theirs, step)
        norm = float(clip_global_norm(theirs.parameters(), 0.5))
        assert group.clip() == {"gradient_norm": norm}
        optimizer.param_groups[0]["lr"] = 0.1 * (1 - step / 10)
        optimizer.step()
        assert group.step(100 * step) == {"learning_rate": pytest.approx(0.1 * (1 - step / 10))}
        assert same(ours, theirs)
    assert str(group.state_dict()) == str(optimizer.state_dict())
    assert set(group.state_dict()) == {"state", "param_groups"}


def test_each_group_has_its_own_optimizer_its_own_bound_and_its_own_metrics() -> None:
    layer = made()
    learn(layer, 1)
    grads = [parameter.grad.clone() for parameter in layer.parameters() if parameter.grad is not None]
    optimizers = two(layer, (0.25, None))
    metrics = optimizers.clip()
    norms = [float(grad.norm()) for grad in grads]
    expected = {"gradient_norm": math.hypot(*norms), "gradient_norm_weight": norms[0], "gradient_norm_bias": norms[1]}
    assert metrics == pytest.approx(expected)
    assert layer.weight.grad is not None and layer.bias is not None and layer.bias.grad is not None
    torch.testing.assert_close(layer.weight.grad, grads[0] * 0.25 / norms[0])
    assert torch.equal(layer.bias.grad, grads[1])
    apart = copy.deepcopy(layer)
    apart.weight.grad, apart.bias.grad = layer.weight.grad.clone(), layer.bias.grad.clone()
    weight, bias = make_optimizer([apart.weight], FAST), make_optimizer([apart.bias], SLOW)
    weight.param_groups[0]["lr"] = 0.05
    weight.step()
    bias.step()
    assert optimizers.step(500) == pytest.approx({"learning_rate": 0.05, "learning_rate_bias": 0.01})
    assert same(layer, apart)


def test_the_state_of_several_optimizers_comes_back_to_each() -> None:
    ours, other = made(), made(1)
    saved, copied = two(ours), two(other)
    for step in range(3):
        learn(ours, step)
        saved.step(0)
    other.load_state_dict(ours.state_dict())
    copied.load_state_dict(copy.deepcopy(saved.state_dict()))
    for step in range(3, 6):
        for layer, optimizers in ((ours, saved), (other, copied)):
            learn(layer, step)
            optimizers.step(0)
    assert same(ours, other)
    assert [len(parts) for parts in saved.state_dict().values()] == [2, 2]


def test_a_group_without_a_gradient_rests_with_all_that_its_optimizer_counts() -> None:
    layer = made()
    groups = two(layer)
    learn(layer, 0)
    groups.step(0)
    before, states = layer.weight.detach().clone(), copy.deepcopy(groups.state_dict()["state"])
    learn(layer, 1)
    layer.weight.grad = None
    rates = groups.step(0)
    assert torch.equal(layer.weight, before)
    weight, bias = groups.state_dict()["state"]
    assert str(weight) == str(states[0])
    assert str(bias) != str(states[1])
    assert set(rates) == {"learning_rate", "learning_rate_bias"}
