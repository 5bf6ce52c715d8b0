"""Policy loss and entropy against NumPy, and their gradients against the formulas of section 4.2."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ddrl.losses.policy import entropy, log_probability, policy_gradient_loss

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


def test_log_probability_is_the_logarithm_of_the_softmax(logits: torch.Tensor, action: torch.Tensor) -> None:
    expected = np.take_along_axis(np.log(probabilities(logits)), action.numpy()[..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(log_probability(logits, action).detach(), expected)


def test_log_probability_survives_large_logits() -> None:
    found = log_probability(torch.tensor([[1e4, 0.0]]), torch.tensor([1]))
    assert float(found) == -1e4


def test_policy_gradient_is_advantage_times_the_score(
    logits: torch.Tensor, action: torch.Tensor, advantages: torch.Tensor
) -> None:
    """grad log pi(a) of a softmax is one_hot(a) - pi; the loss descends along -advantage times it."""
    policy_gradient_loss(logits, action, advantages).sum().backward()
    score = np.eye(A)[action.numpy()] - probabilities(logits)
    np.testing.assert_allclose(logits.grad, -advantages.numpy()[..., None] * score)


def test_epsilon_stands_inside_the_logarithm(
    logits: torch.Tensor, action: torch.Tensor, advantages: torch.Tensor
) -> None:
    epsilon = 1e-2
    loss = policy_gradient_loss(logits, action, advantages, epsilon=epsilon)
    chosen = np.take_along_axis(probabilities(logits), action.numpy()[..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(loss.detach(), -np.log(chosen + epsilon) * advantages.numpy())
    loss.sum().backward()
    score = np.eye(A)[action.numpy()] - probabilities(logits)
    damping = chosen / (chosen + epsilon)
    np.testing.assert_allclose(logits.grad, -(advantages.numpy() * damping)[..., None] * score)


def test_epsilon_silences_actions_that_have_become_impossible() -> None:
    logits = torch.tensor([[[0.0, -200.0]]], requires_grad=True)
    loss = policy_gradient_loss(logits, torch.tensor([[1]]), torch.tensor([[1.0]]), epsilon=1e-6)
    loss.sum().backward()
    assert float(loss.detach()) == pytest.approx(-np.log(1e-6))
    assert logits.grad is not None
    assert float(logits.grad.abs().max()) == 0.0


def test_advantages_are_constants(logits: torch.Tensor, action: torch.Tensor, advantages: torch.Tensor) -> None:
    advantages.requires_grad_()
    policy_gradient_loss(logits, action, advantages).sum().backward()
    assert advantages.grad is None


def test_entropy_is_minus_the_mean_log_probability(logits: torch.Tensor) -> None:
    pi = probabilities(logits)
    np.testing.assert_allclose(entropy(logits).detach(), -(pi * np.log(pi)).sum(axis=-1))


def test_entropy_is_largest_for_the_uniform_policy_and_zero_for_a_certain_one() -> None:
    np.testing.assert_allclose(entropy(torch.zeros(2, 3, A)), np.log(A), rtol=1e-6)
    assert float(entropy(torch.tensor([0.0, 1e4]))) == 0.0


@pytest.mark.parametrize("loss", ["policy", "epsilon", "entropy"])
def test_gradients_agree_with_finite_differences(
    loss: str, logits: torch.Tensor, action: torch.Tensor, advantages: torch.Tensor
) -> None:
    functions = {
        "policy": lambda x: policy_gradient_loss(x, action, advantages),
        "epsilon": lambda x: policy_gradient_loss(x, action, advantages, epsilon=1e-3),
        "entropy": entropy,
    }
    assert torch.autograd.gradcheck(functions[loss], (logits,))
