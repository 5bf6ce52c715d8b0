"""Running statistics against NumPy, what they do to observations and rewards, and how several learners share them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddrl.learners.all_reduce import SingleLearner
from ddrl.networks.normalisation import ObservationNormaliser, RewardNormaliser, RunningMoments

ALONE = SingleLearner()
CLIP = 10.0


class Peers:
    """Adds what the other learners have, as an all-reduce would."""

    rank = 0
    size = 2

    def __init__(self, others: torch.Tensor) -> None:
        self.others = others.double()

    def sum_(self, tensors: list[torch.Tensor]) -> None:
        parts = (torch.tensor(float(len(self.others))), self.others.sum(0), self.others.square().sum(0))
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.add_(part)


def samples(count: int, seed: int = 0, offset: float = 0.0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(offset, 2.0, (count, 3)).astype(np.float32))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=6))
def test_moments_are_those_of_all_samples_however_they_were_cut(sizes: list[int]) -> None:
    everything, moments = samples(sum(sizes), offset=100.0), RunningMoments((3,))
    for part in everything.split(sizes):
        moments.update(part, ALONE)
    np.testing.assert_allclose(moments.mean, everything.double().mean(0), rtol=1e-9)
    np.testing.assert_allclose(moments.variance, everything.double().var(0, correction=0), rtol=1e-6, atol=1e-9)
    assert int(moments.count) == len(everything)


def test_moments_of_a_mean_that_is_large_beside_the_deviation_keep_their_digits() -> None:
    moments = RunningMoments(())
    values = 1e4 + torch.linspace(-1, 1, 1001, dtype=torch.float64)
    for part in values.split(100):
        moments.update(part, ALONE)
    assert float(moments.variance) == pytest.approx(float(values.var(correction=0)), rel=1e-6)


def test_two_learners_have_the_moments_of_both_their_samples() -> None:
    mine, theirs, moments = samples(10), samples(30, seed=1, offset=3.0), RunningMoments((3,))
    moments.update(mine, Peers(theirs))
    np.testing.assert_allclose(moments.mean, torch.cat([mine, theirs]).double().mean(0), rtol=1e-9)


def test_no_samples_change_nothing() -> None:
    normaliser = ObservationNormaliser((3,), CLIP)
    normaliser.update(samples(10), ALONE)
    before = {name: tensor.clone() for name, tensor in normaliser.state_dict().items()}
    normaliser.update(samples(10)[:0], ALONE)
    assert all(torch.equal(before[name], tensor) for name, tensor in normaliser.state_dict().items())


def test_observations_are_left_alone_before_the_first_update_and_standardised_after() -> None:
    normaliser, seen = ObservationNormaliser((3,), CLIP), samples(1000, offset=5.0)
    assert torch.equal(normaliser(seen[:2].clamp(-CLIP, CLIP)), seen[:2].clamp(-CLIP, CLIP))
    normaliser.update(seen, ALONE)
    found = normaliser(seen)
    np.testing.assert_allclose(found.mean(0), 0.0, atol=1e-4)
    np.testing.assert_allclose(found.std(0), 1.0, rtol=1e-2)
    assert float(normaliser(torch.full((1, 3), 1e9)).max()) == CLIP


def test_rewards_are_scaled_by_the_deviation_of_returns_and_not_shifted() -> None:
    normaliser, returns = RewardNormaliser(CLIP), samples(1000)[:, 0] * 50 + 300
    assert float(normaliser(torch.tensor(2.0))) == 2.0
    normaliser.update(returns, ALONE)
    assert float(normaliser(torch.tensor(20.0))) == pytest.approx(20.0 / float(returns.std(correction=0)), rel=1e-4)
    assert float(normaliser(torch.tensor(0.0))) == 0.0
    assert float(normaliser(torch.tensor(-1e9))) == -CLIP


def test_without_a_bound_nothing_is_clipped() -> None:
    assert torch.equal(ObservationNormaliser((3,), None)(samples(10) * 1e9), samples(10) * 1e9)
    assert float(RewardNormaliser(None)(torch.tensor(-1e9))) == -1e9


def test_statistics_travel_with_the_state_dict() -> None:
    first, second = ObservationNormaliser((3,), CLIP), ObservationNormaliser((3,), CLIP)
    first.update(samples(100), ALONE)
    second.load_state_dict(first.state_dict())
    first.update(samples(50, seed=2), ALONE)
    second.update(samples(50, seed=2), ALONE)
    assert torch.equal(first(samples(5, seed=3)), second(samples(5, seed=3)))
