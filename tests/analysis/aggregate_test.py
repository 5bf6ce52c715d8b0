"""Scores, intervals and bootstraps, against slow or independent computations."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ddrl.analysis.aggregate import STATISTICS, aggregates, iqm, prediction_interval, stratified_bootstrap, t_interval
from ddrl.analysis.normalise import human_normalised


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=40))
def test_the_iqm_is_scipys_trimmed_mean_where_a_quarter_is_whole(values: list[float]) -> None:
    four_times = np.repeat(np.array(values), 4)
    assert iqm(four_times) == pytest.approx(stats.trim_mean(four_times, 0.25), abs=1e-9)


def test_the_iqm_ignores_outliers_on_both_sides() -> None:
    assert iqm(np.array([-1e9, 1.0, 2.0, 3.0, 4.0, 1e9, 1.0, 4.0])) == pytest.approx(2.5)


def test_random_play_is_0_and_a_human_is_1() -> None:
    random, human = pd.Series([-20.7, 148.0]), pd.Series([14.6, 1668.7])
    assert list(human_normalised(random, random, human)) == [0.0, 0.0]
    assert list(human_normalised(human, random, human)) == [1.0, 1.0]


def test_a_missing_reference_gives_a_missing_score() -> None:
    assert human_normalised(pd.Series([1.0, 1.0]), pd.Series([0.0, 0.0]), pd.Series([np.nan, 0.0])).isna().all()


def test_the_t_interval_covers_the_mean_as_often_as_it_says() -> None:
    draws = generator().normal(3.0, 2.0, size=(2000, 3))
    covered = [interval.low <= 3.0 <= interval.high for interval in (t_interval(row, 0.9) for row in draws)]
    assert np.mean(covered) == pytest.approx(0.9, abs=0.02)


def test_the_prediction_interval_covers_another_lab_as_often_as_it_says() -> None:
    random = generator(1)
    ours, theirs = random.normal(size=(2000, 5)), random.normal(size=(2000, 2)).mean(axis=1)
    hits = []
    for row, value in zip(ours, theirs, strict=True):
        low, high = prediction_interval(row, 0.95, 2)
        hits.append(low <= value <= high)
    assert np.mean(hits) == pytest.approx(0.95, abs=0.015)


def test_one_seed_has_no_interval() -> None:
    assert np.isnan(t_interval(np.array([1.0]), 0.95).low)
    games = [np.array([1.0, 2.0]), np.array([3.0])]
    assert np.isnan(stratified_bootstrap(games, STATISTICS["mean"], generator=generator(), resamples=10).high)


def test_the_bootstrap_draws_seeds_within_each_game_only() -> None:
    # Games differ wildly, seeds within a game not at all: drawing across games would give a wide interval.
    games = [np.full(5, level) for level in (0.0, 10.0, 100.0)]
    for statistic in STATISTICS.values():
        found = stratified_bootstrap(games, statistic, generator=generator(), resamples=200)
        assert found.low == found.value == found.high


def test_the_bootstrap_repeats_with_the_same_generator_and_agrees_with_theory() -> None:
    games = [generator(index).normal(index, 1.0, size=30) for index in range(8)]
    first, second = (
        stratified_bootstrap(games, STATISTICS["mean"], generator=generator(7), resamples=2000) for _ in range(2)
    )
    assert first == second
    error = np.sqrt(np.sum([game.var() / len(game) for game in games])) / len(games)
    assert (first.high - first.low) / 2 == pytest.approx(1.96 * error, rel=0.08)


def test_aggregates_name_what_they_are_over() -> None:
    table = pd.DataFrame(
        {
            "origin": "run",
            "paper": "p",
            "experiment": "atari",
            "variant": "deep",
            "environment": ["a", "a", "b", "b"],
            "human_normalised_score": [0.0, 0.2, 1.0, 1.2],
        }
    )
    found = aggregates(table, seed=1, resamples=100).set_index("statistic")
    assert found.loc["mean", "value"] == pytest.approx(0.6)
    assert found.loc["median", "value"] == pytest.approx(0.6)
    assert (found.loc["iqm", "seeds"], found.loc["iqm", "environments"]) == (2, 2)
    assert found.loc["mean", "ci95_low"] <= 0.6 <= found.loc["mean", "ci95_high"]
