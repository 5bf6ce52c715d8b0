"""Clipping by the global norm, and stopping at numbers that are not finite."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ddrl.errors import NonFiniteError
from ddrl.learners.gradients import check_finite, clip_global_norm


def parameters(*gradients: list[float] | None) -> list[nn.Parameter]:
    made = []
    for gradient in gradients:
        parameter = nn.Parameter(torch.zeros(2))
        parameter.grad = None if gradient is None else torch.tensor(gradient)
        made.append(parameter)
    return made


def gradients_of(made: list[nn.Parameter]) -> list[list[float]]:
    return [parameter.grad.tolist() for parameter in made if parameter.grad is not None]


def test_all_gradients_shrink_together_to_the_bound() -> None:
    made = parameters([3.0, 0.0], None, [0.0, 4.0])
    assert float(clip_global_norm(made, 2.5)) == 5.0
    assert gradients_of(made) == [[1.5, 0.0], [0.0, 2.0]]


@pytest.mark.parametrize("bound", [5.0, 40.0, None])
def test_gradients_within_the_bound_keep_their_bits(bound: float | None) -> None:
    made = parameters([3.0, 0.0], [0.1 + 0.2, 4.0])
    before = gradients_of(made)
    norm = clip_global_norm(made, bound if bound != 5.0 else 5.1)
    assert float(norm) == pytest.approx((9.0 + 0.09 + 16.0) ** 0.5)
    assert gradients_of(made) == before


def test_the_norm_of_no_gradient_is_zero() -> None:
    assert float(clip_global_norm(parameters(None), 1.0)) == 0.0
    assert float(clip_global_norm(parameters([0.0, 0.0]), 1.0)) == 0.0


def test_a_gradient_that_is_not_finite_shows_in_the_norm() -> None:
    norm = clip_global_norm(parameters([1.0, float("nan")], [1.0, 1.0]), 40.0)
    with pytest.raises(NonFiniteError, match=r"update 7: training diverged: gradient_norm is nan$"):
        check_finite({"gradient_norm": norm, "policy_loss": 1.0}, where="update 7")


def test_every_broken_quantity_is_named() -> None:
    values = torch.tensor([[1.0, float("inf")], [2.0, 3.0]])
    with pytest.raises(NonFiniteError, match=r"^training diverged: values is inf, value_loss is -inf$"):
        check_finite({"values": values, "entropy": torch.tensor(0.3), "value_loss": float("-inf")})


def test_finite_quantities_pass() -> None:
    check_finite({"policy_loss": -1e30, "value_loss": torch.zeros(2), "empty": torch.zeros(0)})
