"""Both families against scipy and NumPy, their samples against their densities, and their gradients."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddrl.losses.actor_critic import entropy_with_epsilon
from ddrl.networks.distributions import CATEGORICAL, GAUSSIAN, Family

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


@st.composite
def masked_logits(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    """Two rows of logits of two to seven actions, float64 and without gradient, and which actions are possible."""
    size = draw(st.integers(2, 7))
    numbers = st.lists(st.floats(-30.0, 30.0), min_size=size, max_size=size)
    possible = draw(st.sets(st.integers(0, size - 1), min_size=1))
    rows = (torch.tensor(draw(numbers), dtype=torch.float64) for _ in range(2))
    return (*rows, sorted(possible))  # type: ignore[return-value]


def ruled_out(logits: torch.Tensor, possible: list[int]) -> torch.Tensor:
    impossible = torch.ones(len(logits), dtype=torch.bool)
    impossible[possible] = False
    return logits.masked_fill(impossible, -math.inf)


WITH_GRADIENT = {
    "log_probability": lambda x, y, action: CATEGORICAL.log_probability(x, action),
    "entropy": lambda x, y, action: CATEGORICAL.entropy(x),
    "kl from it": lambda x, y, action: CATEGORICAL.kl(x, y),
    "kl to it": lambda x, y, action: CATEGORICAL.kl(y, x),
    "entropy of GA3C": lambda x, y, action: entropy_with_epsilon(x, 0.0),
    "entropy of GA3C with epsilon": lambda x, y, action: entropy_with_epsilon(x, 1e-6),
}


@settings(max_examples=40, deadline=None)
@given(masked_logits(), st.data())
def test_impossible_actions_leave_the_distribution_over_the_others(
    drawn: tuple[torch.Tensor, torch.Tensor, list[int]], data: st.DataObject
) -> None:
    """Values, and gradients with respect to logits before they are masked."""
    *rows, possible = drawn
    place = data.draw(st.integers(0, len(possible) - 1))
    for name, function in WITH_GRADIENT.items():
        whole, other = (row.clone().requires_grad_() for row in rows)
        few, few_other = (row[possible].clone().requires_grad_() for row in rows)
        found = function(ruled_out(whole, possible), ruled_out(other, possible), torch.tensor(possible[place]))
        expected = function(few, few_other, torch.tensor(place))
        torch.testing.assert_close(found, expected, msg=lambda text, name=name: f"{name}: {text}")
        for here, there in ((whole, few), (other, few_other)):
            (gradient,) = torch.autograd.grad(found, here, retain_graph=True, allow_unused=True)
            (wanted,) = torch.autograd.grad(expected, there, retain_graph=True, allow_unused=True)
            if wanted is not None:
                scattered = torch.zeros_like(gradient).index_put((torch.tensor(possible),), wanted)
                torch.testing.assert_close(gradient, scattered, msg=lambda text, name=name: f"{name}: {text}")


@settings(max_examples=40, deadline=None)
@given(masked_logits(), st.integers(0, 1000))
def test_impossible_actions_are_never_sampled_and_the_others_as_if_they_were_alone(
    drawn: tuple[torch.Tensor, torch.Tensor, list[int]], seed: int
) -> None:
    logits, _, possible = drawn
    many = ruled_out(logits, possible).expand(100, -1)
    found = CATEGORICAL.sample(many, torch.Generator().manual_seed(seed))
    noise = torch.empty_like(many).exponential_(generator=torch.Generator().manual_seed(seed))
    alone = (logits[possible].softmax(-1) / noise[:, possible]).argmax(-1)
    assert torch.equal(found, torch.tensor(possible)[alone])


def test_an_impossible_action_is_not_sampled_where_the_noise_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "exponential_", lambda self, generator: self.zero_())
    assert CATEGORICAL.sample(torch.tensor([-math.inf, 0.0, -math.inf]), torch.Generator()).item() == 1


def test_an_action_that_underflows_counts_as_impossible() -> None:
    """Of a saturated network: exp(-200) is 0 in float32, and the other policy rules it out altogether."""
    p = torch.tensor([0.0, -200.0], requires_grad=True)
    q = torch.tensor([0.0, -math.inf], requires_grad=True)
    value = CATEGORICAL.kl(p, q)
    value.backward()
    assert value.item() == 0.0
    assert p.grad is not None
    assert q.grad is not None
    assert not p.grad.any()
    assert not q.grad.any()
    far = torch.tensor([3e38, -3e38])
    assert CATEGORICAL.entropy(far).item() == CATEGORICAL.kl(far, far).item() == 0.0


def test_an_action_that_is_possible_under_p_alone_is_infinitely_far() -> None:
    assert CATEGORICAL.kl(torch.zeros(2), torch.tensor([0.0, -math.inf])).item() == math.inf


@pytest.mark.parametrize("scale", [1.0, 30.0, 1000.0])
def test_finite_logits_give_the_same_bits_as_the_equations_as_printed(scale: float) -> None:
    p, q = ((scale * parameters(seed)).float().requires_grad_() for seed in (0, 1))
    log_p, log_q = torch.log_softmax(p, -1), torch.log_softmax(q, -1)
    printed = (-(log_p.exp() * log_p).sum(-1), (log_p.exp() * (log_p - log_q)).sum(-1))
    for found, expected in zip((CATEGORICAL.entropy(p), CATEGORICAL.kl(p, q)), printed, strict=True):
        assert torch.equal(found, expected)
        for row in (p, q):
            one, other = (
                torch.autograd.grad(value.sum(), row, retain_graph=True, allow_unused=True)[0]
                for value in (found, expected)
            )
            assert (one is None and other is None) or torch.equal(one, other)


@pytest.mark.parametrize("family", [CATEGORICAL, GAUSSIAN])
def test_the_mode_is_the_most_probable_action(family: Family) -> None:
    generator = torch.Generator().manual_seed(0)
    given = torch.randn(5, 4, generator=generator)
    mode = family.mode(given, generator)
    best = family.log_probability(given, mode)
    for _ in range(50):
        assert (family.log_probability(given, family.sample(given, generator)) <= best + 1e-6).all()
