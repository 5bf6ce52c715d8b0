"""Value loss and reduction."""

from __future__ import annotations

import pytest
import torch

from ddrl.errors import UserError
from ddrl.losses.value import reduce, value_loss


def test_the_descent_direction_is_target_minus_value() -> None:
    values = torch.tensor([[1.0, -2.0]], requires_grad=True)
    targets = torch.tensor([[3.0, 0.5]], requires_grad=True)
    loss = value_loss(values, targets)
    assert loss.tolist() == [[2.0, 3.125]]
    loss.sum().backward()
    assert values.grad is not None
    assert (-values.grad).tolist() == [[2.0, 2.5]]
    assert targets.grad is None


def test_dead_steps_do_not_count() -> None:
    loss = torch.tensor([[1.0, 2.0], [float("nan"), 4.0]], requires_grad=True)
    valid = torch.tensor([[True, True], [False, True]])
    assert float(reduce(loss.detach(), valid, "sum")) == 7.0
    assert float(reduce(loss.detach(), valid, "mean")) == pytest.approx(7.0 / 3.0)
    reduce(loss, valid, "sum").backward()
    assert loss.grad is not None
    assert loss.grad.tolist() == [[1.0, 1.0], [0.0, 1.0]]


def test_without_a_mask_every_step_counts() -> None:
    loss = torch.arange(6.0).view(2, 3)
    assert float(reduce(loss, None, "sum")) == 15.0
    assert float(reduce(loss, None, "mean")) == 2.5


def test_a_mean_over_no_valid_step_is_zero() -> None:
    assert float(reduce(torch.ones(2, 2), torch.zeros(2, 2, dtype=torch.bool), "mean")) == 0.0


def test_an_unknown_reduction_is_named() -> None:
    with pytest.raises(UserError, match="unknown loss reduction 'max'; allowed: mean, sum"):
        reduce(torch.ones(1), None, "max")
