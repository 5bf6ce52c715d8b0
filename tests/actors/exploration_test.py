"""Epsilons of the ladder by hand, and how often epsilon-greedy takes each action."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from ddrl import algorithms
from ddrl.actors.exploration import EpsilonGreedy, GaussianNoise, epsilon_ladder, noise_ladder
from tests.algorithms.rigs import Rig
from tests.runs import DISCRETE, REPLAYING

DRAWS = 20_000


def test_the_ladder_by_hand() -> None:
    assert epsilon_ladder(0.5, 3.0, 4) == pytest.approx([0.5, 0.25, 0.125, 0.0625])
    assert epsilon_ladder(0.4, 7.0, 8) == pytest.approx([0.4**power for power in range(1, 9)])
    assert epsilon_ladder(0.4, 7.0, 3) == pytest.approx([0.4, 0.4**4.5, 0.4**8])
    assert epsilon_ladder(0.4, 0.0, 3) == pytest.approx([0.4] * 3)


def test_one_environment_alone_has_the_first_epsilon() -> None:
    assert epsilon_ladder(0.4, 7.0, 1) == [0.4]


@given(st.floats(0.01, 1.0, exclude_max=True), st.floats(0.1, 10.0), st.integers(2, 400))
def test_the_ladder_falls_by_the_same_factor_from_epsilon_to_its_power(
    epsilon: float, alpha: float, num_envs: int
) -> None:
    ladder = epsilon_ladder(epsilon, alpha, num_envs)
    assert len(ladder) == num_envs
    assert (ladder[0], ladder[-1]) == (pytest.approx(epsilon), pytest.approx(epsilon ** (1 + alpha)))
    for i in range(1, num_envs):
        assert ladder[i] / ladder[i - 1] == pytest.approx(epsilon ** (alpha / (num_envs - 1)))


def test_each_environment_explores_as_often_as_its_epsilon_says() -> None:
    epsilons, q = [1.0, 0.4, 0.05, 0.0], torch.tensor([0.1, 2.0, -3.0])
    sampler = EpsilonGreedy(epsilons * DRAWS)
    actions = sampler(q.expand(4 * DRAWS, 3), torch.Generator().manual_seed(0)).view(DRAWS, 4)
    for epsilon, found in zip(epsilons[:-1], actions.T, strict=False):
        expected = [epsilon / 3 * DRAWS, (1 - epsilon + epsilon / 3) * DRAWS, epsilon / 3 * DRAWS]
        assert chisquare(found.bincount(minlength=3), expected).pvalue > 0.01
    assert (actions[:, 3] == 1).all()


def test_an_evaluation_has_one_epsilon_for_any_number_of_environments() -> None:
    sampler, generator = EpsilonGreedy([0.3]), torch.Generator().manual_seed(1)
    actions = sampler(torch.tensor([[0.0, 1.0]]).expand(DRAWS, 2), generator)
    assert actions.shape == (DRAWS,)
    explored = int((actions == 0).sum())
    assert chisquare([explored, DRAWS - explored], [0.15 * DRAWS, 0.85 * DRAWS]).pvalue > 0.01


def test_the_same_generator_gives_the_same_actions() -> None:
    q = torch.randn((6, 50, 4), generator=torch.Generator().manual_seed(2))
    sampler, generators = EpsilonGreedy([0.5] * 50), [torch.Generator().manual_seed(3) for _ in range(2)]
    for values in q:
        one, other = (sampler(values, generator) for generator in generators)
        assert torch.equal(one, other)
        assert one.dtype == torch.int64


def test_epsilons_fall_from_one_beginning_to_their_own_ends_and_stay() -> None:
    sampler = EpsilonGreedy([0.5, 0.1], initial=0.9)
    seen = [sampler._epsilons.tolist()]
    for done in (0, 25, 100, 250):
        sampler.fall(done, 100)
        seen.append(sampler._epsilons.tolist())
    assert [pytest.approx(one) for one in seen] == [[0.9, 0.9], [0.9, 0.9], [0.8, 0.7], [0.5, 0.1], [0.5, 0.1]]
    sampler.fall(0, 0)
    assert sampler._epsilons.tolist() == pytest.approx([0.5, 0.1])


@pytest.mark.parametrize("name", [name for name in REPLAYING if name in DISCRETE])
def test_an_actor_has_the_rungs_of_its_own_environments_and_an_evaluation_its_own_epsilon(name: str) -> None:
    rig = Rig(name, epsilon=0.5, epsilon_alpha=5.0, evaluation_epsilon=0.125)
    make_sampler = algorithms.load(name).make_sampler
    ladder = epsilon_ladder(0.5, 5.0, 6)
    for envs, expected in (([2, 3], ladder[2:4]), (range(6), ladder), (None, [0.125])):
        sampler = make_sampler(rig.config, rig.network, envs, 6)
        assert sampler._epsilons.tolist() == pytest.approx(expected)


def test_noise_grows_in_equal_steps_from_the_first_environment_to_the_last() -> None:
    assert noise_ladder(1 / 32, 1.0, 32) == pytest.approx([(i + 1) / 32 for i in range(32)])
    assert noise_ladder(0.1, None, 3) == [0.1] * 3
    assert noise_ladder(0.1, 0.9, 1) == [0.1]


def test_noise_has_the_deviation_of_its_environment_and_actions_stay_within_their_bounds() -> None:
    sampler, generator = GaussianNoise([0.0, 0.1, 0.4]), torch.Generator().manual_seed(0)
    distribution = torch.tensor([[0.25, 9.0], [0.25, 9.0], [0.25, 9.0]])  # the second half is not read
    drawn = torch.stack([sampler(distribution, generator) for _ in range(4000)])
    assert drawn.shape == (4000, 3, 1)
    assert (drawn[:, 0] == 0.25).all()
    assert drawn[:, 1].std().item() == pytest.approx(0.1, rel=0.05)
    assert drawn[:, 1].mean().item() == pytest.approx(0.25, abs=0.01)
    assert drawn[:, 2].max().item() == 1.0 and drawn[:, 2].min().item() >= -1.0
    below = drawn[:, 2][drawn[:, 2] < 0.25]
    assert (below - 0.25).square().mean().sqrt().item() == pytest.approx(0.4, rel=0.05)


def test_noise_differs_between_dimensions_and_follows_from_the_generator() -> None:
    sampler = GaussianNoise([0.2, 0.2])
    one, other = (sampler(torch.zeros(2, 6), torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(one, other)
    assert len(one.unique()) == 6


@pytest.mark.parametrize("largest", [None, 0.7])
def test_a_deterministic_actor_has_the_noise_of_its_environments_and_an_evaluation_none(largest: float | None) -> None:
    rig = Rig("d4pg", noise=0.2, largest_noise=largest)
    ladder = noise_ladder(0.2, largest, 6)
    for envs, expected in (([2, 3], ladder[2:4]), (range(6), ladder), (None, [0.0])):
        sampler = algorithms.load("d4pg").make_sampler(rig.config, rig.network, envs, 6)
        assert isinstance(sampler, GaussianNoise)
        assert sampler.sigmas.flatten().tolist() == pytest.approx(expected)
