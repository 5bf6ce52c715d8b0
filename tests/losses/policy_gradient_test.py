"""The critic's slope by the action, and its bounds, one number at a time."""

from __future__ import annotations

import math

import pytest
import torch

from ddrl.losses.policy_gradient import action_gradients

SLOPE = torch.tensor([[3.0, -4.0], [0.3, -0.4], [0.0, 0.0], [-2.0, 0.5]])


def test_each_dimension_is_cut_to_the_bound() -> None:
    found = action_gradients(SLOPE, 1.0, by_norm=False)
    torch.testing.assert_close(found, torch.tensor([[1.0, -1.0], [0.3, -0.4], [0.0, 0.0], [-1.0, 0.5]]))


@pytest.mark.parametrize("bound", [0.5, 1.0, 2.0])
def test_by_norm_a_long_row_keeps_its_direction_and_a_short_one_stays(bound: float) -> None:
    found = action_gradients(SLOPE, bound, by_norm=True).tolist()
    for row, expected in zip(found, SLOPE.tolist(), strict=True):
        factor = bound / max(bound, math.hypot(*expected))
        assert row == pytest.approx([factor * part for part in expected])


def test_without_a_bound_nothing_is_cut() -> None:
    for by_norm in (False, True):
        assert torch.equal(action_gradients(SLOPE, None, by_norm=by_norm), SLOPE)
