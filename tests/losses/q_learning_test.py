"""Q-learning's targets, rescaling and priorities against their formulas, one number at a time."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddrl.losses.q_learning import (
    double_q_values,
    mixed_priority,
    n_step_targets,
    rescale,
    taken,
    unrescale,
)

Array = npt.NDArray[np.float64]

values = st.one_of(st.floats(-1e6, 1e6), st.floats(-1.0, 1.0), st.floats(-1e-6, 1e-6))
epsilons = st.one_of(st.just(1e-3), st.floats(1e-4, 1.0))


def slow_rescale(x: float, epsilon: float) -> float:
    """Pohlen et al. 2018, Proposition A.2: sgn(x) (sqrt(|x| + 1) - 1) + epsilon x."""
    return math.copysign(math.sqrt(abs(x) + 1) - 1, x) + epsilon * x


def slow_unrescale(x: float, epsilon: float) -> float:
    """The same place, (iii)."""
    root = math.sqrt(1 + 4 * epsilon * (abs(x) + 1 + epsilon))
    return math.copysign(((root - 1) / (2 * epsilon)) ** 2 - 1, x)


# h ------------------------------------------------------------------------------------------------------------------


@given(values, epsilons)
def test_rescaling_is_the_formula_of_pohlen_et_al(x: float, epsilon: float) -> None:
    assert rescale(torch.tensor(x, dtype=torch.float64), epsilon).item() == pytest.approx(
        slow_rescale(x, epsilon), rel=1e-14, abs=1e-15
    )
    assert rescale(torch.tensor(x), epsilon).item() == pytest.approx(slow_rescale(x, epsilon), rel=1e-6, abs=3e-7)


@given(values, epsilons)
def test_its_inverse_is_their_formula(x: float, epsilon: float) -> None:
    expected = slow_unrescale(x, epsilon)
    assert unrescale(torch.tensor(x, dtype=torch.float64), epsilon).item() == pytest.approx(
        expected, rel=1e-9, abs=1e-9
    )


@given(values, epsilons)
def test_the_inverse_undoes_it_both_ways_and_for_both_signs(x: float, epsilon: float) -> None:
    exact, single = torch.tensor(x, dtype=torch.float64), torch.tensor(x)
    for one, rel, tiny in ((exact, 1e-9, 1e-12), (single, 1e-5, 1e-6)):
        there = unrescale(rescale(one, epsilon), epsilon)
        back = rescale(unrescale(one, epsilon), epsilon)
        assert there.dtype == back.dtype == one.dtype
        assert there.item() == pytest.approx(x, rel=rel, abs=tiny)
        assert back.item() == pytest.approx(x, rel=rel, abs=tiny)
        assert torch.equal(rescale(-one, epsilon), -rescale(one, epsilon))
        assert torch.equal(unrescale(-one, epsilon), -unrescale(one, epsilon))


@pytest.mark.parametrize("x", [1e-3, -0.02, 0.7, -5.0, 1234.5, -1e6, 1e9])
def test_in_single_precision_the_inverse_has_nearly_all_digits(x: float) -> None:
    """The formula as printed is wrong by more than a percent for a small value."""
    assert unrescale(torch.tensor(x), 1e-3).item() == pytest.approx(slow_unrescale(x, 1e-3), rel=3e-7)


def test_rescaling_by_hand() -> None:
    x = torch.tensor([-8.0, -3.0, 0.0, 3.0, 8.0, 99.0], dtype=torch.float64)
    expected = torch.tensor([-2.008, -1.003, 0.0, 1.003, 2.008, 9.099], dtype=torch.float64)
    torch.testing.assert_close(rescale(x, 1e-3), expected)
    torch.testing.assert_close(unrescale(expected, 1e-3), x)


# n-step targets -----------------------------------------------------------------------------------------------------


def random_steps(seed: int, length: int, batch: int) -> tuple[Array, Array, Array, Array]:
    """Rewards, terminated, ended [T, B] and values [T + 1, B]; every third step or so ends an episode."""
    rng = np.random.default_rng(seed)
    ended = rng.random((length, batch)) < 0.3
    terminated = ended & (rng.random((length, batch)) < 0.5)
    return rng.normal(size=(length, batch)), terminated, ended, rng.normal(size=(length + 1, batch))


def slow_targets(reward: Array, terminated: Array, ended: Array, value: Array, discount: float, n: int) -> Array:
    """r_1 + discount r_2 + ... until n rewards are added, an episode ends or there are no more; then the value."""
    result = np.zeros_like(reward)
    for t, b in product(*map(range, reward.shape)):
        scale, at = 1.0, t
        while True:
            result[t, b] += scale * reward[at, b]
            scale *= discount
            at += 1
            if ended[at - 1, b] or at - t == n or at == len(reward):
                break
        if not terminated[at - 1, b]:
            result[t, b] += scale * value[at, b]
    return result


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    length=st.integers(1, 9),
    batch=st.integers(1, 4),
    n=st.integers(1, 11),
    discount=st.floats(0.0, 1.0),
)
def test_targets_are_sums_of_discounted_rewards_and_a_value(
    seed: int, length: int, batch: int, n: int, discount: float
) -> None:
    steps = random_steps(seed, length, batch)
    found = n_step_targets(*map(torch.from_numpy, steps), discount, n)
    np.testing.assert_allclose(found, slow_targets(*steps, discount, n), atol=1e-12)


def test_targets_by_hand() -> None:
    reward = torch.tensor([[1.0], [2.0], [4.0], [8.0]])
    value = torch.tensor([[-1.0], [10.0], [20.0], [30.0], [40.0]])
    nothing = torch.zeros(4, 1, dtype=torch.bool)
    third = nothing.clone()
    third[2] = True

    def targets(terminated: torch.Tensor, ended: torch.Tensor) -> list[float]:
        return n_step_targets(reward, terminated, ended, value, 0.5, 2).flatten().tolist()

    # the last step has one reward before the last value that there is
    assert targets(nothing, nothing) == [1 + 1 + 5, 2 + 2 + 7.5, 4 + 4 + 10, 8 + 20]
    # truncated at the third step: its own final observation is the fourth, of value 30
    assert targets(nothing, third) == [1 + 1 + 5, 2 + 2 + 7.5, 4 + 15, 8 + 20]
    assert targets(third, third) == [1 + 1 + 5, 2 + 2, 4, 8 + 20]


@pytest.mark.parametrize("terminated", [False, True])
@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_a_finished_episode_hides_the_next_one(n: int, terminated: bool) -> None:
    reward, _, _, value = random_steps(1, 7, 2)
    nothing = np.zeros((7, 2), dtype=bool)
    ends = nothing.copy()
    ends[3] = True
    given_ends = ends if terminated else nothing
    whole = n_step_targets(*map(torch.from_numpy, (reward, given_ends, ends, value)), 0.9, n)
    first = n_step_targets(*map(torch.from_numpy, (reward[:4], given_ends[:4], ends[:4], value[:5])), 0.9, n)
    second = n_step_targets(*map(torch.from_numpy, (reward[4:], nothing[4:], nothing[4:], value[4:])), 0.9, n)
    np.testing.assert_allclose(whole, np.concatenate([first, second]))


def test_one_step_is_q_learnings_target() -> None:
    reward, terminated, ended, value = random_steps(2, 6, 3)
    found = n_step_targets(*map(torch.from_numpy, (reward, terminated, ended, value)), 0.9, 1)
    np.testing.assert_allclose(found, reward + 0.9 * np.where(terminated, 0.0, value[1:]))


# Values of actions --------------------------------------------------------------------------------------------------


def test_double_q_takes_the_action_that_the_online_network_prefers_and_the_value_that_the_target_network_gives() -> (
    None
):
    online = torch.tensor([[[1.0, 3.0, 2.0]], [[0.0, -1.0, -2.0]]])
    target = torch.tensor([[[10.0, 20.0, 30.0]], [[40.0, 50.0, 60.0]]])
    assert double_q_values(online, target).tolist() == [[20.0], [40.0]]
    assert target.amax(dim=-1).tolist() == [[30.0], [60.0]]


def test_the_value_taken_is_that_of_the_action() -> None:
    q = torch.arange(12.0).view(2, 2, 3)
    assert taken(q, torch.tensor([[0, 2], [1, 1]])).tolist() == [[0.0, 5.0], [7.0, 10.0]]


# Priorities ---------------------------------------------------------------------------------------------------------


def test_a_mixed_priority_by_hand() -> None:
    error = torch.tensor([[1.0, -8.0], [-3.0, 2.0], [2.0, 99.0]])
    valid = torch.tensor([[True, True], [True, True], [True, False]])
    # 0.9 x 3 + 0.1 x (1 + 3 + 2) / 3, and 0.9 x 8 + 0.1 x (8 + 2) / 2
    torch.testing.assert_close(mixed_priority(error, valid, 0.9), torch.tensor([2.9, 7.7]))
    assert mixed_priority(error, valid, 1.0).tolist() == [3.0, 8.0]
    assert mixed_priority(error, valid, 0.0).tolist() == [2.0, 5.0]


@given(seed=st.integers(0, 2**32 - 1), length=st.integers(1, 8), eta=st.floats(0.0, 1.0))
def test_steps_that_are_not_valid_do_not_count(seed: int, length: int, eta: float) -> None:
    rng = np.random.default_rng(seed)
    error, valid = rng.normal(size=(8, 2)), np.arange(8)[:, None] < np.array([length, 8])
    found = mixed_priority(torch.from_numpy(error), torch.from_numpy(valid), eta)
    for b in range(2):
        sizes = [abs(error[t, b]) for t in range(8) if valid[t, b]]
        assert found[b].item() == pytest.approx(eta * max(sizes) + (1 - eta) * sum(sizes) / len(sizes))


def test_no_sequences_have_no_priorities() -> None:
    assert mixed_priority(torch.zeros(5, 0), torch.zeros(5, 0, dtype=torch.bool), 0.9).tolist() == []


def test_the_action_that_one_network_prefers_is_valued_by_the_other_at_each_step_and_column() -> None:
    generator = torch.Generator().manual_seed(1)
    online, target = (torch.randn(4, 3, 5, generator=generator) for _ in range(2))
    found = double_q_values(online, target)
    assert found.shape == (4, 3)
    for t, b in product(range(4), range(3)):
        assert found[t, b] == target[t, b, int(online[t, b].argmax())]
