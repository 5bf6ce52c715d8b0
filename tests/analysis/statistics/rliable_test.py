"""Our suite statistics against rliable, the authors' own code (extra `rliable`; the test is skipped without it)."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ddrl.analysis.statistics import bootstrap

library = pytest.importorskip("rliable.library")
metrics = pytest.importorskip("rliable.metrics")

SEEDS, GAMES = 8, 6
RESAMPLES = 4000
METRICS = {
    "mean": metrics.aggregate_mean,
    "median": metrics.aggregate_median,
    "iqm": metrics.aggregate_iqm,
    "optimality_gap": metrics.aggregate_optimality_gap,
}


def generator(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


@pytest.fixture(autouse=True)
def _fixed_draws() -> Any:
    """rliable draws from numpy's global generator, whatever `random_state` it is given."""
    state = np.random.get_state()  # noqa: NPY002
    np.random.seed(5)  # noqa: NPY002
    yield
    np.random.set_state(state)  # noqa: NPY002


def scores(seed: int, runs: int = SEEDS) -> np.ndarray[Any, np.dtype[np.float64]]:
    """[runs, games], as rliable wants them."""
    return generator(seed).gamma(1.0, 1.0, size=(runs, GAMES)) + np.linspace(0.0, 1.0, GAMES)


def tidy(matrix: np.ndarray[Any, np.dtype[np.float64]]) -> pd.DataFrame:
    table = pd.DataFrame(matrix, columns=[f"game_{index}" for index in range(matrix.shape[1])])
    return table.rename_axis("seed").reset_index().melt("seed", var_name="environment", value_name="score")


@pytest.mark.parametrize("statistic", METRICS)
def test_point_estimates_agree(statistic: str) -> None:
    # 8 x 6 runs divide by four: rliable's IQM drops whole runs, ours counts them in part.
    for seed in range(20):
        found = bootstrap.value_of(tidy(scores(seed)), "score", statistic)
        assert found == pytest.approx(METRICS[statistic](scores(seed)), abs=1e-12)


def test_the_iqm_differs_only_where_a_quarter_is_no_whole_number_of_runs() -> None:
    matrix = scores(0, runs=3)
    ours, theirs = bootstrap.value_of(tidy(matrix), "score", "iqm"), metrics.aggregate_iqm(matrix)
    ordered = np.sort(matrix, axis=None)
    assert theirs == pytest.approx(ordered[4:-4].mean())
    assert ours == pytest.approx((ordered[5:-5].sum() + 0.5 * (ordered[4] + ordered[-5])) / 9)


@pytest.mark.parametrize("statistic", METRICS)
def test_intervals_are_wider_than_rliables_by_what_few_seeds_take(statistic: str) -> None:
    """rliable's percentile bootstrap draws n of n seeds, and has about the quantiles of a normal distribution."""
    matrix = scores(1)
    ours = bootstrap.bootstrap(tidy(matrix), "score", statistic, generator=generator(2), resamples=RESAMPLES)
    _, found = library.get_interval_estimates(
        {"a": matrix}, lambda values: np.array([METRICS[statistic](values)]), reps=RESAMPLES
    )
    low, high = found["a"][:, 0]
    # For a mean of 6 games: sqrt(8 / 7), and Student's 2.1 for 1.96 with some 20 degrees of freedom.
    assert 1.1 < (ours.high - ours.low) / (high - low) < 2.0  # the most for the median
    if statistic == "mean":
        assert (ours.high - ours.low) / (high - low) == pytest.approx(math.sqrt(8 / 7) * 2.1 / 1.96, rel=0.07)


def test_performance_profiles_agree() -> None:
    matrix, taus = scores(3), np.linspace(0.0, 4.0, 9)
    theirs, bands = library.create_performance_profile({"a": matrix}, taus, reps=1000)
    ours = bootstrap.performance_profile(tidy(matrix), "score", taus.tolist())
    assert ours["fraction"].to_numpy() == pytest.approx(theirs["a"], abs=1e-12)
    # Ours is wider: it does not take from the spread what differs between games, and has a width where all runs agree.
    assert (ours["high"] - ours["low"] >= bands["a"][1] - bands["a"][0] - 1 / 48).all()
    assert ours["low"].to_numpy() == pytest.approx(bands["a"][0], abs=0.1)
    assert ours["high"].to_numpy() == pytest.approx(bands["a"][1], abs=0.1)


def test_probabilities_of_improvement_agree_with_different_numbers_of_runs() -> None:
    a, b = scores(5), scores(6, runs=5) - 0.3
    ours = bootstrap.probability_of_improvement(tidy(a), tidy(b), "score")
    assert ours.value == pytest.approx(metrics.probability_of_improvement(a, b), abs=1e-12)
    _, found = library.get_interval_estimates(
        {"a,b": (a, b)}, functools.partial(_as_array, metrics.probability_of_improvement), reps=1000
    )
    low, high = found["a,b"][:, 0]
    assert [ours.low, ours.high] == pytest.approx([low, high], abs=0.25 * (high - low))


def _as_array(function: Any, *values: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([function(*values)])
