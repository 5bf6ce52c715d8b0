"""An evaluation plays as the actors do, and exactly as many episodes as asked for, fixed beforehand per environment."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from ddrl.actors import evaluator
from ddrl.actors.exploration import EpsilonGreedy
from ddrl.actors.policy import LocalInference, Policy
from ddrl.actors.unroll import UnrollCollector
from ddrl.environments.base import registry
from ddrl.networks.actor_critic import ActorCritic
from ddrl.networks.q_network import QNetwork
from ddrl.system.seeding import torch_generator
from ddrl.types import Array, Episode
from tests.actors.policy_test import make_policy
from tests.algorithms.rigs import CONTINUOUS, DISCRETE
from tests.scripted import Scripted, Watched

RECURRENT = {"network": "tanh_mlp", "lstm_size": 8, "feed_last_action_and_reward": True}
KINDS = ("discrete", "continuous", "values")
every_kind = pytest.mark.parametrize("kind", KINDS)


def recurrent(kind: str) -> tuple[Scripted, Watched, Policy]:
    """Scripted environments, and a policy with a memory for them that is fed last actions and rewards."""
    generator, spec = torch_generator(0, "network"), CONTINUOUS if kind == "continuous" else DISCRETE
    network: Any
    if kind == "values":
        network = QNetwork(spec, **RECURRENT, dueling=True, head_size=8, generator=generator)
        sample: Any = EpsilonGreedy([0.3])
    else:
        network = ActorCritic(spec, **RECURRENT, generator=generator)
        sample = network.family.sample
        with torch.no_grad():
            network.policy.weight.mul_(100.0)  # begins near 0: whatever it is fed would hardly matter
    watched = Watched(LocalInference(network, device=torch.device("cpu"), precision="float32"))
    env = Scripted(spec)
    return env, watched, Policy(watched, env.num_envs, torch_generator(0, "policy"), sample)


def whole_episodes(env: Scripted, column: int) -> list[tuple[float, int]]:
    """(return, length) of what an environment has played to its end; a lost life ends nothing."""
    found, total, length = [], 0.0, 0
    for one in env.played[1:]:
        total, length = total + float(one.step.reward[column]), length + int(one.step.valid[column])
        if one.step.ended[column]:
            found.append((total, length))
            total, length = 0.0, 0
    return found


@every_kind
@pytest.mark.parametrize("episodes", [4, 10, 23])
def test_it_plays_bit_for_bit_as_the_actors_do_with_the_same_parameters_seeds_and_generator(
    kind: str, episodes: int
) -> None:
    env, watched, policy = recurrent(kind)
    evaluator.play(env, policy, episodes)
    others, also_watched, actors_policy = recurrent(kind)
    steps = len(watched.fed)
    UnrollCollector(others, actors_policy, actor=0, on_episode=lambda episode: None).collect(steps)
    assert steps > 10
    for own, its in zip(watched.fed, also_watched.fed, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(own[:4], its[:4], strict=True)), "observation, last, start"
        assert all(torch.equal(a, b) for a, b in zip(own.state, its.state, strict=True))
    for ours, theirs in zip(watched.put_out, also_watched.put_out, strict=True):
        assert torch.equal(ours.distribution, theirs.distribution)
        assert torch.equal(ours.value, theirs.value)
    for mine, actors in zip(env.played, others.played, strict=True):
        assert np.array_equal(mine.actions, actors.actions) if mine.actions is not None else actors.actions is None
        assert all(np.array_equal(a, b) for a, b in zip(mine.step, actors.step, strict=True))


@pytest.mark.parametrize("episodes", [4, 5, 10, 23])
def test_each_environment_plays_the_number_fixed_for_it_however_long_they_are(episodes: int) -> None:
    env, _, policy = recurrent("discrete")
    played = evaluator.play(env, policy, episodes)
    quota = [episodes // 4 + (column < episodes % 4) for column in range(4)]
    expected = [episode for column in range(4) for episode in whole_episodes(env, column)[: quota[column]]]
    assert Counter(length for _, length in expected) == Counter(episode.length for episode in played)
    assert sorted(episode.episode_return for episode in played) == pytest.approx(sorted(total for total, _ in expected))


def test_an_environment_with_short_episodes_is_not_counted_more_often() -> None:
    """The first ten to finish here are all of the first environment."""
    scripts = (((1, "terminated"),), ((40, "terminated"),))
    env = Scripted(DISCRETE, scripts)
    network = ActorCritic(DISCRETE, network="tanh_mlp", generator=torch_generator(0, "network"))
    inference = LocalInference(network, device=torch.device("cpu"), precision="float32")
    policy = Policy(inference, 2, torch_generator(0, "policy"), network.family.sample)
    assert sorted(episode.length for episode in evaluator.play(env, policy, 4)) == [1, 1, 40, 40]


@every_kind
def test_returns_are_those_of_raw_rewards_from_start_to_end(kind: str) -> None:
    env, _, policy = recurrent(kind)
    played = evaluator.play(env, policy, 8)
    assert all(isinstance(episode, Episode) and episode.task == env.spec.name for episode in played)
    rewards: list[Array] = [one.step.reward for one in env.played]
    assert max(float(np.abs(reward).max()) for reward in rewards) > 1.0
    expected = [episode for column in range(4) for episode in whole_episodes(env, column)[:2]]
    assert sorted(episode.episode_return for episode in played) == pytest.approx(sorted(total for total, _ in expected))


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
