"""Value loss and masked sum."""

from __future__ import annotations

import torch

from ddrl.losses.value import masked_sum, value_loss


def test_the_descent_direction_is_target_minus_value() -> None:
    values = torch.tensor([[1.0, -2.0]], requires_grad=True)
    targets = torch.tensor([[3.0, 0.5]], requires_grad=True)
    loss = value_loss(values, targets)
    assert loss.tolist() == [[2.0, 3.125]]
    loss.sum().backward()
    assert values.grad is not None
    assert (-values.grad).tolist() == [[2.0, 2.5]]
    assert targets.grad is None


def test_dead_steps_do_not_count_whatever_they_hold() -> None:
    loss = torch.tensor([[1.0, 2.0], [float("nan"), 4.0]], requires_grad=True)
    valid = torch.tensor([[True, True], [False, True]])
    total = masked_sum(loss, valid)
    assert total.item() == 7.0
    total.backward()
    assert loss.grad is not None
    assert loss.grad.tolist() == [[1.0, 1.0], [0.0, 1.0]]
