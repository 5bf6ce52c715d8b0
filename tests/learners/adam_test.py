"""Adam on all parameters at once: the bits of torch's, its state, and what cannot be loaded."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from ddrl.learners.adam import Adam

SETTINGS: dict[str, Any] = {"lr": 3e-3, "betas": (0.8, 0.99), "eps": 1e-4}
SHAPES = ((17, 5), (5,), (3, 5, 7), ())


def parameters() -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in SHAPES]


def learn(optimizer: torch.optim.Optimizer, steps: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()


def test_it_computes_the_bits_of_torchs() -> None:
    ours, theirs = parameters(), parameters()
    optimizers = Adam(ours, **SETTINGS), torch.optim.Adam(theirs, foreach=True, **SETTINGS)
    for optimizer in optimizers:
        learn(optimizer, 30, seed=1)
    assert all(torch.equal(own, other) for own, other in zip(ours, theirs, strict=True))
    states = [optimizer.state_dict()["state"] for optimizer in optimizers]
    for own, other in zip(states[0].values(), states[1].values(), strict=True):
        assert own.keys() == other.keys()
        assert all(torch.equal(own[name], other[name]) for name in own)


@pytest.mark.parametrize("saved_by", [Adam, torch.optim.Adam])
def test_it_continues_from_its_own_state_and_from_torchs(saved_by: type[torch.optim.Optimizer]) -> None:
    whole = parameters()
    saver = saved_by(whole, **SETTINGS)
    learn(saver, 5, seed=1)
    resumed = [parameter.detach().clone().requires_grad_() for parameter in whole]
    loaded = Adam(resumed, **SETTINGS)
    loaded.load_state_dict(copy.deepcopy(saver.state_dict()))
    learn(saver, 5, seed=2)
    learn(loaded, 5, seed=2)
    assert all(torch.equal(own, other) for own, other in zip(whole, resumed, strict=True))


def test_its_own_state_may_be_loaded_where_it_stands() -> None:
    ours = Adam(parameters(), **SETTINGS)
    learn(ours, 2, seed=1)
    before = copy.deepcopy(ours.state_dict())
    ours.load_state_dict(ours.state_dict())
    for own, other in zip(ours.state_dict()["state"].values(), before["state"].values(), strict=True):
        assert all(torch.equal(own[name], other[name]) for name in own)


def test_the_state_of_torchs_before_its_first_step_is_a_beginning() -> None:
    ours = Adam(parameters(), **SETTINGS)
    learn(ours, 2, seed=1)
    ours.load_state_dict(torch.optim.Adam(parameters(), **SETTINGS).state_dict())
    assert all(not part["exp_avg"].any() and part["step"] == 0 for part in ours.state_dict()["state"].values())


def test_a_parameter_without_a_gradient_stays() -> None:
    """So it does with momentum, and keeps its moments, as torch has it; the others move as if it were not there."""
    ours, theirs = parameters(), parameters()
    optimizers = Adam(ours, **SETTINGS), torch.optim.Adam(theirs, foreach=True, **SETTINGS)
    for optimizer, own in zip(optimizers, (ours, theirs), strict=True):
        learn(optimizer, 3, seed=1)
        before = own[1].detach().clone()
        for parameter in own:
            parameter.grad = torch.ones_like(parameter)
        own[1].grad = None
        optimizer.step()
        assert torch.equal(own[1], before)
    assert all(torch.equal(own, other) for own, other in zip(ours, theirs, strict=True))
    states = [optimizer.state_dict()["state"][1] for optimizer in optimizers]
    for name in ("exp_avg", "exp_avg_sq"):
        assert torch.equal(states[0][name], states[1][name])


def without_a_part(state: dict[int, Any]) -> None:
    del state[2]


def of_another_shape(state: dict[int, Any]) -> None:
    state[0]["exp_avg_sq"] = torch.zeros(2)


@pytest.mark.parametrize("damage", [without_a_part, of_another_shape])
def test_a_state_that_does_not_fit_is_refused(damage: Any) -> None:
    saver = Adam(parameters(), **SETTINGS)
    state = copy.deepcopy(saver.state_dict())
    damage(state["state"])
    with pytest.raises(ValueError, match=r"Adam's exp_avg.* is missing, or not of its parameter's shape"):
        Adam(parameters(), **SETTINGS).load_state_dict(state)
