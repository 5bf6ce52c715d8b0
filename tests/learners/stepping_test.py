"""Both of our optimizers have torch's protocol of a step, and refuse a saved state that does not fit."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import nn

from ddrl.learners.adam import Adam
from ddrl.learners.optimizers import AdamConfig, RMSProp, RMSPropConfig, make_optimizer
from ddrl.learners.stepping import check_part, stepping

BOTH = pytest.mark.parametrize("config", [RMSPropConfig(decay_frames=None), AdamConfig()], ids=["rmsprop", "adam"])


@BOTH
def test_a_closure_is_called_with_gradients_before_the_update_and_its_loss_is_returned(config: Any) -> None:
    weights = [nn.Parameter(torch.tensor([2.0, -1.0])) for _ in range(2)]
    one, other = (make_optimizer([weight], config) for weight in weights)

    def closure() -> float:
        one.zero_grad()
        loss = weights[0].square().sum()
        torch.autograd.backward(loss)
        return float(loss.detach())

    assert one.step(closure) == 5.0
    weights[1].grad = torch.tensor([4.0, -2.0])
    assert other.step() is None
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], torch.tensor([2.0, -1.0]))


def test_one_function_makes_the_step_of_both() -> None:
    codes = {inspect.unwrap(step).__code__ for step in (RMSProp.step, Adam.step, stepping(lambda _: None))}
    assert len(codes) == 1


@pytest.mark.parametrize("saved", [{}, {"mean": None}, {"mean": 1.0}, {"mean": torch.zeros(3)}])
def test_a_part_that_is_missing_or_has_another_shape_is_named(saved: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^Adam's mean is missing, or not of its parameter's shape"):
        check_part("Adam", "mean", saved, torch.zeros(2))
    check_part("Adam", "mean", {"mean": torch.ones(2)}, torch.zeros(2))
