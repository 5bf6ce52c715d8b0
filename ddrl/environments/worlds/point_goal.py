"""What all tasks of navigation to a point share: the actions, what a step pays, and the metric SPL.

Distances are geodesic, in whatever unit a task has: moves on a grid, metres elsewhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ddrl.types import Array

ACTIONS = ("stop", "forward", "left", "right")
STOP, FORWARD, LEFT, RIGHT = range(4)
STEP_COST, SUCCESS_REWARD = 0.01, 2.5
"""Both as in Wijmans et al. 2020."""
REWARDS = ("spl", "success", "metric")
"""spl: the paper's. success: arriving pays the same however long the way was. metric: SPL and nothing else."""


def paid(reward: str, nearer: Any, arrived: Any, shortest: Any, moved: Any) -> Array:
    """Return the rewards [...] of a step, one of `REWARDS`; all other arguments are [...] too.

    `nearer`: by how much the goal came nearer. `arrived`: whether the agent stopped where the goal is. `shortest`: the
    distance at the episode's start. `moved`: the length of the agent's own way. SPL of a success is
    shortest / max(shortest, moved) (Anderson et al. 2018); of anything else it is 0.
    """
    spl: Array = arrived * shortest / np.maximum(shortest, moved)
    if reward == "metric":
        return spl
    rewards: Array = nearer - STEP_COST + SUCCESS_REWARD * (spl if reward == "spl" else arrived)
    return rewards
