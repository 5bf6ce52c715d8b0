"""An evaluation plays exactly as many episodes as asked for, fixed beforehand per environment."""

import pytest
import torch

from ddrl.actors import evaluator
from ddrl.environments import registry
from tests.actors.policy_test import make_policy


@pytest.mark.parametrize("episodes", [1, 5, 16, 37])
def test_it_plays_the_number_of_episodes_asked_for(episodes: int) -> None:
    columns = evaluator.num_envs(episodes)
    env = registry.make("toy/memory", num_envs=columns, seed=0)
    played = evaluator.play(env, make_policy(columns), episodes)
    assert len(played) == episodes
    assert all(abs(episode.episode_return) <= 1 and episode.length > 0 for episode in played)


def test_it_stops_when_told_to() -> None:
    env = registry.make("toy/memory", num_envs=2, seed=0)
    assert evaluator.play(env, make_policy(2), 2, should_stop=lambda: True) == []


def test_it_does_not_change_the_parameters() -> None:
    policy = make_policy(2)
    before = [parameter.clone() for parameter in policy.inference.network.parameters()]
    evaluator.play(registry.make("toy/memory", num_envs=2, seed=0), policy, 4)
    assert all(torch.equal(a, b) for a, b in zip(before, policy.inference.network.parameters(), strict=True))
