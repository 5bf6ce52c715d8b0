"""n-step returns against their sum as printed, and the identities that tie them to V-trace and to an episode's end."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ddrl.losses.returns import n_step_returns
from ddrl.losses.vtrace import vtrace
from tests.losses.vtrace_test import Array, Transitions, on_policy, random_transitions

DRAWN = {"seed": st.integers(0, 2**32 - 1), "length": st.integers(1, 9), "batch": st.integers(1, 4)}


def returns_of(x: Transitions) -> Array:
    tensors = x.tensors()
    del tensors["log_rhos"]
    return np.asarray(n_step_returns(**tensors))


def as_printed(x: Transitions) -> Array:
    """sum_i gamma^i r_{t+i} + gamma^k V(s_{t+k}), one number at a time: k steps to the end, or to a dead step."""
    length, batch = x.values.shape
    values = np.concatenate([x.values, x.bootstrap_value[None]])
    result = np.zeros((length, batch))
    for b, t in product(range(batch), range(length)):
        total, weight, last = 0.0, 1.0, t
        while last < length and x.valid[last, b]:
            total += weight * x.rewards[last, b]
            weight *= x.discounts[last, b]
            last += 1
        result[t, b] = total + weight * values[last, b]
    return result


@settings(max_examples=60)
@given(**DRAWN)
def test_they_are_the_sum_of_discounted_rewards_and_the_last_value(seed: int, length: int, batch: int) -> None:
    x = random_transitions(seed, length, batch)
    np.testing.assert_allclose(returns_of(x), as_printed(x), rtol=1e-4, atol=1e-5)


@settings(max_examples=30)
@given(**DRAWN)
def test_they_are_the_targets_of_v_trace_on_policy(seed: int, length: int, batch: int) -> None:
    x = on_policy(random_transitions(seed, length, batch))
    np.testing.assert_allclose(returns_of(x), np.asarray(vtrace(**x.tensors())), rtol=1e-4, atol=1e-5)


@settings(max_examples=30)
@given(**DRAWN, cut=st.integers(0, 8))
def test_a_finished_episode_hides_the_next_one(seed: int, length: int, batch: int, cut: int) -> None:
    x, cut = random_transitions(seed, length, batch), cut % length
    discounts, rewards = x.discounts.copy(), x.rewards.copy()
    discounts[cut] = 0.0
    rewards[cut + 1 :] += 100.0
    ended = replace(x, discounts=discounts)
    richer = replace(ended, rewards=rewards)
    np.testing.assert_array_equal(returns_of(ended)[: cut + 1], returns_of(richer)[: cut + 1])


def test_a_cut_episode_bootstraps_from_its_own_final_observation() -> None:
    """Step 1 is cut: step 2 is dead, and V(o_2) is of the cut episode's final observation."""
    x = random_transitions(0, 4, 1)
    x = replace(
        x,
        values=np.array([[1.0], [2.0], [5.0], [3.0]], dtype=np.float32),
        bootstrap_value=np.array([7.0], dtype=np.float32),
        rewards=np.array([[1.0], [1.0], [0.0], [1.0]], dtype=np.float32),
        discounts=np.full((4, 1), 0.5, dtype=np.float32),
        valid=np.array([[True], [True], [False], [True]]),
    )
    np.testing.assert_allclose(returns_of(x)[:, 0], [1 + 0.5 * (1 + 0.5 * 5), 1 + 0.5 * 5, 5.0, 1 + 0.5 * 7])


def test_every_step_counts_where_no_dead_step_is_named() -> None:
    x = random_transitions(3, ends=False)
    tensors = x.tensors()
    del tensors["log_rhos"], tensors["valid"]
    np.testing.assert_allclose(np.asarray(n_step_returns(**tensors)), as_printed(x))
