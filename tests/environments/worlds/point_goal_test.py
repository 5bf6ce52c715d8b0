"""What a step of navigation to a point pays."""

from __future__ import annotations

import numpy as np
import pytest

from ddrl.environments.worlds.point_goal import paid


@pytest.mark.parametrize(
    ("reward", "arrived", "moved", "expected"),
    [
        ("spl", False, 9.0, 0.25 - 0.01),
        ("spl", True, 4.0, 0.25 - 0.01 + 2.5),
        ("spl", True, 6.0, 0.25 - 0.01 + 2.5 * 4.5 / 6.0),
        ("success", True, 6.0, 0.25 - 0.01 + 2.5),
        ("success", False, 6.0, 0.25 - 0.01),
        ("metric", True, 6.0, 0.75),
        ("metric", True, 1.0, 1.0),
        ("metric", False, 1.0, 0.0),
    ],
)
def test_a_step_pays_the_papers_reward_or_the_metric(reward: str, arrived: bool, moved: float, expected: float) -> None:
    assert paid(reward, 0.25, arrived, 4.5, moved) == pytest.approx(expected)
    both = paid(reward, np.full(2, 0.25), np.array([arrived, False]), np.full(2, 4.5), np.full(2, moved))
    assert both == pytest.approx([expected, 0.0 if reward == "metric" else 0.24])
