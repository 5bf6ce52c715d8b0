"""V-trace GAE against its sum as printed, and the identities that tie it to GAE and to n-step advantages."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddrl.losses.advantages import vtrace_gae
from tests.losses.vtrace_test import Array, Transitions, n_step_return, on_policy, random_transitions

GAMMA = 0.9
INF = float("inf")


def advantages_of(x: Transitions, **keywords: float) -> Array:
    return np.asarray(vtrace_gae(**x.tensors(), **keywords).advantages)


def weighted_sum(x: Transitions, rho_bar: float, c_bar: float, gae_lambda: float) -> Array:
    """A_t = sum_{k>=t} (prod_{i=t}^{k-1} gamma_i lambda c_i) rho_k delta_k, one number at a time; dead: rho = c = 0."""
    length, batch = x.values.shape
    values = np.concatenate([x.values, x.bootstrap_value[None]])
    result = np.zeros((length, batch))
    for b, t in product(range(batch), range(length)):
        for k in range(t, length):
            weight = min(rho_bar, np.exp(x.log_rhos[k, b])) if x.valid[k, b] else 0.0
            for i in range(t, k):
                c = min(c_bar, np.exp(x.log_rhos[i, b])) if x.valid[i, b] else 0.0
                weight *= x.discounts[i, b] * gae_lambda * c
            result[t, b] += weight * (x.rewards[k, b] + x.discounts[k, b] * values[k + 1, b] - values[k, b])
    return result


def gae_of_one_episode(rewards: Array, values: Array, gae_lambda: float) -> Array:
    """Schulman et al. 2016, eq. 16: sum_l (gamma lambda)^l delta_{t+l}, of rewards [T] and values [T + 1]."""
    delta = rewards + GAMMA * values[1:] - values[:-1]
    return np.array(
        [sum((GAMMA * gae_lambda) ** (k - t) * delta[k] for k in range(t, len(rewards))) for t in range(len(rewards))]
    )


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    length=st.integers(1, 9),
    batch=st.integers(1, 4),
    rho_bar=st.floats(0.1, 20.0),
    c_bar=st.floats(0.0, 20.0),
    gae_lambda=st.floats(0.0, 1.0),
)
def test_it_is_the_weighted_sum_of_temporal_differences(
    seed: int, length: int, batch: int, rho_bar: float, c_bar: float, gae_lambda: float
) -> None:
    x, keywords = random_transitions(seed, length, batch), {"rho_bar": rho_bar, "c_bar": c_bar}
    expected = weighted_sum(x, rho_bar, c_bar, gae_lambda)
    found = vtrace_gae(**x.tensors(), **keywords, gae_lambda=gae_lambda)
    np.testing.assert_allclose(found.advantages, expected, atol=1e-9)
    np.testing.assert_allclose(found.value_targets, x.values + expected, atol=1e-9)


def test_on_policy_with_lambda_1_it_is_the_n_step_advantage() -> None:
    x = on_policy(random_transitions(1, ends=False))
    np.testing.assert_allclose(advantages_of(x), n_step_return(x) - x.values)


@pytest.mark.parametrize("gae_lambda", [0.0, 0.5, 0.95, 1.0])
def test_on_policy_it_is_gae(gae_lambda: float) -> None:
    x = on_policy(random_transitions(2, ends=False))
    values = np.concatenate([x.values, x.bootstrap_value[None]])
    expected = [gae_of_one_episode(x.rewards[:, b], values[:, b], gae_lambda) for b in range(3)]
    np.testing.assert_allclose(advantages_of(x, gae_lambda=gae_lambda), np.stack(expected, axis=1))


def test_on_policy_it_is_the_exponential_average_of_k_step_advantages() -> None:
    """Schulman et al. 2016, eq. 16, first line; the last k-step advantage has the weight of all longer ones."""
    x, gae_lambda = on_policy(random_transitions(3, ends=False)), 0.7
    length = len(x.values)
    found = advantages_of(x, gae_lambda=gae_lambda)
    for t in range(length):
        k_step = [n_step_return(x.steps(t, stop))[0] - x.values[t] for stop in range(t + 1, length + 1)]
        average = sum((1 - gae_lambda) * gae_lambda**k * advantage for k, advantage in enumerate(k_step[:-1]))
        np.testing.assert_allclose(found[t], average + gae_lambda ** (len(k_step) - 1) * k_step[-1])


def test_with_wide_bounds_it_is_the_unclipped_importance_weighted_sum() -> None:
    x, gae_lambda = random_transitions(4, ends=False), 0.8
    values = np.concatenate([x.values, x.bootstrap_value[None]])
    weights = np.exp(x.log_rhos)
    delta = x.rewards + GAMMA * values[1:] - values[:-1]
    length = len(weights)
    expected = [
        sum((GAMMA * gae_lambda) ** (k - t) * weights[t : k + 1].prod(axis=0) * delta[k] for k in range(t, length))
        for t in range(length)
    ]
    for bound in (1e9, INF):
        np.testing.assert_allclose(advantages_of(x, rho_bar=bound, c_bar=bound, gae_lambda=gae_lambda), expected)


def test_lambda_0_is_one_weighted_temporal_difference() -> None:
    x = random_transitions(5, ends=False)
    values = np.concatenate([x.values, x.bootstrap_value[None]])
    expected = np.minimum(1.0, np.exp(x.log_rhos)) * (x.rewards + GAMMA * values[1:] - values[:-1])
    np.testing.assert_allclose(advantages_of(x, gae_lambda=0.0), expected)


@pytest.mark.parametrize("terminated", [False, True])
@pytest.mark.parametrize("k", range(6))
def test_a_finished_episode_hides_the_next(k: int, terminated: bool) -> None:
    x = random_transitions(6, ends=False)  # 7 steps: transition k ends, k + 1 is dead, k + 2 begins the next episode
    x.discounts[k] = 0.0 if terminated else GAMMA
    x.valid[k + 1], x.rewards[k + 1] = False, 0.0
    whole = advantages_of(x, gae_lambda=0.9)
    np.testing.assert_allclose(whole[: k + 1], advantages_of(x.steps(0, k + 1), gae_lambda=0.9))
    np.testing.assert_array_equal(whole[k + 1], 0.0)
    if k + 2 < 7:
        np.testing.assert_allclose(whole[k + 2 :], advantages_of(x.steps(k + 2, 7), gae_lambda=0.9))


def test_a_truncated_step_bootstraps_from_its_own_final_observation_and_a_terminated_one_from_nothing() -> None:
    x = on_policy(random_transitions(7, length=3, batch=2, ends=False))
    x.valid[1], x.rewards[1], x.rewards[0], x.discounts[0, 1] = False, 0.0, 1.0, 0.0
    x.values[:] = np.array([2.0, 5.0, 1000.0])[:, None]  # V of the final observation is 5; 1000 is the next episode's
    found = vtrace_gae(**x.tensors(), gae_lambda=0.95)
    assert found.advantages[0].tolist() == pytest.approx([1.0 + GAMMA * 5.0 - 2.0, 1.0 - 2.0])
    assert found.value_targets[0].tolist() == pytest.approx([1.0 + GAMMA * 5.0, 1.0])


def test_a_dead_step_may_hold_any_importance_weight() -> None:
    x = random_transitions(8)
    assert not x.valid.all()
    overflowing = replace(x, log_rhos=np.where(x.valid, x.log_rhos, 1e6))
    np.testing.assert_array_equal(advantages_of(x, rho_bar=INF), advantages_of(overflowing, rho_bar=INF))


def test_an_overflowing_importance_weight_counts_as_its_bound() -> None:
    x = random_transitions(9, ends=False)
    huge = replace(x, log_rhos=np.full_like(x.log_rhos, 1000.0))
    tiny = replace(x, log_rhos=np.full_like(x.log_rhos, -1000.0))
    np.testing.assert_allclose(advantages_of(huge, rho_bar=1.0, c_bar=1.0), advantages_of(on_policy(x)))
    np.testing.assert_array_equal(advantages_of(tiny), 0.0)


def test_no_gradient_flows_through_the_estimates() -> None:
    tensors = random_transitions(10).tensors()
    for name in ("values", "bootstrap_value", "rewards", "log_rhos"):
        tensors[name].requires_grad_()
    assert not any(tensor.requires_grad for tensor in vtrace_gae(**tensors))


def test_without_a_mask_every_step_counts() -> None:
    tensors = random_transitions(11, ends=False).tensors()
    unmasked = {name: tensor for name, tensor in tensors.items() if name != "valid"}
    for masked, plain in zip(vtrace_gae(**tensors), vtrace_gae(**unmasked), strict=True):
        assert torch.equal(masked, plain)
