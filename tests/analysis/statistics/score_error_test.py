"""An interval over seeds is no narrower than their scores are known."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from ddrl.analysis.statistics.bootstrap import bootstrap
from ddrl.analysis.statistics.score_error import at_least
from ddrl.analysis.statistics.significance import t_interval


def test_seeds_that_deviate_enough_stay_as_they_are() -> None:
    values = np.array([1.0, 2.0, 4.0])
    assert at_least(values, np.array([0.5, 0.5, 0.5])) is values
    assert at_least(values, np.full(3, np.nan)) is values
    assert at_least(values[:1], np.array([9.0])).tolist() == [1.0]


def test_two_seeds_are_drawn_apart_as_well() -> None:
    assert at_least(np.array([1.0, 1.0]), np.array([0.5, 0.5])).std(ddof=1) == pytest.approx(0.5)


@pytest.mark.parametrize("values", [[1.0, 1.1, 1.3], [2.0, 2.0, 2.0]])
def test_seeds_that_agree_by_luck_deviate_as_their_errors_demand(values: list[float]) -> None:
    given, errors = np.array(values), np.array([0.6, np.nan, 0.8])
    found = at_least(given, errors)
    assert found.mean() == pytest.approx(given.mean())
    assert found.std(ddof=1) == pytest.approx(np.sqrt((0.36 + 0.64) / 3))


def simulated(generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Scores and their errors of three equal seeds: five versions with a deviation of 2, four episodes each of 1."""
    versions = generator.normal(0.0, 2.0, size=(3, 5, 1))
    means = (versions + generator.normal(0.0, 1.0, size=(3, 5, 4))).mean(axis=2)
    return means.mean(axis=1), means.std(axis=1, ddof=1) / np.sqrt(5)


def test_intervals_of_seeds_that_happen_to_agree_hold_the_truth_with_the_variance_between_versions() -> None:
    """Of all triples, those fifth whose seeds lie closest together: their plain interval is far too narrow."""
    generator = np.random.default_rng(4)
    drawn = [simulated(generator) for _ in range(3000)]
    closest = sorted(drawn, key=lambda pair: float(pair[0].std()))[:600]

    def held(floored: bool, pairs: list[tuple[np.ndarray, np.ndarray]]) -> float:
        found = [t_interval(at_least(scores, errors) if floored else scores, 0.95) for scores, errors in pairs]
        return float(np.mean([one.low <= 0.0 <= one.high for one in found]))

    assert held(False, closest) < 0.85
    assert held(True, closest) > 0.98
    assert 0.93 < held(False, drawn) < 0.97
    assert held(True, drawn) > 0.96


def test_aggregates_of_a_suite_are_no_narrower_than_their_scores_errors() -> None:
    rows = [(game, seed, 0.5 + 0.001 * seed, 0.2) for game in "ab" for seed in range(3)]
    table = pd.DataFrame(rows, columns=["environment", "seed", "score", "error"])
    plain, floored = (
        bootstrap(table, "score", "mean", generator=np.random.default_rng(1), resamples=4000, errors=errors)
        for errors in (None, "error")
    )
    assert plain.high - plain.low < 0.01
    # Two games of three seeds with a deviation of 0.2: Student's 2.78 at 4 degrees of freedom.
    assert (floored.high - floored.low) / 2 == pytest.approx(2.776 * 0.2 / np.sqrt(6), rel=0.05)
    assert floored.value == plain.value
