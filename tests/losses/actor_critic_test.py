"""The policy loss against NumPy, and its gradients against the formulas of section 4.2."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ddrl.losses.actor_critic import (
    entropy_with_epsilon,
    masked_sum,
    policy_gradient_loss,
    symmetric_kl_to_uniform,
    value_loss,
)
from ddrl.networks.distributions import CATEGORICAL

T, B, A = 4, 3, 5


@pytest.fixture
def logits() -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).normal(scale=2.0, size=(T, B, A))).requires_grad_()


@pytest.fixture
def action() -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(1).integers(0, A, size=(T, B)))


@pytest.fixture
def advantages() -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(2).normal(size=(T, B)))


def probabilities(logits: torch.Tensor) -> np.ndarray:
    weights = np.exp(logits.detach().numpy())
    return weights / weights.sum(axis=-1, keepdims=True)


def test_policy_gradient_is_advantage_times_the_score(
    logits: torch.Tensor, action: torch.Tensor, advantages: torch.Tensor
) -> None:
    """grad log pi(a) of a softmax is one_hot(a) - pi; the loss descends along -advantage times it."""
    policy_gradient_loss(CATEGORICAL.log_probability(logits, action), advantages).sum().backward()
    score = np.eye(A)[action.numpy()] - probabilities(logits)
    np.testing.assert_allclose(logits.grad, -advantages.numpy()[..., None] * score)


def test_epsilon_stands_inside_the_logarithm(
    logits: torch.Tensor, action: torch.Tensor, advantages: torch.Tensor
) -> None:
    epsilon = 1e-2
    loss = policy_gradient_loss(CATEGORICAL.log_probability(logits, action), advantages, epsilon=epsilon)
    chosen = np.take_along_axis(probabilities(logits), action.numpy()[..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(loss.detach(), -np.log(chosen + epsilon) * advantages.numpy())
    loss.sum().backward()
    score = np.eye(A)[action.numpy()] - probabilities(logits)
    damping = chosen / (chosen + epsilon)
    np.testing.assert_allclose(logits.grad, -(advantages.numpy() * damping)[..., None] * score)


def test_epsilon_silences_actions_that_have_become_impossible() -> None:
    logits = torch.tensor([[[0.0, -200.0]]], requires_grad=True)
    loss = policy_gradient_loss(
        CATEGORICAL.log_probability(logits, torch.tensor([[1]])), torch.tensor([[1.0]]), epsilon=1e-6
    )
    loss.sum().backward()
    assert float(loss.detach()) == pytest.approx(-np.log(1e-6))
    assert logits.grad is not None
    assert float(logits.grad.abs().max()) == 0.0


def test_advantages_are_constants(logits: torch.Tensor, action: torch.Tensor, advantages: torch.Tensor) -> None:
    advantages.requires_grad_()
    policy_gradient_loss(CATEGORICAL.log_probability(logits, action), advantages).sum().backward()
    assert advantages.grad is None


@pytest.mark.parametrize("loss", ["policy", "epsilon"])
def test_gradients_agree_with_finite_differences(
    loss: str, logits: torch.Tensor, action: torch.Tensor, advantages: torch.Tensor
) -> None:
    functions = {
        "policy": lambda x: policy_gradient_loss(CATEGORICAL.log_probability(x, action), advantages),
        "epsilon": lambda x: policy_gradient_loss(CATEGORICAL.log_probability(x, action), advantages, epsilon=1e-3),
    }
    assert torch.autograd.gradcheck(functions[loss], (logits,))


def test_an_action_that_has_become_impossible_adds_nothing_where_it_has_no_weight() -> None:
    """Off policy: the importance weight exp(log pi - log mu) is 0 then, and so is the advantage that it scales."""
    logits = torch.tensor([[[0.0, 1.0, -float("inf")]] * 2], requires_grad=True)
    log_pi = CATEGORICAL.log_probability(logits, torch.tensor([[2, 1]]))
    loss = policy_gradient_loss(log_pi, torch.tensor([[0.0, 2.0]]))
    assert loss[0, 0].item() == 0.0
    assert loss[0, 1].item() == pytest.approx(-2.0 * log_pi[0, 1].item())
    loss.sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert not logits.grad[0, 0].any()


def test_the_descent_direction_is_target_minus_value() -> None:
    values = torch.tensor([[1.0, -2.0]], requires_grad=True)
    targets = torch.tensor([[3.0, 0.5]], requires_grad=True)
    loss = value_loss(values, targets)
    assert loss.tolist() == [[2.0, 3.125]]
    loss.sum().backward()
    assert values.grad is not None
    assert (-values.grad).tolist() == [[2.0, 2.5]]
    assert targets.grad is None


def test_dead_steps_do_not_count_whatever_they_hold() -> None:
    loss = torch.tensor([[1.0, 2.0], [float("nan"), 4.0]], requires_grad=True)
    valid = torch.tensor([[True, True], [False, True]])
    total = masked_sum(loss, valid)
    assert total.item() == 7.0
    total.backward()
    assert loss.grad is not None
    assert loss.grad.tolist() == [[1.0, 1.0], [0.0, 1.0]]


@pytest.mark.parametrize("epsilon", [0.0, 1e-6, 0.3])
def test_the_entropy_is_summed_over_actions_with_epsilon_inside_the_logarithm(
    logits: torch.Tensor, epsilon: float
) -> None:
    pi = probabilities(logits)
    expected = -(pi * np.log(pi + epsilon)).sum(axis=-1)
    found = entropy_with_epsilon(logits, epsilon)
    assert found.shape == (T, B)
    np.testing.assert_allclose(found.detach(), expected)


@pytest.mark.parametrize("epsilon", [0.0, 1e-6])
def test_an_impossible_action_adds_nothing_to_the_entropy_and_gets_no_gradient(epsilon: float) -> None:
    logits = torch.tensor([0.0, 1.0, -torch.inf], dtype=torch.float64, requires_grad=True)
    entropy = entropy_with_epsilon(logits, epsilon)
    torch.testing.assert_close(entropy, entropy_with_epsilon(logits[:2], epsilon))
    entropy.backward()
    assert logits.grad is not None
    assert logits.grad[2] == 0
    assert torch.isfinite(logits.grad).all()


def test_the_symmetric_divergence_is_half_of_both_directions(logits: torch.Tensor) -> None:
    pi = probabilities(logits)
    u = 1 / A
    expected = 0.5 * (pi * np.log(pi / u) + u * np.log(u / pi)).sum(axis=-1)
    found = symmetric_kl_to_uniform(logits, 1000.0)
    assert found.shape == (T, B)
    np.testing.assert_allclose(found.detach(), expected, rtol=1e-9)
    assert float(symmetric_kl_to_uniform(torch.full((3,), 0.7), 30.0)) == pytest.approx(0.0, abs=1e-6)


def test_the_symmetric_divergence_is_bounded_and_gives_no_gradient_beyond(logits: torch.Tensor) -> None:
    logits = torch.tensor([[0.0, 1.0, -torch.inf], [0.0, 200.0, 0.0], [0.0, 1.0, 0.5]], requires_grad=True)
    found = symmetric_kl_to_uniform(logits, 30.0)
    assert found[:2].tolist() == [30.0, 30.0]
    found.sum().backward()
    assert logits.grad is not None
    assert not logits.grad[:2].any()
    assert logits.grad[2].any()
