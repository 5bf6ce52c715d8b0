"""Where nobody learned, or everybody is at the best there is, a claim about returns is not testable."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from ddrl.analysis.verdicts.claim_examination import Known, evaluate
from ddrl.analysis.verdicts.learning_range import Ends, above_random
from ddrl.papers.paper import load_paper
from ddrl.papers.published import best_returns, random_errors
from tests.analysis.verdicts.claims_test import (
    CORRECTION,
    IMPALA,
    KEYS,
    TIME,
    claim,
    reaching,
    run_of,
    sample,
    scores,
    with_scores,
)

A, B = "v_trace", "no_correction"
CATCH = Known(ends=Ends(best={"toy/catch": 1.0}))
NO_WORSE: dict[str, Any] = {"kind": "no_worse", "better": None, "worse": (), "variants": (A,), "than": B}


@pytest.mark.parametrize(
    ("a", "b", "obstacle"),
    [
        (sample(-0.58, 0.1), sample(-0.63, 0.1), "nobody_learned"),
        (sample(-0.58, 0.1), sample(0.3, 0.1), None),
        (sample(0.99, 0.01), sample(1.0, 0.0), "ceiling"),
        (sample(0.99, 0.01), sample(0.7, 0.1), None),
        (sample(0.5, 0.1), sample(0.52, 0.1), None),
    ],
)
def test_a_claim_decides_only_between_random_play_and_the_best_there_is(a: Any, b: Any, obstacle: str | None) -> None:
    asked = claim(smallest_effect=0.05)
    found = evaluate(asked, CORRECTION, scores({A: a, B: b}, random=-0.6), known=CATCH)
    assert found.get("obstacle") == obstacle
    assert (found["verdict"] == "not_testable") == (obstacle is not None)
    assert found["effect"] == pytest.approx(a.mean() - b.mean()), "what was measured is shown"


@pytest.mark.parametrize(("a", "b"), [(-0.6, -0.6), (1.0, 1.0)])
def test_who_learned_nothing_or_everything_does_not_support_that_one_is_no_worse(a: float, b: float) -> None:
    table = scores({A: sample(a, 0.01), B: sample(b, 0.01)}, random=-0.6)
    asked = claim(**NO_WORSE, margin=0.1, smallest_effect=0.0)
    assert evaluate(asked, CORRECTION, table, known=CATCH)["verdict"] == "not_testable"


def test_a_decision_between_two_at_the_best_there_is_says_so_and_stays() -> None:
    other, said = "one_step_is", "Both sides of this comparison are at the best return there is"
    both = claim(smallest_effect=0.05, worse=(B, other))
    table = {A: sample(0.998, 0.002), B: sample(0.2, 0.05), other: sample(0.996, 0.002)}
    found = evaluate(both, CORRECTION, scores(table, random=-0.6), known=CATCH)
    assert found["verdict"] == "no_difference"
    assert said in found["detail"]
    assert said not in evaluate(both, CORRECTION, scores(table, random=-0.6))["detail"], "the best is not known"
    table = {A: sample(0.9, 0.002), B: sample(0.2, 0.05), other: sample(0.898, 0.002)}
    found = evaluate(both, CORRECTION, scores(table, random=-0.6), known=CATCH)
    assert (found["verdict"], said in found["detail"]) == ("no_difference", False)


def test_where_the_best_is_not_a_rule_there_is_no_ceiling() -> None:
    table = scores({A: sample(0.99, 0.01), B: sample(1.0, 0.001)}, random=-0.6)
    assert evaluate(claim(smallest_effect=0.05), CORRECTION, table)["verdict"] == "no_difference"


def test_a_value_to_reach_may_be_the_best_there_is() -> None:
    reach = claim(kind="at_least", better=None, worse=(), variants=(A,), threshold=0.9)
    table = scores({A: sample(1.0, 0.0)}, random=-0.6)
    assert evaluate(reach, CORRECTION, table, known=CATCH)["verdict"] == "supported"


def test_times_to_a_return_decide_also_where_all_end_at_the_best() -> None:
    runs = [reaching(A, seed, 2) for seed in range(3)] + [reaching(B, seed, 8) for seed in range(3)]
    table = with_scores(runs, 1.0).assign(random=-0.6)
    assert evaluate(claim(**TIME), CORRECTION, table, runs, CATCH)["verdict"] == "supported"


def settings(pairs: list[tuple[float, float]]) -> dict[str, Any]:
    """The verdict on the stability of two systems with these final returns, setting by setting."""
    runs, finals = [], []
    for index, pair in enumerate(pairs):
        for variant, final in zip((A, B), pair, strict=True):
            runs.append(run_of(f"{variant}__s{index:02d}", 1, optimizer={"learning_rate": index}, entropy_cost=0.01))
            finals.append(final)
    asked = claim(kind="stability", settings=KEYS, statistic="area", smallest_effect=0.0, margin=0.05)
    return evaluate(asked, CORRECTION, with_scores(runs, finals).assign(random=-0.6), runs, CATCH)


def test_settings_that_teach_both_nothing_or_everything_do_not_make_one_as_stable() -> None:
    ends = [(-0.62, -0.61)] * 4 + [(0.99, 1.0)] * 5
    found = settings([*ends, (0.5, 0.52), (0.55, 0.55), (0.3, 0.31)])
    assert (found["verdict"], found["obstacle"]) == ("not_testable", "nobody_learned;ceiling")
    assert "in 4 of 12 settings no variant learned" in found["detail"]
    assert "the other 3 are too few for a test" in found["detail"]
    assert settings([*ends, *[(0.5 + 0.01 * n, 0.5) for n in range(5)]])["verdict"] == "supported"


def test_the_noise_of_random_play_is_part_of_the_test() -> None:
    values = np.array([0.3, 0.1, 0.2])
    assert above_random(values, 0.0, 0.0) == pytest.approx(stats.ttest_1samp(values, 0.0, alternative="greater").pvalue)
    assert above_random(values, 0.0, 0.1) > above_random(values, 0.0, 0.0)
    assert above_random(np.array([0.3]), 0.0, 0.1) == pytest.approx(stats.norm.sf(3), rel=1e-3)
    assert above_random(np.array([0.3, 0.3]), 0.0, 0.0) == 0.0
    assert above_random(np.array([-0.3, -0.3]), 0.0, 0.0) == 1.0


def test_groups_at_random_are_found_to_have_learned_in_at_most_one_case_in_twenty() -> None:
    generator = np.random.Generator(np.random.PCG64(7))
    learned = 0
    for _ in range(400):
        table = scores({A: generator.normal(0, 1, 4), B: generator.normal(0, 2, 4)}, random=0.0)
        learned += evaluate(claim(smallest_effect=0.05), CORRECTION, table).get("obstacle") != "nobody_learned"
    assert learned / 400 < 0.07


def test_without_random_play_nothing_is_said_of_what_was_learned() -> None:
    table = scores({A: sample(0.99, 0.01), B: sample(1.0, 0.001)}, random=math.nan)
    assert "obstacle" not in evaluate(claim(smallest_effect=0.05), CORRECTION, table, known=CATCH)


def test_the_best_returns_and_the_noise_of_random_play_are_read_with_the_references() -> None:
    paper = load_paper(IMPALA)
    best = best_returns(paper)
    assert (best["toy/catch"], best["atari/pong"], best["gymnasium/CartPole-v1"]) == (1.0, 21.0, 500.0)
    errors = random_errors(paper)
    assert errors["firstperson/vizdoom_basic"] == 0.16
    assert "toy/catch" not in errors


def test_no_known_best_is_below_what_a_reference_reaches() -> None:
    from ddrl.papers.published import load_references

    paper = load_paper(IMPALA)
    known = load_references(paper).set_index("environment")[["random", "human"]].astype("float64")
    for environment, best in best_returns(paper).items():
        if environment in known.index:
            assert not pd.Series(known.loc[environment]).gt(best).any(), environment
