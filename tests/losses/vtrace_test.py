"""V-trace against the paper's sums and products, and the identities that follow from them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddrl.errors import UserError
from ddrl.losses.vtrace import CORRECTIONS, corrected_targets, policy_gradient_advantages, vtrace

Array = npt.NDArray[np.float64]
GAMMA = 0.9
INF = float("inf")


@dataclass(frozen=True)
class Transitions:
    """[T, B] arrays as the learner sees them, and bootstrap_value [B]."""

    values: Array
    bootstrap_value: Array
    rewards: Array
    discounts: Array
    log_rhos: Array
    valid: npt.NDArray[np.bool_]

    def tensors(self) -> dict[str, torch.Tensor]:
        return {name: torch.from_numpy(np.array(value)) for name, value in self.__dict__.items()}

    def steps(self, start: int, stop: int) -> Transitions:
        """Steps start..stop-1 alone, bootstrapping from the value that follows them."""
        following = np.concatenate([self.values, self.bootstrap_value[None]])[stop]
        cut = {name: value[start:stop] for name, value in self.__dict__.items() if name != "bootstrap_value"}
        return Transitions(**cut, bootstrap_value=following)


def random_transitions(seed: int, length: int = 7, batch: int = 3, ends: bool = True) -> Transitions:
    """Random steps; `ends` scatters terminations and truncations, each followed by its dead step."""
    rng = np.random.default_rng(seed)
    shape = (length, batch)
    values, rewards = rng.normal(size=(2, *shape))
    log_rhos = rng.normal(scale=0.8, size=shape)
    discounts, valid = np.full(shape, GAMMA), np.ones(shape, dtype=bool)
    for b in range(batch if ends else 0):
        t = int(rng.integers(0, 4))
        while t < length:
            if rng.random() < 0.5:
                discounts[t, b] = 0.0
            if t + 1 < length:
                valid[t + 1, b], rewards[t + 1, b] = False, 0.0
            t += int(rng.integers(2, 5))
    return Transitions(values, rng.normal(size=batch), rewards, discounts, log_rhos, valid)


def equation_1(x: Transitions, rho_bar: float, c_bar: float, lambda_: float = 1.0) -> Array:
    """v_s = V(x_s) + sum_{t=s}^{s+n-1} gamma^{t-s} (prod_{i=s}^{t-1} c_i) delta_t V, as printed, one number at a time.

    gamma^{t-s} is the product of the discounts passed; a dead step has rho = c = 0.
    """
    length, batch = x.values.shape
    values = np.concatenate([x.values, x.bootstrap_value[None]])
    ratio = np.where(x.valid, np.exp(x.log_rhos), 0.0)
    targets = np.zeros((length, batch))
    for b, s in product(range(batch), range(length)):
        total = values[s, b]
        for t in range(s, length):
            weight = 1.0
            for i in range(s, t):
                weight *= x.discounts[i, b] * lambda_ * min(c_bar, ratio[i, b])
            rho = min(rho_bar, ratio[t, b])
            total += weight * rho * (x.rewards[t, b] + x.discounts[t, b] * values[t + 1, b] - values[t, b])
        targets[s, b] = total
    return targets


def n_step_return(x: Transitions) -> Array:
    """sum_{t=s}^{T-1} gamma^{t-s} r_t + gamma^{T-s} V(x_T), for transitions without dead steps."""
    returns, following = np.zeros_like(x.values), x.bootstrap_value
    for s in reversed(range(len(x.values))):
        following = returns[s] = x.rewards[s] + x.discounts[s] * following
    return returns


def targets_of(x: Transitions, **bounds: float) -> Array:
    return np.asarray(vtrace(**x.tensors(), **bounds))


def on_policy(x: Transitions) -> Transitions:
    return replace(x, log_rhos=np.zeros_like(x.log_rhos))


@pytest.mark.parametrize(("rho_bar", "c_bar"), [(1.0, 1.0), (3.7, 2.2), (10.0, 1.0), (INF, INF)])
def test_matches_equation_1(rho_bar: float, c_bar: float) -> None:
    for x in (random_transitions(0), random_transitions(1, ends=False)):
        np.testing.assert_allclose(targets_of(x, rho_bar=rho_bar, c_bar=c_bar), equation_1(x, rho_bar, c_bar))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    length=st.integers(1, 9),
    batch=st.integers(1, 4),
    rho_bar=st.floats(0.1, 20.0),
    c_bar=st.floats(0.0, 20.0),
    lambda_=st.floats(0.0, 1.0),
)
def test_matches_equation_1_for_any_bounds(
    seed: int, length: int, batch: int, rho_bar: float, c_bar: float, lambda_: float
) -> None:
    x = random_transitions(seed, length, batch)
    expected = equation_1(x, rho_bar, c_bar, lambda_)
    np.testing.assert_allclose(targets_of(x, rho_bar=rho_bar, c_bar=c_bar, lambda_=lambda_), expected, atol=1e-9)


def test_matches_the_recursion_of_remark_1() -> None:
    x = random_transitions(2, ends=False)
    vs = np.concatenate([targets_of(x, rho_bar=2.0, c_bar=1.5), x.bootstrap_value[None]])
    values = np.concatenate([x.values, x.bootstrap_value[None]])
    rho, c = np.minimum(2.0, np.exp(x.log_rhos)), np.minimum(1.5, np.exp(x.log_rhos))
    delta = rho * (x.rewards + x.discounts * values[1:] - values[:-1])
    np.testing.assert_allclose(vs[:-1], values[:-1] + delta + x.discounts * c * (vs[1:] - values[1:]))


def test_on_policy_is_the_n_step_return() -> None:
    x = on_policy(random_transitions(3, ends=False))
    np.testing.assert_allclose(targets_of(x), n_step_return(x))


def test_on_policy_with_lambda_is_the_lambda_return() -> None:
    x, lambda_ = on_policy(random_transitions(4, ends=False)), 0.7
    values = np.concatenate([x.values, x.bootstrap_value[None]])
    length = len(x.values)
    for s in range(length):
        n_step = [n_step_return(x.steps(s, stop))[0] for stop in range(s + 1, length + 1)]
        mixture = sum((1 - lambda_) * lambda_**k * value for k, value in enumerate(n_step[:-1]))
        np.testing.assert_allclose(
            targets_of(x, lambda_=lambda_)[s], mixture + lambda_ ** len(n_step[:-1]) * n_step[-1]
        )
    np.testing.assert_allclose(targets_of(x, lambda_=0.0), x.rewards + x.discounts * values[1:])


def test_lambda_zero_is_the_one_step_target() -> None:
    x = random_transitions(5, ends=False)
    following = np.concatenate([x.values[1:], x.bootstrap_value[None]])
    rho = np.minimum(1.0, np.exp(x.log_rhos))
    np.testing.assert_allclose(
        targets_of(x, lambda_=0.0), x.values + rho * (x.rewards + x.discounts * following - x.values)
    )


def test_unbounded_weights_are_full_importance_sampling() -> None:
    x = random_transitions(6, ends=False)
    x = replace(x, values=np.zeros_like(x.values), bootstrap_value=np.zeros_like(x.bootstrap_value))
    weights = np.cumprod(np.exp(x.log_rhos), axis=0)  # per-decision importance sampling of the return from x_0
    expected = (GAMMA ** np.arange(len(weights))[:, None] * weights * x.rewards).sum(axis=0)
    np.testing.assert_allclose(targets_of(x, rho_bar=INF, c_bar=INF)[0], expected)


def test_a_terminated_episode_hides_the_next_one() -> None:
    x, k = random_transitions(7, ends=False), 3
    x.discounts[k] = 0.0
    x.valid[k + 1], x.rewards[k + 1] = False, 0.0
    other = random_transitions(8, ends=False)
    for name in ("values", "rewards", "log_rhos"):
        getattr(other, name)[: k + 1] = getattr(x, name)[: k + 1]
    other.discounts[k] = 0.0
    other.valid[k + 1] = False
    np.testing.assert_array_equal(targets_of(x)[: k + 1], targets_of(other)[: k + 1])
    np.testing.assert_allclose(
        targets_of(x)[k], x.values[k] + np.minimum(1, np.exp(x.log_rhos[k])) * (x.rewards[k] - x.values[k])
    )


@pytest.mark.parametrize("terminated", [False, True])
@pytest.mark.parametrize("k", range(6))
def test_a_trajectory_split_at_an_end_gives_the_same_targets(k: int, terminated: bool) -> None:
    x = random_transitions(9, ends=False)  # 7 steps: transition k ends, k + 1 is dead, k + 2 begins the next episode
    x.discounts[k] = 0.0 if terminated else GAMMA
    x.valid[k + 1], x.rewards[k + 1] = False, 0.0
    whole = targets_of(x)
    first = x.steps(0, k + 1)  # bootstraps from values[k + 1] = V of its own final observation
    np.testing.assert_allclose(whole[: k + 1], targets_of(first))
    np.testing.assert_array_equal(whole[k + 1], x.values[k + 1])
    if k + 2 < 7:
        np.testing.assert_allclose(whole[k + 2 :], targets_of(x.steps(k + 2, 7)))

    advantages = np.asarray(policy_gradient_advantages(vs=torch.from_numpy(whole), **x.tensors()))
    alone = policy_gradient_advantages(vs=torch.from_numpy(targets_of(first)), **first.tensors())
    np.testing.assert_allclose(advantages[: k + 1], alone)
    np.testing.assert_array_equal(advantages[k + 1], 0.0)


def test_a_truncated_step_bootstraps_from_its_own_final_observation() -> None:
    x = on_policy(random_transitions(10, length=3, batch=1, ends=False))
    x.valid[1], x.rewards[1] = False, 0.0
    x.values[:, 0] = [2.0, 5.0, 1000.0]  # V(o_1) = 5 is the final observation's; 1000 belongs to the next episode
    x.rewards[0] = 1.0
    vs = targets_of(x)
    assert vs[0, 0] == pytest.approx(1.0 + GAMMA * 5.0)
    advantages = policy_gradient_advantages(vs=torch.from_numpy(vs), **x.tensors())
    assert float(advantages[0, 0]) == pytest.approx(1.0 + GAMMA * 5.0 - 2.0)


def test_a_dead_step_may_hold_any_behaviour_logits() -> None:
    x = random_transitions(11)
    assert not x.valid.all()
    overflowing = replace(x, log_rhos=np.where(x.valid, x.log_rhos, 1e6))
    for bound in (1.0, INF):
        np.testing.assert_array_equal(targets_of(x, rho_bar=bound), targets_of(overflowing, rho_bar=bound))


def test_advantages_match_section_4_2() -> None:
    x = random_transitions(12)
    vs = equation_1(x, 1.0, 1.0)
    length, batch = vs.shape
    expected = np.zeros_like(vs)
    for s, b in product(range(length), range(batch)):
        following = vs[s + 1, b] if s + 1 < length else x.bootstrap_value[b]
        weight = min(1.7, np.exp(x.log_rhos[s, b])) if x.valid[s, b] else 0.0
        expected[s, b] = weight * (x.rewards[s, b] + x.discounts[s, b] * following - x.values[s, b])
    found = policy_gradient_advantages(vs=torch.from_numpy(vs), **x.tensors(), pg_rho_bar=1.7)
    np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize("rho_bar", [0.5, 1.0, 2.0, INF])
def test_the_fixed_point_is_the_value_of_the_clipped_policy(rho_bar: float) -> None:
    """Theorem 1: E_mu[v_s] = V where V is the value of pi_rho_bar ~ min(rho_bar mu, pi) (eq. 3); exact enumeration."""
    pi, mu = np.array([[0.7, 0.3], [0.2, 0.8]]), np.array([[0.4, 0.6], [0.5, 0.5]])  # [state, action]
    rewards, successor = np.array([[1.0, -2.0], [0.5, 3.0]]), np.array([[1, 0], [0, 1]])
    clipped = np.minimum(rho_bar * mu, pi)
    clipped /= clipped.sum(axis=1, keepdims=True)
    transition = np.zeros((2, 2))
    for x, a in product(range(2), range(2)):
        transition[x, successor[x, a]] += clipped[x, a]
    values = np.linalg.solve(np.eye(2) - GAMMA * transition, (clipped * rewards).sum(axis=1))
    for start in range(2):
        expectation = 0.0
        for actions in product(range(2), repeat=4):
            states = [start]
            for action in actions:
                states.append(int(successor[states[-1], action]))
            visited, taken = np.array(states[:-1]), np.array(actions)
            path = Transitions(
                values[visited][:, None],
                values[states[-1:]],
                rewards[visited, taken][:, None],
                np.full((4, 1), GAMMA),
                np.log(pi[visited, taken] / mu[visited, taken])[:, None],
                np.ones((4, 1), dtype=bool),
            )
            expectation += float(np.prod(mu[visited, taken]) * targets_of(path, rho_bar=rho_bar, c_bar=0.8)[0, 0])
        assert expectation == pytest.approx(values[start])


@pytest.mark.parametrize("correction", ["v_trace", "one_step_is", "epsilon_correction", "no_correction"])
def test_corrections_are_those_of_section_5_2_2(correction: str) -> None:
    x = random_transitions(13)
    bounds = {"rho_bar": 1.0, "c_bar": 1.0}
    vs = equation_1(x if correction == "v_trace" else on_policy(x), **bounds)
    following = np.concatenate([vs[1:], x.bootstrap_value[None]])
    weights = np.minimum(1.0, np.exp(x.log_rhos)) if correction in ("v_trace", "one_step_is") else 1.0
    expected = np.where(x.valid, weights * (x.rewards + x.discounts * following - x.values), 0.0)
    found = corrected_targets(correction, **x.tensors(), **bounds, pg_rho_bar=1.0, lambda_=1.0)
    np.testing.assert_allclose(found.vs, vs)
    np.testing.assert_allclose(found.pg_advantages, expected)


@pytest.mark.parametrize("correction", ["v_trace", "one_step_is", "epsilon_correction", "no_correction"])
def test_all_corrections_agree_on_policy(correction: str) -> None:
    x = on_policy(random_transitions(14))
    found, reference = (corrected_targets(name, **x.tensors()) for name in (correction, "v_trace"))
    np.testing.assert_array_equal(found.vs, reference.vs)
    np.testing.assert_array_equal(found.pg_advantages, reference.pg_advantages)


@pytest.mark.parametrize("correction", ["epsilon_correction", "no_correction"])
def test_uncorrected_targets_ignore_every_bound(correction: str) -> None:
    x = random_transitions(15)
    found = corrected_targets(correction, **x.tensors(), rho_bar=0.1, c_bar=0.1, pg_rho_bar=0.1)
    np.testing.assert_array_equal(found.vs, corrected_targets(correction, **x.tensors()).vs)
    np.testing.assert_array_equal(found.pg_advantages, corrected_targets(correction, **x.tensors()).pg_advantages)


def test_an_unknown_correction_is_named_with_what_is_allowed() -> None:
    with pytest.raises(UserError, match=r"unknown correction 'vtrace' \(did you mean 'v_trace'\?\); allowed: eps.*"):
        corrected_targets("vtrace", **random_transitions(0).tensors())


def test_no_gradient_flows_through_targets() -> None:
    tensors = {
        name: tensor.requires_grad_(tensor.is_floating_point())
        for name, tensor in random_transitions(16).tensors().items()
    }
    targets = corrected_targets("v_trace", **tensors)
    assert not targets.vs.requires_grad
    assert not targets.pg_advantages.requires_grad


def test_bounds_and_lambda_that_are_not_given_are_one() -> None:
    x = random_transitions(5).tensors()
    assert (x["log_rhos"] > math.log(2)).any(), "weights above 2 tell a bound of 1 from one of 2"
    vs = vtrace(**x)
    torch.testing.assert_close(vs, vtrace(**x, rho_bar=1.0, c_bar=1.0, lambda_=1.0), rtol=0, atol=0)
    advantages = policy_gradient_advantages(vs=vs, **x)
    torch.testing.assert_close(advantages, policy_gradient_advantages(vs=vs, **x, pg_rho_bar=1.0), rtol=0, atol=0)
    for correction in CORRECTIONS:
        given_none = corrected_targets(correction, **x)
        given_all = corrected_targets(correction, **x, rho_bar=1.0, c_bar=1.0, pg_rho_bar=1.0, lambda_=1.0)
        torch.testing.assert_close(given_none, given_all, rtol=0, atol=0)
