"""Ratios, the clipped surrogate and its companions, spelt a second time in scalar Python."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ddrl.errors import UserError
from ddrl.losses.surrogate import (
    RATIOS,
    adapted_kl_cost,
    clip_fraction,
    clipped_surrogate,
    clipped_value_loss,
    importance_ratio,
)

EPSILON = 0.2
logs = st.floats(-20.0, 20.0)
many = settings(max_examples=150)


def double(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def slow_ratio(kind: str, pi: float, worker: float, target: float, rho: float) -> float:
    """R1, R2 and R3 of section 3.1 from probabilities."""
    if kind == "worker":
        return pi / worker
    if kind == "target":
        return pi / target
    return min(worker / target, rho) * pi / worker


def slow_surrogate(ratio: float, advantage: float, epsilon: float) -> float:
    """Schulman et al. 2017, eq. 7, as printed."""
    clipped = min(max(ratio, 1 - epsilon), 1 + epsilon)
    return -min(ratio * advantage, clipped * advantage)


@many
@given(st.sampled_from(RATIOS), logs, logs, logs, st.floats(0.05, 20.0))
def test_ratios_are_those_of_section_3_1(kind: str, pi: float, worker: float, target: float, rho: float) -> None:
    found = importance_ratio(kind, double(pi), double(worker), double(target), rho)
    assert found.item() == pytest.approx(slow_ratio(kind, math.exp(pi), math.exp(worker), math.exp(target), rho))


def test_the_cap_on_worker_over_target_by_hand() -> None:
    pi, worker, target = double(0.3, 0.3, 0.3), double(0.5, 0.5, 0.1), double(0.4, 0.1, 0.5)
    found = importance_ratio("target_worker_clipping", pi.log(), worker.log(), target.log(), 2.0)
    # 0.5 / 0.4 = 1.25 is kept: 1.25 * 0.3 / 0.5; 0.5 / 0.1 = 5 is cut to 2: 2 * 0.3 / 0.5; 0.1 / 0.5 = 0.2 is kept.
    torch.testing.assert_close(found, double(0.75, 1.2, 0.6))


@many
@given(logs, logs, st.floats(1.0, 20.0))
def test_r3_is_r1_while_the_target_is_the_worker(pi: float, worker: float, rho: float) -> None:
    policies = double(pi), double(worker), double(worker)
    assert torch.equal(
        importance_ratio("target_worker_clipping", *policies, rho), importance_ratio("worker", *policies, rho)
    )


@many
@given(logs, logs, logs)
def test_r3_is_r2_without_a_cap(pi: float, worker: float, target: float) -> None:
    policies = double(pi), double(worker), double(target)
    assert torch.equal(
        importance_ratio("target_worker_clipping", *policies, math.inf), importance_ratio("target", *policies, 2.0)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_r3_is_finite_and_exact_where_worker_over_target_overflows(dtype: torch.dtype) -> None:
    pi = torch.tensor([-3.0, -1003.0, -3.0, -2003.0], dtype=dtype, requires_grad=True)
    worker = torch.tensor([-3.0, -3.0, -1003.0, -3.0], dtype=dtype)
    target = torch.tensor([-1003.0, -1003.0, -3.0, -1003.0], dtype=dtype)
    # pi_worker / pi_target = e^1000, e^1000, e^-1000, e^1000; pi / pi_worker = 1, e^-1000, e^1000, e^-2000
    ratio = importance_ratio("target_worker_clipping", pi, worker, target, 2.0)
    torch.testing.assert_close(ratio, torch.tensor([2.0, 0.0, 1.0, 0.0], dtype=dtype))
    (gradient,) = torch.autograd.grad(ratio.sum(), pi)
    torch.testing.assert_close(gradient, ratio.detach())


@pytest.mark.parametrize("advantage", [1.0, 0.0])
def test_an_infinite_ratio_that_is_clipped_has_a_finite_loss_and_no_gradient(advantage: float) -> None:
    pi = torch.tensor([1000.0], requires_grad=True)
    ratio = importance_ratio("target", pi, torch.zeros(1), torch.zeros(1), 2.0)
    assert ratio.item() == math.inf
    loss = clipped_surrogate(ratio, torch.tensor([advantage]), EPSILON)
    loss.sum().backward()
    assert loss.item() == pytest.approx(-(1 + EPSILON) * advantage)
    assert pi.grad is not None
    assert pi.grad.item() == 0.0


def test_an_infinite_ratio_with_a_negative_advantage_is_an_infinite_loss_for_the_check_to_find() -> None:
    assert clipped_surrogate(double(math.inf), double(-1.0), EPSILON).item() == math.inf


def test_a_masked_step_with_an_infinite_ratio_leaves_the_gradient_alone() -> None:
    pi = torch.tensor([1000.0, 0.0], requires_grad=True)
    ratio = importance_ratio("worker", pi, torch.zeros(2), torch.zeros(2), 2.0)
    loss = clipped_surrogate(ratio, torch.tensor([-1.0, 3.0]), EPSILON)
    torch.where(torch.tensor([False, True]), loss, torch.zeros(2)).sum().backward()
    assert pi.grad is not None
    assert pi.grad.tolist() == [0.0, -3.0]


def test_an_unknown_ratio_is_named_with_what_is_allowed() -> None:
    with pytest.raises(UserError, match=r"unknown ratio 'r3'.*allowed: target, target_worker_clipping, worker"):
        importance_ratio("r3", *(double(0.0) for _ in range(3)), 2.0)


@many
@given(st.floats(0.0, 10.0), st.floats(-10.0, 10.0), st.floats(0.01, 0.99))
def test_the_surrogate_is_equation_7(ratio: float, advantage: float, epsilon: float) -> None:
    found = clipped_surrogate(double(ratio), double(advantage), epsilon)
    assert found.item() == pytest.approx(slow_surrogate(ratio, advantage, epsilon))


@many
@given(st.floats(0.0, 10.0), st.floats(-10.0, 10.0), st.floats(0.01, 0.99))
def test_the_surrogate_is_a_pessimistic_bound(ratio: float, advantage: float, epsilon: float) -> None:
    assert clipped_surrogate(double(ratio), double(advantage), epsilon).item() >= -ratio * advantage - 1e-12


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.1, 2.0, -2.2, -2.0),  # within the range: the plain ratio
        (1.5, 2.0, -2.4, 0.0),  # already likelier than 1 + epsilon: no more reward for it
        (0.5, 2.0, -1.0, -2.0),  # a good action that became unlikely is still pulled up
        (0.9, -2.0, 1.8, 2.0),
        (0.5, -2.0, 1.6, 0.0),  # already unlikelier than 1 - epsilon
        (1.5, -2.0, 3.0, 2.0),  # a bad action that became likely: no bound on the loss
    ],
)
def test_the_six_cases_of_clipping(ratio: float, advantage: float, loss: float, slope: float) -> None:
    variable = double(ratio).requires_grad_()
    found = clipped_surrogate(variable, double(advantage), EPSILON)
    assert found.item() == pytest.approx(loss)
    found.sum().backward()
    assert variable.grad is not None
    assert variable.grad.item() == pytest.approx(slope)


def log_probability(logits: Tensor, action: Tensor) -> Tensor:
    return torch.log_softmax(logits, dim=-1).gather(-1, action.unsqueeze(-1)).squeeze(-1)


def random_policy() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn((5, 4, 3), generator=generator, dtype=torch.float64)
    action = torch.randint(3, (5, 4), generator=generator)
    return logits.requires_grad_(), action, torch.randn((5, 4), generator=generator, dtype=torch.float64)


def gradient(loss: Tensor, logits: Tensor) -> Tensor:
    return torch.autograd.grad(loss.sum(), logits)[0]


@pytest.mark.parametrize("kind", RATIOS)
def test_at_ratio_1_the_gradient_is_the_plain_policy_gradient(kind: str) -> None:
    logits, action, advantages = random_policy()
    old = log_probability(logits, action).detach()
    log_pi = log_probability(logits, action)
    found = gradient(clipped_surrogate(importance_ratio(kind, log_pi, old, old, 2.0), advantages, EPSILON), logits)
    expected = gradient(-advantages * log_probability(logits, action), logits)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("kind", RATIOS)
def test_within_the_range_the_gradient_is_that_of_the_ratio(kind: str) -> None:
    logits, action, advantages = random_policy()
    log_pi = log_probability(logits, action)
    worker, target = log_pi.detach() + 0.1, log_pi.detach() - 0.05
    ratio = importance_ratio(kind, log_pi, worker, target, 1.0)
    assert 1 - EPSILON < ratio.min() < ratio.max() < 1 + EPSILON
    found = gradient(clipped_surrogate(ratio, advantages, EPSILON), logits)
    torch.testing.assert_close(found, gradient(-advantages * ratio.detach() * log_probability(logits, action), logits))


def test_nothing_but_the_learned_policy_gets_a_gradient() -> None:
    pi, worker, target, advantages = (double(0.1, -0.1).requires_grad_() for _ in range(4))
    for kind in RATIOS:
        clipped_surrogate(importance_ratio(kind, pi, worker, target, 2.0), advantages, EPSILON).sum().backward()
    assert pi.grad is not None
    assert (worker.grad, target.grad, advantages.grad) == (None, None, None)


def test_the_gradient_of_the_ratio_is_the_ratio() -> None:
    pi = double(-1.0, 0.3, 2.0).requires_grad_()
    for kind in RATIOS:
        worker, target = double(-0.5, 0.2, 1.0), double(-1.5, 0.1, 1.2)
        assert torch.autograd.gradcheck(lambda x, kind=kind: importance_ratio(kind, x, worker, target, 1.1), (pi,))


def test_the_clip_fraction_counts_ratios_on_both_sides_of_the_range() -> None:
    ratio = double(0.5, 0.81, 1.0, 1.19, 1.21, math.inf).requires_grad_()
    steps = clip_fraction(ratio, EPSILON)
    assert steps.tolist() == [1.0, 0.0, 0.0, 0.0, 1.0, 1.0]
    assert not steps.requires_grad


@many
@given(*[st.floats(-5.0, 5.0)] * 3, st.floats(0.01, 3.0))
def test_the_value_loss_is_the_larger_of_the_plain_and_the_clipped_one(
    value: float, old: float, target: float, clip: float
) -> None:
    near = old + min(max(value - old, -clip), clip)
    expected = 0.5 * max((value - target) ** 2, (near - target) ** 2)
    assert clipped_value_loss(double(value), double(old), double(target), clip).item() == pytest.approx(expected)


def test_a_value_that_moved_beyond_the_clip_towards_its_target_gets_no_gradient() -> None:
    values = double(2.0, 2.0, 0.5).requires_grad_()
    old, targets = double(1.0, 1.0, 1.0).requires_grad_(), double(5.0, -5.0, 5.0).requires_grad_()
    clipped_value_loss(values, old, targets, 0.75).sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [0.0, 7.0, -4.5]  # towards: clipped; away: plain; within: plain
    assert (old.grad, targets.grad) == (None, None)


def test_without_a_clip_the_value_loss_is_half_the_squared_error() -> None:
    assert clipped_value_loss(double(2.0), double(0.0), double(5.0), None).tolist() == [4.5]


@pytest.mark.parametrize(
    ("kl", "expected"),
    [(0.0, 0.5), (0.0049, 0.5), (0.005, 1.0), (0.01, 1.0), (0.02, 1.0), (0.0201, 1.5), (1.0, 1.5)],
)
def test_the_kl_cost_follows_the_divergence(kl: float, expected: float) -> None:
    assert adapted_kl_cost(1.0, kl, 0.01) == expected
    assert adapted_kl_cost(0.2, kl, 0.01) == pytest.approx(0.2 * expected)


@pytest.mark.parametrize("kind", RATIOS)
@pytest.mark.parametrize("target", [-1.0, -math.inf])
def test_a_policy_that_rules_the_action_out_has_the_ratio_0(kind: str, target: float) -> None:
    log_pi = double(-math.inf).requires_grad_()
    ratio = importance_ratio(kind, log_pi, double(-0.5), double(target), 2.0)
    assert ratio.item() == 0.0
    clipped_surrogate(ratio, double(-1.0), EPSILON).sum().backward()
    assert log_pi.grad is not None
    assert log_pi.grad.item() == 0.0


def test_a_ratio_at_the_bound_is_not_clipped() -> None:
    ratio = torch.tensor([0.5, 0.499, 1.0, 1.5, 1.501])
    assert clip_fraction(ratio, 0.5).tolist() == [0.0, 1.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize("kind", RATIOS)
def test_a_step_of_extreme_ratio_changes_no_bit_of_the_others(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    log_pi, log_worker, log_target = torch.randn(3, 50, generator=generator)
    found = []
    for extreme in (0.0, 100.0):
        variable = log_pi.clone().requires_grad_()
        ratio = importance_ratio(kind, variable + extreme * (torch.arange(50) == 7), log_worker, log_target, 2.0)
        ratio.clamp(max=1.2).sum().backward()
        others = torch.arange(50) != 7
        found.append((ratio[others], variable.grad[others]))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


@many
@given(st.floats(0.01, 20.0), st.floats(-5.0, 5.0), st.floats(0.05, 3.0))
def test_reciprocal_bounds_are_one_over_the_upper_one(ratio: float, advantage: float, epsilon: float) -> None:
    clipped = min(max(ratio, 1 / (1 + epsilon)), 1 + epsilon)
    expected = -min(ratio * advantage, clipped * advantage)
    found = clipped_surrogate(double(ratio), double(advantage), epsilon, "reciprocal").item()
    assert found == pytest.approx(expected, rel=1e-9)
    outside = not 1 / (1 + epsilon) <= ratio <= 1 + epsilon
    assert clip_fraction(double(ratio), epsilon, "reciprocal").item() == outside


def test_the_lower_bounds_differ_and_the_upper_ones_do_not() -> None:
    ratios, against = double(0.82, 0.85, 1.21), double(-1.0, -1.0, 1.0)
    assert clipped_surrogate(ratios, against, EPSILON).tolist() == pytest.approx([0.82, 0.85, -1.2])
    assert clipped_surrogate(ratios, against, EPSILON, "reciprocal").tolist() == pytest.approx([1 / 1.2, 0.85, -1.2])
    assert clip_fraction(ratios, EPSILON).tolist() == [0, 0, 1]
    assert clip_fraction(ratios, EPSILON, "reciprocal").tolist() == [1, 0, 1]
