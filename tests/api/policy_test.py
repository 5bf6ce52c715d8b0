"""A loaded policy acts as the run's evaluations do, for one observation or a batch, and refuses what it cannot read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ddrl
from tests.api.agents import CONTINUOUS, RECURRENT, trained


@pytest.fixture(scope="module")
def catch(tmp_path_factory: pytest.TempPathFactory) -> ddrl.Run:
    """A feed-forward agent on toy/catch."""
    return trained(tmp_path_factory.mktemp("policy") / "catch")


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory: pytest.TempPathFactory) -> ddrl.Run:
    """An agent with an LSTM that reads its last action and reward."""
    return trained(tmp_path_factory.mktemp("policy") / "recurrent", **RECURRENT)


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory: pytest.TempPathFactory) -> ddrl.Run:
    """An agent with continuous actions and normalised observations."""
    return trained(tmp_path_factory.mktemp("policy") / "pendulum", **CONTINUOUS)


def observations(policy: ddrl.TrainedPolicy, number: int) -> Any:
    """Random observations [number, ...] of the policy's type."""
    generator = np.random.default_rng(1)
    values = generator.uniform(0, 1, (number, *policy.spec.observation_shape))
    return values.astype(policy.spec.observation_dtype)


def played(policy: ddrl.TrainedPolicy, episodes: int) -> list[float]:
    """The returns of greedy episodes, one environment each, by the user's own loop."""
    env = policy.environment(episodes, seed=0)
    step, state = env.reset(), None
    returns, over = np.zeros(episodes), np.zeros(episodes, dtype=bool)
    while not over.all():
        action, state = policy.act(step.observation, state, greedy=True, reward=step.reward, start=step.start)
        step = env.step(action)
        returns += np.where(over, 0.0, step.reward)
        over |= step.ended
    env.close()
    return [float(one) for one in returns]


@pytest.mark.parametrize("kind", ["catch", "recurrent", "pendulum"])
def test_a_loop_of_ones_own_plays_the_episodes_of_an_evaluation(kind: str, request: pytest.FixtureRequest) -> None:
    run = request.getfixturevalue(kind)
    evaluated = ddrl.evaluate(run, episodes=3, greedy=True)
    assert sorted(played(ddrl.load_policy(run), 3)) == pytest.approx(sorted(evaluated.returns), rel=1e-6)


@pytest.mark.parametrize("kind", ["catch", "recurrent", "pendulum"])
def test_a_batch_acts_as_its_observations_do_alone(kind: str, request: pytest.FixtureRequest) -> None:
    policy = ddrl.load_policy(request.getfixturevalue(kind))
    first, second = observations(policy, 3), observations(policy, 3)[::-1].copy()
    rewards = np.array([0.5, -1.0, 0.0], dtype=np.float32)
    actions, state = policy.act(first, greedy=True)
    actions, state = policy.act(second, state, greedy=True, reward=rewards)
    for column in range(3):
        _, alone = policy.act(first[column], greedy=True)
        action, alone = policy.act(second[column], alone, greedy=True, reward=rewards[column])
        scale = 2 if kind == "pendulum" else 1  # one observation gives a torque in the environment's own bounds
        assert np.allclose(action, scale * actions[column], atol=1e-5)
        for ours, others in zip(alone.recurrent, state.recurrent, strict=True):
            assert torch.allclose(ours[0], others[column], atol=1e-5)


def test_actions_are_of_the_task_and_one_observation_gives_one_action(catch: ddrl.Run, pendulum: ddrl.Run) -> None:
    discrete, continuous = ddrl.load_policy(catch), ddrl.load_policy(pendulum)
    action, _ = discrete.act(observations(discrete, 1)[0])
    assert isinstance(action, int) and 0 <= action < discrete.spec.num_actions
    actions, _ = continuous.act(observations(continuous, 50))
    assert (actions.shape, actions.dtype) == ((50, 1), np.float32)
    assert np.abs(actions).max() <= 1.0
    assert continuous.act(observations(continuous, 1)[0])[0].shape == (1,)


def test_the_state_carries_memory_and_an_episode_begins_without_it(recurrent: ddrl.Run) -> None:
    policy = ddrl.load_policy(recurrent)
    (observation,) = observations(policy, 1)
    _, first = policy.act(observation, greedy=True)
    before = [part.clone() for part in first.recurrent]
    _, second = policy.act(observation, first, greedy=True, reward=1.0)
    _, again = policy.act(observation, second, greedy=True, start=True)
    assert not torch.allclose(second.recurrent[0], first.recurrent[0])
    assert all(torch.equal(one, other) for one, other in zip(again.recurrent, before, strict=True))
    assert all(torch.equal(one, other) for one, other in zip(first.recurrent, before, strict=True))  # as it was


def test_drawn_actions_repeat_with_the_seed_and_greedy_ones_always(catch: ddrl.Run) -> None:
    batches = [ddrl.load_policy(catch, seed=seed) for seed in (1, 1, 2)]
    given = observations(batches[0], 200)
    drawn = [policy.act(given)[0] for policy in batches]
    assert np.array_equal(drawn[0], drawn[1]) and not np.array_equal(drawn[0], drawn[2])
    greedy = [policy.act(given, greedy=True)[0] for policy in batches]
    assert np.array_equal(greedy[0], greedy[2])


def test_numbers_of_another_precision_are_taken_as_they_are(pendulum: ddrl.Run) -> None:
    policy = ddrl.load_policy(pendulum)
    (observation,) = observations(policy, 1)
    wide, _ = policy.act(observation.astype(np.float64), greedy=True)
    assert np.array_equal(wide, policy.act(observation, greedy=True)[0])
    assert policy.act([0.0, 1.0, 0.0])[0].shape == (1,)


def test_what_the_policy_cannot_read_is_one_error(recurrent: ddrl.Run, pendulum: ddrl.Run) -> None:
    policy, vectors = ddrl.load_policy(recurrent), ddrl.load_policy(pendulum)
    given = observations(policy, 2)
    _, state = policy.act(given)
    refused = [
        (
            lambda: vectors.act([1.0, 2.0]),
            r"observation has shape \[2\]; allowed for 'gymnasium/Pendulum-v1': \[3\], or",
        ),
        (lambda: vectors.act(np.zeros((0, 3))), r"observation has shape \[0, 3\]"),
        (lambda: vectors.act(["a", "b", "c"]), "observation is of <U1; allowed for 'gymnasium/Pendulum-v1': float32"),
        (lambda: vectors.act([np.nan, 0.0, 0.0]), "not finite"),
        (lambda: policy.act(given[:1], state, reward=0.0), "state is of 2 environments, and there are 1 observations"),
        (lambda: policy.act(given, state), "pass reward="),
        (
            lambda: policy.act(given, state, reward=[1.0, 2.0, 3.0]),
            r"reward has shape \[3\]; allowed: one value, or \[2\]",
        ),
    ]
    for act, says in refused:
        with pytest.raises(ddrl.UserError, match=says):
            act()


def test_pixels_must_be_bytes(tmp_path: Path) -> None:
    run = trained(
        tmp_path / "breakout",
        environment={"name": "atari/breakout", "max_frames": 80},
        hyperparameters={"network": "shallow"},
        topology={"num_actors": 1, "envs_per_actor": 2, "queue_capacity": 4},
    )
    policy = ddrl.load_policy(run)
    with pytest.raises(ddrl.UserError, match="observation is of float64; allowed for 'atari/breakout': uint8"):
        policy.act(np.zeros(policy.spec.observation_shape))
    assert repr(policy).startswith("TrainedPolicy(impala on atari/breakout, ")
