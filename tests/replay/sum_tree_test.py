"""The sum tree against a list of weights: sums, look-ups by a linear scan, and how often each index is drawn."""

from __future__ import annotations

import math
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from ddrl.replay.sum_tree import FAN_OUT, SumTree
from ddrl.types import Array

CAPACITIES = (1, 2, FAN_OUT - 1, FAN_OUT, FAN_OUT + 1, FAN_OUT**2, FAN_OUT**2 + 1, 3000)
"""One level, two, three and four; whole blocks and some that are not."""

capacities = st.sampled_from(CAPACITIES)
whole_weights = st.one_of(st.just(0), st.integers(1, 9), st.integers(1, 2**30))
"""Sums of a few thousand of them are exact."""
any_weights = st.one_of(st.just(0.0), st.floats(1e-300, 1e-200), st.floats(1e-6, 10.0), st.floats(1e200, 1e300))


def indices(capacity: int, size: int = 40) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, capacity - 1), min_size=1, max_size=size)


def filled(weights: list[float]) -> SumTree:
    tree = SumTree(len(weights))
    tree.set(np.arange(len(weights)), np.array(weights, dtype=np.float64))
    return tree


def weights_of(tree: SumTree) -> list[float]:
    found: list[float] = tree[np.arange(tree.capacity)].tolist()
    return found


def slow_find(weights: list[float], point: float) -> int:
    """The first index at which the sum of all weights so far is above the point."""
    return next(index for index, end in enumerate(accumulate(weights)) if point < end)


def random_weights(seed: int, size: int) -> Array:
    rng = np.random.default_rng(seed)
    weights: Array = rng.exponential(size=size) * (rng.random(size) < 0.8)
    return weights


@given(st.data(), capacities)
def test_it_holds_what_was_set_last_and_its_total_is_the_sum(data: st.DataObject, capacity: int) -> None:
    tree, expected = SumTree(capacity), [0.0] * capacity
    for _ in range(data.draw(st.integers(1, 4))):
        chosen = data.draw(indices(capacity))  # with duplicates
        weights = data.draw(st.lists(whole_weights, min_size=len(chosen), max_size=len(chosen)))
        tree.set(np.array(chosen), np.array(weights, dtype=np.float64))
        for index, weight in zip(chosen, weights, strict=True):
            expected[index] = float(weight)
        assert weights_of(tree) == expected
        assert tree.total == sum(expected)


@given(st.data(), capacities)
def test_a_point_is_found_where_a_linear_scan_finds_it(data: st.DataObject, capacity: int) -> None:
    weights = [0.0] * capacity
    for index in data.draw(indices(capacity)):
        weights[index] = float(data.draw(whole_weights))
    tree = filled(weights)
    if not tree.total:
        return
    edges = [end for end in accumulate(weights) if end < tree.total]
    drawn = data.draw(st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=20))
    points = [0.0, *edges[:: max(1, len(edges) // 50)], *(part * tree.total for part in drawn)]
    assert tree.find(np.array(points)).tolist() == [slow_find(weights, point) for point in points]


@given(st.data(), capacities)
def test_an_index_of_weight_0_is_never_found_however_far_apart_the_others_are(
    data: st.DataObject, capacity: int
) -> None:
    weights = [0.0] * capacity
    for index in data.draw(indices(capacity)):
        weights[index] = data.draw(any_weights)
    tree = filled(weights)
    assert tree.total == pytest.approx(math.fsum(weights), rel=1e-12)
    if not tree.total:
        return
    parts = np.array(data.draw(st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=20)))
    points = np.concatenate([parts * tree.total, [0.0, np.nextafter(tree.total, 0.0)]])
    found = tree.find(points)
    assert (tree[found] > 0).all()
    for point, index in zip(points, found, strict=True):
        before = math.fsum(weights[:index])
        assert before - 1e-12 * tree.total <= point <= before + weights[index] + 1e-12 * tree.total


def test_the_last_point_of_all_is_found_at_the_last_weight_however_sums_are_rounded() -> None:
    """Sums of a block may be rounded up while those along it are rounded down."""
    past_the_end = 0
    for seed in range(100):
        weights = random_weights(seed, 70)
        weights[60:] = 0.0
        tree = filled(weights.tolist())
        last = np.nextafter(tree.total, 0.0)
        assert tree.find(np.array([last])).tolist() == [np.flatnonzero(weights)[-1]]
        past_the_end += last >= np.cumsum(weights)[-1]
    assert past_the_end > 10


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_each_index_is_drawn_in_proportion_to_its_weight(capacity: int) -> None:
    weights = random_weights(1, capacity)
    weights[0] = 1.0
    tree = filled(weights.tolist())
    counts = np.bincount(tree.sample(60_000, np.random.default_rng(2)), minlength=capacity)
    assert (counts[weights == 0] == 0).all()
    expected = weights[weights > 0] / weights.sum() * 60_000
    counts = counts[weights > 0]
    rare = expected < 5  # too few for the statistic: they are one class
    if rare.any():
        expected = np.append(expected[~rare], expected[rare].sum())
        counts = np.append(counts[~rare], counts[rare].sum())
    if len(expected) > 1:
        assert chisquare(counts, expected).pvalue > 0.01


def test_the_same_generator_draws_the_same_indices() -> None:
    tree = filled([1.0, 2.0, 3.0])
    one, other = (tree.sample(50, np.random.default_rng(3)) for _ in range(2))
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_nothing_can_be_drawn_where_all_weights_are_0(capacity: int) -> None:
    tree = SumTree(capacity)
    with pytest.raises(ValueError, match="no weight is above 0"):
        tree.sample(1, np.random.default_rng(0))
    tree.set(np.array([capacity - 1]), np.array([1.0]))
    assert tree.sample(3, np.random.default_rng(0)).tolist() == [capacity - 1] * 3
    tree.set(np.array([capacity - 1]), np.array([0.0]))
    with pytest.raises(ValueError, match="no weight is above 0"):
        tree.sample(1, np.random.default_rng(0))


def test_sums_do_not_drift_however_often_weights_change() -> None:
    tree, rng = SumTree(700), np.random.default_rng(4)
    for _ in range(2000):
        chosen = rng.integers(700, size=20)
        tree.set(chosen, 10.0 ** rng.uniform(-9, 9, size=20))
    assert tree.total == filled(weights_of(tree)).total
    tree.set(np.arange(699), np.zeros(699))
    assert tree.total == weights_of(tree)[699]
    tree.set(np.array([699]), np.array([0.0]))
    assert tree.total == 0.0


def test_sums_are_the_same_bits_whether_weights_came_one_by_one_or_together() -> None:
    weights = random_weights(5, 3000)
    together, one_by_one = filled(weights.tolist()), SumTree(3000)
    for index in np.random.default_rng(6).permutation(3000):
        one_by_one.set(np.array([index]), weights[[index]])
    assert one_by_one.total == together.total
    points = np.random.default_rng(7).random(500) * together.total
    np.testing.assert_array_equal(one_by_one.find(points), together.find(points))


def test_no_weights_are_no_change() -> None:
    tree = filled([1.0, 2.0])
    tree.set(np.zeros(0, dtype=np.int64), np.zeros(0))
    assert (tree.total, weights_of(tree)) == (3.0, [1.0, 2.0])


def test_a_million_weights_take_little_more_than_their_own_memory() -> None:
    assert SumTree(1_000_000).nbytes < 1.05 * 8 * 1_000_000
