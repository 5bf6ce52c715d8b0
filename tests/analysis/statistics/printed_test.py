"""Our seeds against a printed mean: Student's and Welch's tests, by scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from ddrl.analysis.statistics.printed import PrintedMean, difference
from ddrl.analysis.statistics.significance import Interval, t_interval

OURS = np.array([98.0, 104.0, 101.0, 110.0, 95.0, 107.0])


def test_a_printed_number_without_deviation_counts_as_exact() -> None:
    for printed in (PrintedMean(100.0, None), PrintedMean(100.0, 3), PrintedMean(100.0, None, 5.0)):
        found, own = difference(OURS, printed), t_interval(OURS, 0.9)
        assert found.p_of_difference() == pytest.approx(stats.ttest_1samp(OURS, 100.0).pvalue)
        assert found.interval(0.9).low == pytest.approx(own.low - 100)
        assert found.interval(0.9).high == pytest.approx(own.high - 100)
        assert math.isnan(printed.interval(0.95).low)


def test_with_a_printed_deviation_the_difference_is_welchs() -> None:
    printed = PrintedMean(92.0, 4, 7.0)
    found = difference(OURS, printed)
    own = (OURS.mean(), OURS.std(ddof=1), len(OURS))
    welch = stats.ttest_ind_from_stats(*own, 92.0, 7.0, 4, equal_var=False)
    assert found.p_of_difference() == pytest.approx(welch.pvalue)
    edges = [
        stats.ttest_ind_from_stats(*own, 92.0 + edge, 7.0, 4, equal_var=False, alternative=side).pvalue
        for edge, side in ((15.0, "less"), (-15.0, "greater"))
    ]
    assert found.p_of_equivalence(15.0) == pytest.approx(max(edges))
    interval = found.interval(0.9)
    inside = PrintedMean(interval.high + 92.0, 4, 7.0)
    assert difference(OURS, inside).p_of_difference() == pytest.approx(0.1)


def test_a_printed_mean_has_students_interval() -> None:
    seeds = np.array([457.14, 443.24, 414.23, 364.42, 409.22, 389.19])
    expected = t_interval(seeds, 0.95)
    found = PrintedMean(seeds.mean(), 6, seeds.std(ddof=1)).interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_equal_seeds_have_no_spread_and_one_seed_has_no_test() -> None:
    same = np.full(5, 0.1)
    assert difference(same, PrintedMean(0.1, 1)).p_of_difference() == 1
    assert difference(same, PrintedMean(0.1, 1)).p_of_equivalence(0.01) == 0
    assert difference(same, PrintedMean(0.2, 1)).p_of_difference() == 0
    assert difference(same, PrintedMean(0.2, 1)).interval(0.9) == Interval(0.1 - 0.2, 0.1 - 0.2, 0.1 - 0.2)
    assert math.isnan(difference(same[:1], PrintedMean(0.2, 1)).p_of_difference())


def test_two_seeds_have_a_spread_and_one_has_its_difference_alone() -> None:
    two = difference(np.array([0.0, 1.0]), PrintedMean(0.25, None))
    assert two == (0.25, pytest.approx(0.5), 1)
    assert difference(np.array([1.0]), PrintedMean(0.25, None)).value == 0.75


def test_a_deviation_counts_from_two_seeds_on() -> None:
    assert PrintedMean(92.0, 1, 7.0).error == 0
    assert PrintedMean(92.0, 2, 7.0).error == pytest.approx(7.0 / math.sqrt(2))
