"""Claims about how many times: times to a return with a factor, and one ratio over another."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from ddrl.analysis.runs.milestones import restricted
from ddrl.analysis.runs.run_data import RunData
from ddrl.analysis.statistics.claim_tests import Contrast, interaction, ratio
from ddrl.analysis.verdicts.claim_examination import evaluate
from ddrl.papers.paper import Claim, Over
from tests.analysis.verdicts.claims_test import (
    CORRECTION,
    alone,
    claim,
    decide_times,
    reaching,
    run_of,
    sample,
    with_scores,
)

A, B, C, D = "v_trace", "no_correction", "one_step_is", "epsilon_correction"


@pytest.mark.parametrize(
    ("factor", "better", "worse", "verdict"),
    [
        (3.0, [2, 2, 2], [8, 8, 8], "supported"),
        (5.0, [2, 2, 2], [8, 8, 8], "contradicted_here"),
        (3.0, [8, 8, 8], [2, 2, 2], "contradicted_here"),
        (4.0, [1, 2, 3], [8, 6, 10], "inconclusive"),
        (0.2, [8, 8, 8], [2, 2, 2], "supported"),
        (0.5, [8, 8, 8], [2, 2, 2], "contradicted_here"),
    ],
)
def test_a_factor_asks_how_many_times_as_early(factor: float, better: Any, worse: Any, verdict: str) -> None:
    found = decide_times(better, worse, factor=factor)
    assert found["verdict"] == verdict
    assert found["effect"] == pytest.approx(np.mean(worse) / np.mean(better))
    assert found["effect_unit"] == "times as few frames"
    side = {"supported": "lies above", "contradicted_here": "lies below", "inconclusive": "holds"}[verdict]
    assert f"the interval {side} {factor:g} times;" in found["detail"]


def test_the_interval_of_a_factor_is_that_of_the_ratio_of_mean_times() -> None:
    better, worse = np.array([200.0, 300.0, 200.0]), np.array([900.0, 700.0, 800.0])
    found = decide_times([2, 3, 2], [9, 7, 8], factor=2.0)
    expected = ratio("worse / better", [(worse, better)], 2.0)
    shown = (found["effect"], found["ci95_low"], found["ci95_high"])
    assert shown == pytest.approx(expected.shown())
    assert found["p"] == pytest.approx(expected.p())


def timed(better: float, worse: float, at: tuple[int | None, int | None], **changes: Any) -> dict[str, Any]:
    """Runs of so many seconds, each of which gets there at the given tenth of its time."""
    runs = [reaching(A, seed, at[0], seconds=better + seed / 10) for seed in range(3)]
    runs += [reaching(B, seed, at[1], seconds=worse + seed / 10) for seed in range(3)]
    asked = {"kind": "time_to_reach", "metric": "seconds", "threshold": 0.5, "smallest_effect": 0.0} | changes
    return evaluate(claim(**asked), CORRECTION, with_scores(runs), runs)


def test_with_a_factor_no_time_is_cut_where_every_run_gets_there() -> None:
    # As many frames in a sixteenth of the time: a horizon at the end of the faster one would leave a ratio of 10.
    found = timed(100.0, 1600.0, (1, 1), factor=12.0)
    assert (found["verdict"], found["effect_unit"]) == ("supported", "times as early")
    assert found["effect"] == pytest.approx(16.0, rel=0.01)
    assert timed(100.0, 1600.0, (1, 1))["effect"] == pytest.approx(100 * (1 - 1 / 10), rel=0.01)


def test_a_run_that_never_gets_there_does_not_show_that_a_factor_is_missed() -> None:
    found = timed(100.0, 100.0, (1, None), factor=12.0)  # 10 s against more than 100 s
    assert (found["verdict"], found["p"], found["seeds_needed"]) == ("inconclusive", 1.0, None)
    assert found["effect"] == pytest.approx(10.0, rel=0.01)
    assert "the interval lies below 12 times, but runs that never got there count as if they had" in found["detail"]
    assert timed(100.0, 100.0, (1, None), factor=5.0)["verdict"] == "supported"
    assert timed(100.0, 100.0, (1, 10), factor=12.0)["verdict"] == "contradicted_here"
    assert timed(100.0, 100.0, (None, 1), factor=12.0)["verdict"] == "contradicted_here"


def contrast(effect: float, null: float, cut: bool) -> Contrast:
    return Contrast("a / b", effect, 0.1, 1e6, math.nan, (0.1, 0.1), null=null, form="ratio", cut=cut)


@pytest.mark.parametrize(
    ("effect", "null", "whole", "cut"),
    [
        (3.0, 2.0, "supported", "supported"),
        (1.0, 2.0, "contradicted", "inconclusive"),
        (-1.0, 2.0, "contradicted", "contradicted"),
        (-0.1, 2.0, "contradicted", "inconclusive"),
        (-1.0, -2.0, "supported", "inconclusive"),
        (1.0, -2.0, "supported", "supported"),
        (-3.0, -2.0, "contradicted", "contradicted"),
        (1.0, 0.0, "supported", "supported"),
    ],
)
def test_what_was_cut_decides_only_away_from_one(effect: float, null: float, whole: str, cut: str) -> None:
    assert alone(contrast(effect, null, False)) == whole
    found = contrast(effect, null, True)
    assert alone(found) == cut
    assert (found.p() == 1.0) == (0 <= effect / null <= 1 if null else False)


def test_a_horizon_is_the_shortest_of_all_runs_or_of_those_that_never_get_there() -> None:
    table = pd.DataFrame(
        {
            "environment": ["x"] * 3 + ["y"] * 2,
            "value": [50.0, math.inf, 5.0, 7.0, 90.0],
            "watched": [60, 40, 10, 8, 95.0],
        }
    )
    assert list(restricted(table, "all")["value"]) == [10, 10, 5, 7, 8]
    unreached = restricted(table, "unreached")
    assert list(unreached["value"]) == [40, 40, 5, 7, 90]
    assert list(unreached["censored"]) == [True, True, False, False, False]


def test_an_interaction_is_one_ratio_over_another_with_the_delta_methods_interval() -> None:
    a, b, c, d = sample(90, 4, 4), sample(3, 0.2, 5), sample(20, 1, 3), sample(5, 0.4, 6)
    found = interaction("x", [(a, b)], [(c, d)], 2.0)
    parts = [group.var(ddof=1) / group.mean() ** 2 / len(group) for group in (a, b, c, d)]
    freedom = sum(parts) ** 2 / sum(part**2 / (len(g) - 1) for part, g in zip(parts, (a, b, c, d), strict=True))
    half = stats.t.ppf(0.975, freedom) * math.sqrt(sum(parts))
    assert found.shown() == pytest.approx([30 / 4 * math.exp(step) for step in (0, -half, half)])
    assert found.null == pytest.approx(math.log(2))
    with pytest.raises(ValueError, match="positive"):
        interaction("x", [(a, -b)], [(c, d)], 1.0)


def test_an_interaction_over_several_tasks_is_that_of_geometric_means() -> None:
    pairs = [(sample(8, 1, 3), sample(2, 0.1, 3)), (sample(9, 1, 3), sample(1, 0.1, 3))]
    found = interaction("x", pairs, [(sample(3, 0.1, 3), sample(1, 0.1, 3))], 1.0)
    assert math.exp(found.effect) == pytest.approx(math.sqrt(4 * 9) / 3)


def test_an_interaction_without_spread_has_a_point_for_an_interval() -> None:
    ones = np.ones(3)
    found = interaction("x", [(8 * ones, 2 * ones)], [(3 * ones, ones)], 1.0)
    assert found.shown() == pytest.approx((4 / 3, 4 / 3, 4 / 3))


def speeds(values: dict[tuple[str, str], float], actors: dict[str, int] | None = None) -> list[RunData]:
    """Three runs of each variant and environment at about so many frames a second."""
    runs = []
    for (variant, environment), speed in values.items():
        for seed in range(3):
            run = replace(run_of(variant, seed, seconds=1000 / speed * (1 + 0.01 * seed)), environment=environment)
            topology = {"num_actors": (actors or {}).get(variant, 1), "runtime": "threads"}
            runs.append(replace(run, manifest={**run.manifest, "config": {**run.config, "topology": topology}}))
    return runs


def decided(values: dict[tuple[str, str], float], asked: Claim, **options: Any) -> dict[str, Any]:
    runs = speeds(values, **options)
    return evaluate(asked, CORRECTION, with_scores(runs), runs)


def gain(over: Over, **changes: Any) -> Claim:
    base = {"kind": "interaction", "metric": "frames_per_second", "smallest_effect": 0.0, "effect_unit": "times"}
    return claim(**base | {"threshold": None, "over": over} | changes)


FOUR = Over(better=C, worse=D, environments=())
CATCH, DELAYED = "toy/catch", "toy/delayed"


@pytest.mark.parametrize(
    ("large", "verdict"), [(600.0, "supported"), (150.0, "contradicted_here"), (300.0, "inconclusive")]
)
def test_two_pairs_of_variants_are_held_against_each_other(large: float, verdict: str) -> None:
    # 300 / 100 below the line; the speed of the pair above it is planted.
    values = {(A, CATCH): large, (B, CATCH): 100.0, (C, CATCH): 300.0, (D, CATCH): 100.0}
    found = decided(values, gain(FOUR))
    assert found["verdict"] == verdict
    assert found["effect"] == pytest.approx(large / 300)
    assert "V-trace against No correction, over 1-step IS against" in found["detail"]
    swapped = decided(values, gain(Over(better=D, worse=C, environments=())))
    assert swapped["effect"] == pytest.approx(large / 100 / (100 / 300))


def test_an_interaction_that_is_too_small_to_count_is_said_to_be() -> None:
    values = {(A, CATCH): 320.0, (B, CATCH): 100.0, (C, CATCH): 300.0, (D, CATCH): 100.0}
    found = decided(values, gain(FOUR, smallest_effect=0.06))
    assert found["verdict"] == "inconclusive"
    assert "lies above the other ratio, but not by more than is too small to count" in found["detail"]


def test_an_interaction_is_held_against_its_threshold() -> None:
    values = {(A, CATCH): 600.0, (B, CATCH): 100.0, (C, CATCH): 300.0, (D, CATCH): 100.0}
    assert decided(values, gain(FOUR, threshold=1.8))["verdict"] == "supported"
    found = decided(values, gain(FOUR, threshold=2.5))
    assert found["verdict"] == "contradicted_here"
    assert "the interval lies below 2.5 times the other ratio" in found["detail"]


@pytest.mark.parametrize(("varying", "verdict"), [(800.0, "supported"), (100.0, "contradicted_here")])
def test_one_pair_of_variants_is_held_against_itself_on_other_tasks(varying: float, verdict: str) -> None:
    values = {(A, CATCH): 400.0, (B, CATCH): 200.0, (A, DELAYED): varying, (B, DELAYED): 100.0}
    asked = gain(Over(better=None, worse=None, environments=(CATCH,)), environments=(DELAYED,))
    found = decided(values, asked)
    assert found["verdict"] == verdict
    assert found["effect"] == pytest.approx(varying / 100 / 2)
    assert "V-trace against No correction on delayed, over the same on catch" in found["decided_by"]
    assert "(catch 2 [" in found["comparisons"]
    half = {key: value for key, value in values.items() if key[1] == CATCH}
    assert decided(half, asked)["verdict"] == "not_run"


def test_on_fewer_cores_than_workers_no_ratio_of_ratios_is_decided() -> None:
    values = {(A, CATCH): 600.0, (B, CATCH): 100.0, (C, CATCH): 300.0, (D, CATCH): 100.0}
    found = decided(values, gain(FOUR), actors={A: 16, C: 16})
    assert (found["verdict"], found["obstacle"]) == ("not_testable", "cores")
    assert found["detail"].startswith("fewer cores than workers: 2 cores for up to 16 workers.")
