"""Tests, intervals and power, against scipy and against simulation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ddrl.analysis.statistics import significance
from ddrl.analysis.statistics.printed import Difference, PrintedMean, difference
from ddrl.analysis.statistics.significance import Sample


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


def sample(*values: float) -> Sample:
    return np.array(values, dtype=np.float64)


def against(values: Sample, target: float) -> Difference:
    """The difference from a number that counts as exact."""
    return difference(values, PrintedMean(target, None))


samples = st.lists(st.floats(-1e3, 1e3).map(lambda value: round(value, 3)), min_size=2, max_size=12).map(
    lambda values: np.array(values, dtype=np.float64)
)
spread = samples.filter(lambda values: float(np.ptp(values)) > 0.01)


@pytest.mark.parametrize(
    "bad",
    [
        [1.0, 2.0],
        1.0,
        pd.Series([1.0, 2.0]),
        np.array([1, 2]),
        np.array([[1.0, 2.0]]),
        np.array([1.0, np.nan]),
        np.array([1.0, np.inf]),
        np.array([], dtype=np.float64),
    ],
)
def test_anything_but_one_finite_value_per_seed_is_refused(bad: Any) -> None:
    good = sample(1.0, 2.0)
    for call in (
        lambda: significance.t_interval(bad, 0.9),
        lambda: significance.prediction_interval(bad, 0.9, 1),
        lambda: significance.hedges_g(good, bad),
        lambda: against(bad, 0.0).p_of_difference(),
        lambda: against(bad, 0.0).p_of_equivalence(1.0),
    ):
        with pytest.raises(ValueError, match="must"):
            call()


@given(spread)
def test_the_t_interval_and_the_difference_test_are_scipys(values: Sample) -> None:
    expected = stats.ttest_1samp(values, 3.0)
    interval = significance.t_interval(values, 0.9)
    low, high = expected.confidence_interval(0.9)
    assert against(values, 3.0).p_of_difference() == pytest.approx(float(expected.pvalue), rel=1e-9)
    assert (interval.value, interval.low, interval.high) == pytest.approx((values.mean(), low, high))


def test_hedges_g_is_the_exact_unbiased_size_to_a_thousandth() -> None:
    a, b = sample(1.0, 2.0, 4.0, 5.0), sample(0.0, 1.0, 1.0)
    free = 5
    pooled = math.sqrt((3 * a.var(ddof=1) + 2 * b.var(ddof=1)) / free)
    exact = math.exp(math.lgamma(free / 2) - math.lgamma((free - 1) / 2)) / math.sqrt(free / 2)
    assert significance.hedges_g(a, b) == pytest.approx((a.mean() - b.mean()) / pooled * exact, rel=2e-3)


@given(spread, st.floats(-50.0, 50.0), st.floats(0.01, 500.0))
def test_equivalence_is_the_larger_of_two_one_sided_tests(values: Sample, target: float, margin: float) -> None:
    p, interval = against(values, target).p_of_equivalence(margin), significance.t_interval(values, 0.9)
    above = stats.ttest_1samp(values, target - margin, alternative="greater").pvalue
    below = stats.ttest_1samp(values, target + margin, alternative="less").pvalue
    assert p == pytest.approx(float(max(above, below)), rel=1e-9, abs=1e-300)
    inside = target - margin < interval.low and interval.high < target + margin
    assert abs(p - 0.05) < 1e-9 or (p < 0.05) == inside


def test_seeds_that_all_agree_leave_no_doubt() -> None:
    same = sample(0.1, 0.1, 0.1)
    assert against(same, 0.1).p_of_difference() == 1.0
    assert against(same, 0.2).p_of_difference() == 0.0
    assert against(same, 0.15).p_of_equivalence(0.1) == 0.0
    assert against(same, 0.35).p_of_equivalence(0.1) == 1.0
    assert math.isnan(significance.hedges_g(sample(0.5, 0.5, 0.5), sample(0.3, 0.3)))
    assert math.isnan(significance.hedges_g(sample(0.1, 0.1, 0.1), sample(0.3, 0.3))), "the mean of 0.1 is rounded"


def test_one_seed_has_no_interval_and_no_p() -> None:
    one = sample(1.0)
    missing = [
        significance.t_interval(one, 0.95).low,
        significance.prediction_interval(one, 0.95, 3)[1],
        against(one, 0.0).p_of_difference(),
        against(one, 1.0).p_of_equivalence(5.0),
        significance.hedges_g(one, one),
    ]
    assert np.isnan(missing).all()
    assert significance.t_interval(one, 0.95).value == 1.0


def test_the_t_interval_covers_the_mean_as_often_as_it_says() -> None:
    draws = generator().normal(3.0, 2.0, size=(2000, 3))
    covered = [
        interval.low <= 3.0 <= interval.high for interval in (significance.t_interval(row, 0.9) for row in draws)
    ]
    assert np.mean(covered) == pytest.approx(0.9, abs=4 * math.sqrt(0.9 * 0.1 / 2000))


def test_the_prediction_interval_covers_another_lab_as_often_as_it_says() -> None:
    random = generator(1)
    ours, theirs = random.normal(size=(2000, 5)), random.normal(size=(2000, 2)).mean(axis=1)
    hits = []
    for row, value in zip(ours, theirs, strict=True):
        low, high = significance.prediction_interval(row, 0.95, 2)
        hits.append(low <= value <= high)
    assert np.mean(hits) == pytest.approx(0.95, abs=4 * math.sqrt(0.95 * 0.05 / 2000))


def test_holm_is_the_closed_procedure_worked_by_hand() -> None:
    table = pd.DataFrame({"p": [0.01, 0.04, 0.03, 0.005]}, index=[7, 3, 5, 1])
    # 4 x 0.005, 3 x 0.01, 2 x 0.03 and 1 x 0.04, the last raised to the one before it.
    assert significance.holm(table).to_dict() == pytest.approx({1: 0.02, 7: 0.03, 5: 0.06, 3: 0.06})


def test_holm_adjusts_each_family_alone_and_does_not_count_missing_p() -> None:
    table = pd.DataFrame(
        {"p": [0.02, np.nan, 0.03, 0.5, 0.9], "item": ["a", "a", "a", "b", "b"], "system": ["x", "x", "x", "y", None]}
    )
    found = significance.holm(table, family=["item", "system"])
    assert found[[0, 2, 3, 4]].tolist() == pytest.approx([0.04, 0.04, 0.5, 0.9])
    assert np.isnan(found[1])
    assert significance.holm(table.iloc[:0], family=["item"]).empty
    assert significance.holm(table.assign(p=0.4)).tolist() == [1.0] * 5


def test_holm_refuses_a_column_that_is_not_there_and_a_p_above_1() -> None:
    table = pd.DataFrame({"p": [0.5, 1.1]})
    with pytest.raises(ValueError, match="no column 'item'; there are: p"):
        significance.holm(table, family=["item"])
    with pytest.raises(ValueError, match=r"outside \[0, 1\]"):
        significance.holm(table)


@pytest.mark.parametrize(("n", "margin", "bias"), [(3, 1.5, 0.0), (5, 1.5, 0.0), (8, 1.0, 0.3), (20, 0.6, 0.0)])
def test_the_power_of_the_equivalence_test_is_what_simulation_finds(n: int, margin: float, bias: float) -> None:
    draws = generator(n).normal(2.0 + bias, 1.0, size=(20_000, n))
    error = draws.std(axis=1, ddof=1) / math.sqrt(n)
    passed = stats.t.sf((margin - np.abs(draws.mean(axis=1) - 2.0)) / error, n - 1) <= 0.05
    assert passed[0] == (against(draws[0], 2.0).p_of_equivalence(margin) <= 0.05)
    power = significance.equivalence_power(n, 1.0, margin, bias=bias)
    assert passed.mean() == pytest.approx(power, abs=4 * math.sqrt(power * (1 - power) / len(draws)))


@pytest.mark.parametrize(
    ("n", "a", "b", "effect"), [(2, 1.0, 2.0, 9.0), (3, 1.0, 1.0, 3.0), (5, 1.0, 3.0, 4.0), (17, 1.0, 1.0, -1.0)]
)
def test_the_power_of_welchs_test_is_what_simulation_finds(n: int, a: float, b: float, effect: float) -> None:
    random = generator(n)
    ours, theirs = random.normal(effect, a, size=(20_000, n)), random.normal(0.0, b, size=(20_000, n))
    found = stats.ttest_ind(ours, theirs, axis=1, equal_var=False)
    share = np.mean((found.pvalue <= 0.05) & (np.sign(found.statistic) == np.sign(effect)))
    power = significance.difference_power(n, a, b, effect)
    assert share == pytest.approx(power, abs=4 * math.sqrt(power * (1 - power) / 20_000))


def test_exact_equivalence_power_nears_the_noncentral_t_where_that_holds() -> None:
    n, margin = 40, 0.5
    quantile, shift = stats.t.ppf(0.95, n - 1), math.sqrt(n) * margin
    expected = stats.nct.cdf(-quantile, n - 1, -shift) - stats.nct.cdf(quantile, n - 1, shift)
    assert significance.equivalence_power(n, 1.0, margin) == pytest.approx(expected, abs=1e-6)


def test_welchs_power_with_one_known_mean_and_with_many_seeds_is_the_noncentral_t() -> None:
    for n, a, b, effect, free in ((4, 1.0, 0.0, 2.0, 3.0), (500, 1.0, 1.0, 0.2, 998.0)):
        shift = effect / math.sqrt((a**2 + b**2) / n)
        expected = stats.nct.sf(stats.t.ppf(0.975, free), free, shift)
        assert significance.difference_power(n, a, b, effect) == pytest.approx(expected, abs=1e-5)


def test_power_stays_a_probability_for_effects_of_any_size() -> None:
    sizes = [1e-9, 1e-3, 1.0, 30.0, 1e3, 1e9]
    found = [
        significance.difference_power(n, 1.0, b, size) for n in (2, 30, 1000) for b in (0.0, 1.0) for size in sizes
    ]
    found += [significance.equivalence_power(n, 1.0, size) for n in (2, 30, 1000) for size in sizes]
    assert all(0.0 <= power <= 1.0 + 1e-9 for power in found)


@pytest.mark.parametrize("power", [0.5, 0.8, 0.95])
def test_the_number_of_seeds_is_the_first_with_that_power(power: float) -> None:
    n = significance.seeds_for_equivalence(1.0, 0.4, power=power, bias=0.1)
    assert n is not None
    assert significance.equivalence_power(n, 1.0, 0.4, bias=0.1) >= power
    assert significance.equivalence_power(n - 1, 1.0, 0.4, bias=0.1) < power
    m = significance.seeds_for_difference(1.0, 2.0, -1.0, power=power)
    assert m is not None
    assert significance.difference_power(m, 1.0, 2.0, -1.0) >= power
    assert significance.difference_power(m - 1, 1.0, 2.0, -1.0) < power


def test_seventeen_seeds_a_group_find_one_deviation() -> None:
    # The usual table value for two groups, d = 1, alpha 5 %, power 80 % (Cohen 1988, Table 2.4.1).
    assert significance.seeds_for_difference(1.0, 1.0, 1.0) == 17


def test_no_number_of_seeds_shows_what_is_not_so() -> None:
    assert significance.seeds_for_equivalence(1.0, 0.5, bias=0.5) is None
    assert significance.seeds_for_equivalence(1.0, 0.01) is None
    assert significance.seeds_for_difference(1.0, 1.0, 0.0) is None
    assert significance.seeds_for_difference(1.0, 1.0, 0.01) is None


def test_two_seeds_are_enough_without_any_spread() -> None:
    assert significance.seeds_for_equivalence(0.0, 0.5) == 2
    assert significance.seeds_for_difference(0.0, 0.0, 0.5) == 2


@pytest.mark.parametrize(
    "call",
    [
        lambda: significance.seeds_for_equivalence(-1.0, 0.5),
        lambda: significance.seeds_for_equivalence(1.0, 0.0),
        lambda: significance.seeds_for_equivalence(1.0, math.nan),
        lambda: significance.seeds_for_difference(math.nan, 1.0, 0.5),
        lambda: significance.seeds_for_difference(1.0, 1.0, math.inf),
        lambda: significance.seeds_for_difference(1.0, 1.0, 0.5, power=1.0),
        lambda: against(sample(1.0, 2.0), 0.0).p_of_equivalence(0.0),
        lambda: significance.t_interval(sample(1.0, 2.0), 95.0),
        lambda: significance.prediction_interval(sample(1.0, 2.0), 0.95, 0),
    ],
)
def test_a_number_that_makes_no_sense_is_refused(call: Any) -> None:
    with pytest.raises(ValueError, match="must"):
        call()
