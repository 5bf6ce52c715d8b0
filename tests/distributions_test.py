"""Both families against scipy and NumPy, their samples against their densities, and their gradients."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch

from ddrl.distributions import CATEGORICAL, GAUSSIAN, Family

FAMILIES = {"categorical": CATEGORICAL, "gaussian": GAUSSIAN}
SHAPE = (4, 3)


def parameters(seed: int = 0, size: int = 6) -> torch.Tensor:
    """Logits of six actions, or means and log standard deviations of three dimensions."""
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(*SHAPE, size)))


def test_categorical_log_probability_is_the_logarithm_of_the_softmax() -> None:
    logits, action = parameters(), torch.from_numpy(np.random.default_rng(1).integers(0, 6, SHAPE))
    weights = np.exp(logits.numpy())
    expected = np.log(weights / weights.sum(-1, keepdims=True))
    found = CATEGORICAL.log_probability(logits, action)
    np.testing.assert_allclose(found, np.take_along_axis(expected, action.numpy()[..., None], -1)[..., 0])


def test_categorical_log_probability_survives_large_logits() -> None:
    assert float(CATEGORICAL.log_probability(torch.tensor([[1e4, 0.0]]), torch.tensor([1]))) == -1e4


def test_gaussian_log_probability_is_that_of_independent_normals() -> None:
    given, action = parameters(), torch.from_numpy(np.random.default_rng(1).normal(size=(*SHAPE, 3)))
    mean, log_std = np.split(given.numpy(), 2, axis=-1)
    expected = scipy.stats.norm.logpdf(action.numpy(), mean, np.exp(log_std)).sum(-1)
    np.testing.assert_allclose(GAUSSIAN.log_probability(given, action), expected)


def test_gaussian_entropy_is_that_of_independent_normals() -> None:
    log_std = parameters().numpy()[..., 3:]
    expected = scipy.stats.norm.entropy(scale=np.exp(log_std)).sum(-1)
    np.testing.assert_allclose(GAUSSIAN.entropy(parameters()), expected)


def test_categorical_entropy_is_largest_for_the_uniform_policy_and_zero_for_a_certain_one() -> None:
    np.testing.assert_allclose(CATEGORICAL.entropy(torch.zeros(2, 3, 5)), math.log(5), rtol=1e-6)
    assert float(CATEGORICAL.entropy(torch.tensor([0.0, 1e4]))) == 0.0


@pytest.mark.parametrize("name", FAMILIES)
def test_entropy_is_minus_the_mean_log_probability_of_samples(name: str) -> None:
    family, given = FAMILIES[name], parameters()[:1, :1].expand(200_000, 1, 6)
    samples = family.sample(given, torch.Generator().manual_seed(0))
    mean = float(family.log_probability(given, samples).mean())
    assert -mean == pytest.approx(float(family.entropy(given[0, 0])), abs=0.02)


@pytest.mark.parametrize("name", FAMILIES)
def test_divergence_is_the_mean_log_ratio_of_samples(name: str) -> None:
    family = FAMILIES[name]
    p, q = (0.5 * parameters(seed)[:1, :1].expand(200_000, 1, 6) for seed in (0, 1))
    samples = family.sample(p, torch.Generator().manual_seed(0))
    mean = float((family.log_probability(p, samples) - family.log_probability(q, samples)).mean())
    assert mean == pytest.approx(float(family.kl(p[0, 0], q[0, 0])), abs=0.02)


@pytest.mark.parametrize("name", FAMILIES)
def test_divergence_from_itself_is_zero_and_otherwise_positive(name: str) -> None:
    family = FAMILIES[name]
    assert float(family.kl(parameters(), parameters()).abs().max()) < 1e-12
    assert float(family.kl(parameters(), parameters(1)).min()) > 0


@pytest.mark.parametrize("name", FAMILIES)
def test_samples_depend_on_their_generator_alone(name: str) -> None:
    family = FAMILIES[name]
    first, again = (family.sample(parameters(), torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(first, again)


def test_gaussian_samples_have_its_mean_and_deviation() -> None:
    given = torch.tensor([1.5, -0.5, math.log(0.5), math.log(2.0)]).expand(100_000, 4)
    samples = GAUSSIAN.sample(given, torch.Generator().manual_seed(0))
    np.testing.assert_allclose(samples.mean(0), [1.5, -0.5], atol=0.03)
    np.testing.assert_allclose(samples.std(0), [0.5, 2.0], rtol=0.02)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_mode_is_the_likeliest_action(name: str) -> None:
    family: Family = FAMILIES[name]
    given = parameters()
    best = family.log_probability(given, family.mode(given))
    for seed in range(50):
        other = family.sample(given, torch.Generator().manual_seed(seed))
        assert bool((family.log_probability(given, other) <= best).all())


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("what", ["log_probability", "entropy", "kl"])
def test_gradients_agree_with_finite_differences(name: str, what: str) -> None:
    family = FAMILIES[name]
    action = family.sample(parameters(2), torch.Generator().manual_seed(0))
    functions = {
        "log_probability": lambda x: family.log_probability(x, action),
        "entropy": family.entropy,
        "kl": lambda x: family.kl(parameters(3), x),
    }
    assert torch.autograd.gradcheck(functions[what], (parameters().requires_grad_(),))
