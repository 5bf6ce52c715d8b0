"""Small unrolls for tests; each column carries a tag in its reward, so that it can be followed."""

from __future__ import annotations

import torch

from ddrl.types import Unroll


def make_unroll(
    *,
    length: int = 3,
    columns: int = 2,
    num_actions: int = 3,
    action_size: int = 0,
    observation_size: int = 4,
    actor: int = 0,
    index: int = 0,
    first_tag: int = 0,
    version: int = 0,
    seed: int = 0,
) -> Unroll:
    """Random observations, actions and distributions; reward[t, b] is the tag of column b.

    `action_size` A > 0: continuous actions [.., A] of a Gaussian with parameters [.., 2A].
    """
    generator = torch.Generator().manual_seed(seed)
    steps, points = (length, columns), (length + 1, columns)
    if action_size:
        action = torch.randn((*steps, action_size), generator=generator)
        last_action = torch.zeros((*points, action_size))
    else:
        action = torch.randint(num_actions, steps, generator=generator)
        last_action = torch.zeros(points, dtype=torch.int64)
    return Unroll(
        observation=torch.rand((*points, observation_size), generator=generator),
        last_action=last_action,
        last_reward=torch.zeros(points),
        start=torch.zeros(points, dtype=torch.bool),
        action=action,
        reward=torch.arange(first_tag, first_tag + columns, dtype=torch.float32).expand(steps).clone(),
        terminated=torch.zeros(steps, dtype=torch.bool),
        truncated=torch.zeros(steps, dtype=torch.bool),
        valid=torch.ones(steps, dtype=torch.bool),
        distribution=torch.randn((*steps, 2 * action_size or num_actions), generator=generator),
        version=torch.full(steps, version),
        actor=torch.full((columns,), actor),
        env=torch.arange(columns),
        index=torch.full((columns,), index),
        initial_state=(torch.rand((columns, 2), generator=generator),),
    )


def tags(unroll: Unroll) -> list[int]:
    """The tag of each column."""
    return [int(tag) for tag in unroll.reward[0].tolist()]
