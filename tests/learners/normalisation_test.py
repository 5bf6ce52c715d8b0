"""Which samples reach a network's statistics, and when."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import get_args

import pytest
import torch
from pydantic import ValidationError

from ddrl import algorithms
from ddrl.learners.all_reduce import SingleLearner
from ddrl.learners.normalisation import Normalisation, RewardClipping, clipped_rewards
from ddrl.networks.actor_critic import ActorCritic
from ddrl.types import EnvSpec, Unroll, concatenate
from tests.unrolls import make_unroll

SPEC = EnvSpec("toy/test", (4,), "float32", 3, 1, "test")


def network(**keys: bool) -> ActorCritic:
    return ActorCritic(SPEC, network="mlp", generator=torch.Generator().manual_seed(0), **keys)


def normalisation(made: ActorCritic, discount: float = 0.9, reward_clipping: str = "none") -> Normalisation:
    return Normalisation(made, discount, reward_clipping, SingleLearner())


def rewarded(rewards: list[list[float]], **keys: int) -> Unroll:
    """One unroll of columns with these rewards."""
    reward = torch.tensor(rewards).T.contiguous()
    unroll = make_unroll(length=reward.shape[0], columns=reward.shape[1], **keys)
    return replace(unroll, reward=reward)


def test_returns_run_on_from_unroll_to_unroll_of_the_same_environment() -> None:
    made = network(reward_normalisation=True)
    tracker = normalisation(made)
    tracker.add_rewards(rewarded([[1.0, 0.0], [0.0, 2.0]]))
    # The second unroll brings the columns in another order, with those of another actor between them.
    first, second = (rewarded([[4.0]], index=1), rewarded([[8.0]], index=1))
    second = replace(second, env=torch.tensor([1]))
    tracker.add_rewards(concatenate([second, rewarded([[16.0]], actor=1), first]))
    expected = [1.0, 0.9, 0.0, 2.0, 0.81 + 4.0, 0.9 * 2.0 + 8.0, 16.0]
    assert made.reward_normaliser is not None
    assert float(made.reward_normaliser.moments.mean) == pytest.approx(sum(expected) / len(expected), rel=1e-6)


def test_unrolls_of_one_environment_in_one_batch_follow_each_other() -> None:
    together, apart = network(reward_normalisation=True), network(reward_normalisation=True)
    unrolls = [rewarded([[1.0, 2.0], [3.0, 4.0]], index=0), rewarded([[5.0, 6.0], [7.0, 8.0]], index=1)]
    last = rewarded([[9.0, 9.0], [9.0, 9.0]], index=2)
    tracker = normalisation(together)
    for batch in (concatenate(unrolls[::-1]), last):
        tracker.add_rewards(batch)
    tracker = normalisation(apart)
    for batch in (*unrolls, last):
        tracker.add_rewards(batch)
    for mine, its in zip(together.buffers(), apart.buffers(), strict=True):
        torch.testing.assert_close(mine, its)


def test_the_statistics_are_of_the_rewards_that_are_learned_from() -> None:
    made = network(reward_normalisation=True)
    normalisation(made, reward_clipping="abs_one").add_rewards(rewarded([[400.0, 0.0]]))
    assert made.reward_normaliser is not None
    assert float(made.reward_normaliser.moments.mean) == pytest.approx((1.0 + 0.9) / 2, rel=1e-6)


def test_a_return_begins_anew_with_an_episode_and_dead_steps_do_not_count() -> None:
    made = network(reward_normalisation=True)
    unroll = rewarded([[1.0, 5.0, 0.0, 3.0]])
    unroll.valid[2, 0], unroll.start[3, 0] = False, True
    normalisation(made).add_rewards(unroll)
    assert made.reward_normaliser is not None
    assert int(made.reward_normaliser.moments.count) == 3
    assert float(made.reward_normaliser.moments.mean) == pytest.approx((1.0 + 5.9 + 3.0) / 3, rel=1e-6)


def test_observations_that_were_acted_on_are_counted_once() -> None:
    made = network(observation_normalisation=True)
    unroll = make_unroll(length=3, columns=2)
    unroll.valid[1, 0] = False
    tracker = normalisation(made)
    tracker.add_rewards(unroll)
    assert made.observation_normaliser is not None
    assert int(made.observation_normaliser.moments.count) == 0, "before learning the policy must not change"
    tracker.add_observations(unroll)
    expected = unroll.observation[:-1][unroll.valid]
    torch.testing.assert_close(made.observation_normaliser.moments.mean.float(), expected.mean(0))
    assert int(made.observation_normaliser.moments.count) == 5


def test_a_network_without_statistics_is_left_alone() -> None:
    made = network()
    tracker = normalisation(made)
    tracker.add_rewards(make_unroll())
    tracker.add_observations(make_unroll())
    assert not list(made.buffers())


def test_running_returns_survive_a_checkpoint() -> None:
    made, again = network(reward_normalisation=True), network(reward_normalisation=True)
    first, second = normalisation(made), normalisation(again)
    first.add_rewards(rewarded([[1.0, 2.0], [3.0, 4.0]]))
    again.load_state_dict(made.state_dict())
    second.load_state_dict(first.state_dict())
    for tracker in (first, second):
        tracker.add_rewards(rewarded([[5.0], [6.0]], index=1))
    assert all(torch.equal(a, b) for a, b in zip(made.buffers(), again.buffers(), strict=True))


def test_a_checkpoint_before_the_first_batch_holds_no_return() -> None:
    first, second = normalisation(network(reward_normalisation=True)), normalisation(network(reward_normalisation=True))
    second.add_rewards(rewarded([[1.0, 2.0]]))
    second.load_state_dict(first.state_dict())
    assert second.state_dict()["columns"] == []
    assert second.state_dict()["returns"].tolist() == []


def test_a_state_without_a_return_for_each_column_is_refused() -> None:
    state = {"columns": [[0, 0], [0, 1]], "returns": torch.zeros(1).double()}
    with pytest.raises(ValueError, match="zip"):
        normalisation(network(reward_normalisation=True)).load_state_dict(state)


REWARDS = (-1000.0, -7.0, -1.0, -0.3, 0.0, 1e-3, 0.5, 1.0, 5.0, 10.0, 1000.0)


def by_the_letter(reward: float, reward_clipping: str) -> float:
    """Each formula a second time, one reward at a time."""
    match reward_clipping:
        case "abs_one":
            return max(-1.0, min(1.0, reward))
        case "optimistic_asymmetric":  # Espeholt et al. 2018, Figure D.1
            return 0.3 * min(math.tanh(reward), 0.0) + 5.0 * max(math.tanh(reward), 0.0)
        case "soft_asymmetric":  # google-deepmind/scalable_agent, experiment.py
            squeezed = math.tanh(reward / 5.0)
            return 5.0 * (0.3 * squeezed if reward < 0 else squeezed)
    return reward


@pytest.mark.parametrize("reward_clipping", get_args(RewardClipping))
def test_rewards_are_clipped_as_each_formula_says(reward_clipping: RewardClipping) -> None:
    found = clipped_rewards(torch.tensor(REWARDS, dtype=torch.float64).reshape(1, -1), reward_clipping)
    expected = [by_the_letter(reward, reward_clipping) for reward in REWARDS]
    torch.testing.assert_close(found, torch.tensor([expected], dtype=torch.float64))


def test_the_papers_clipping_and_that_of_its_code_differ_in_slope_and_lower_bound() -> None:
    small, large = torch.tensor([1e-4]), torch.tensor([-1e4, 1e4])
    assert float(clipped_rewards(small, "optimistic_asymmetric") / small) == pytest.approx(5.0)
    assert float(clipped_rewards(small, "soft_asymmetric") / small) == pytest.approx(1.0)
    assert clipped_rewards(large, "optimistic_asymmetric").tolist() == pytest.approx([-0.3, 5.0])
    assert clipped_rewards(large, "soft_asymmetric").tolist() == pytest.approx([-1.5, 5.0])


@pytest.mark.parametrize("algorithm", algorithms.NAMES)
def test_every_algorithm_takes_every_clipping_and_no_other(algorithm: str) -> None:
    config = algorithms.load(algorithm).Config
    for reward_clipping in get_args(RewardClipping):
        assert config(reward_clipping=reward_clipping).reward_clipping == reward_clipping
    with pytest.raises(ValidationError, match="'abs_one', 'none', 'optimistic_asymmetric' or 'soft_asymmetric'"):
        config(reward_clipping="asymmetric")


def test_statistics_of_returns_follow_the_asymmetric_clippings() -> None:
    made = network(reward_normalisation=True)
    normalisation(made, reward_clipping="optimistic_asymmetric").add_rewards(rewarded([[400.0, -400.0]]))
    assert made.reward_normaliser is not None
    assert float(made.reward_normaliser.moments.mean) == pytest.approx((5.0 + 0.9 * 5.0 - 0.3) / 2, rel=1e-6)
