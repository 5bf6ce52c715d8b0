"""Decisions on claims: no difference, contradiction here or at the paper's own setting, families, bounds, seeds."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from ddrl.analysis.runs.run_data import RunData
from ddrl.analysis.statistics.claim_tests import Contrast, difference
from ddrl.analysis.verdicts.claim_decisions import corrected
from ddrl.analysis.verdicts.claim_examination import evaluate
from ddrl.analysis.verdicts.claim_seeds import Outlook
from ddrl.analysis.verdicts.claim_setting import stand_ins
from ddrl.papers.experiments import Experiment
from tests.analysis.verdicts.claims_test import CORRECTION, EXPERIMENTS, claim, run_of, sample, scores, with_scores

A, B, C = "v_trace", "no_correction", "one_step_is"
ALIKE: dict[str, Any] = {"kind": "alike", "better": None, "worse": (), "variants": (A,), "than": B, "margin": 0.1}
HERE = "contradicted_here"


def test_no_difference_is_an_interval_within_the_smallest_effect_that_counts() -> None:
    """V-trace with replay, 0.002 [-0.005, 0.009]."""
    table = scores({A: sample(0.996, 0.005), B: sample(0.994, 0.005)})
    found = evaluate(claim(smallest_effect=0.05), CORRECTION, table)
    assert found["verdict"] == "no_difference"
    assert -0.05 < found["ci95_low"] < found["ci95_high"] < 0.05
    assert evaluate(claim(smallest_effect=0.005), CORRECTION, table)["verdict"] == "inconclusive"


@pytest.mark.parametrize(("effect", "error"), [(0.0, 0.01), (0.03, 0.01), (-0.03, 0.005), (0.2, 0.05)])
def test_each_decision_has_the_p_at_which_its_interval_touches_its_line(effect: float, error: float) -> None:
    found = Contrast("a - b", effect, error, 7.5, math.nan, (0.1, 0.1))
    smallest = 0.05

    def touches(p: float) -> tuple[float, float]:
        half = stats.t.ppf(1 - p / 2, 7.5) * error
        return effect - half, effect + half

    for p, side in (
        (found.p_supported(smallest), lambda low, high: low - smallest),
        (found.p_contradicted(smallest), lambda low, high: -smallest - high),
        (found.p_no_difference(smallest), lambda low, high: smallest - max(abs(low), abs(high))),
    ):
        if 0 < p < 1:
            assert side(*touches(p)) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    ("third", "verdict"), [(0.2, "supported"), (0.9, "no_difference"), (1.5, HERE), (0.85, "inconclusive")]
)
def test_one_comparison_without_a_difference_is_enough_unless_another_contradicts(third: float, verdict: str) -> None:
    spread = 0.05 if verdict == "inconclusive" else 0.01
    table = scores({A: sample(0.9, 0.01), B: sample(0.1, 0.01), C: sample(third, spread)})
    assert evaluate(claim(worse=(B, C), smallest_effect=0.05), CORRECTION, table)["verdict"] == verdict


def test_no_difference_is_not_said_where_another_comparison_may_show_the_opposite() -> None:
    """The robustness of IMPALA: 0.002 against one other, -0.13 [-0.2, -0.06] against the second."""
    asked = claim(worse=(B, C), smallest_effect=0.05)
    table = {A: sample(0.7, 0.005), B: sample(0.698, 0.005), C: sample(0.8, 0.05)}
    found = evaluate(asked, CORRECTION, scores(table))
    assert (found["verdict"], found["decided_by"]) == ("inconclusive", "V-trace against 1-step IS")
    assert "V-trace against No correction shows no difference" in found["detail"]
    alone = evaluate(replace(asked, worse=(B,)), CORRECTION, scores({name: table[name] for name in (A, B)}))
    assert alone["verdict"] == "no_difference"
    table[C] = sample(0.9, 0.02)
    assert evaluate(asked, CORRECTION, scores(table))["verdict"] == HERE, "what is below one is not above both"


def test_a_claim_that_holds_against_one_and_makes_no_difference_to_another_does_not_hold_as_stated() -> None:
    asked = claim(worse=(B, C), smallest_effect=0.05)
    found = evaluate(asked, CORRECTION, scores({A: sample(0.9, 0.005), B: sample(0.1, 0.01), C: sample(0.9, 0.005)}))
    assert found["verdict"] == "no_difference"
    assert "The claim needs all of its comparisons: V-trace against No correction holds." in found["detail"]
    open_too = {A: sample(0.9, 0.005), B: sample(0.7, 0.3), C: sample(0.9, 0.005)}
    found = evaluate(asked, CORRECTION, scores(open_too))
    assert found["verdict"] == "inconclusive", "the opposite may hold against the first"


@pytest.mark.parametrize(("effect", "error", "smallest"), [(-0.03, 0.02, 0.05), (0.2, 0.3, 0.05), (-0.2, 0.1, 0.05)])
def test_an_opposite_effect_is_ruled_out_by_an_interval_above_it(effect: float, error: float, smallest: float) -> None:
    found = Contrast("a - b", effect, error, 9.0, math.nan, (0.1, 0.1))
    assert (found.p_not_opposite(smallest) <= 0.05) == (found.interval()[0] >= -smallest)
    assert found.p_not_opposite(smallest) <= found.p_no_difference(smallest)


@pytest.mark.parametrize(
    ("own", "verdict"),
    [(sample(99, 2), "supported"), (sample(80, 2), HERE), (sample(125, 2), HERE), (sample(91, 8), "inconclusive")],
)
def test_a_claim_of_likeness_is_supported_by_no_difference_that_counts(own: Any, verdict: str) -> None:
    asked = replace(claim(**ALIKE), smallest_effect=0.0)
    found = evaluate(asked, CORRECTION, scores({A: own, B: sample(100, 2)}, random=0.0))
    assert found["verdict"] == verdict
    assert math.isnan(found["supported_above"]), "it has no line to lie right of"


BOUND: dict[str, Any] = {
    "kind": "up_to",
    "metric": "wire_bytes_per_frame",
    "better": None,
    "worse": (),
    "threshold": 10.0,
    "smallest_effect": 0.0,
}
PAIRS = tuple((f"a{index}", f"b{index}") for index in range(5))


def traffic(ratios: list[float]) -> tuple[list[RunData], pd.DataFrame, Experiment]:
    """Three runs of each side of each configuration, whose first moves so many times the bytes of the second."""
    runs = []
    for (first, second), ratio in zip(PAIRS, ratios, strict=False):
        for name, bytes_a_frame in ((first, 100.0 * ratio), (second, 100.0)):
            for seed in range(3):
                run = run_of(name, seed)
                grid = np.array([200, 400, 600, 800, 1000])
                parts = [
                    pd.DataFrame(
                        {
                            "env_frames": grid,
                            "seconds": grid / 100.0,
                            "updates": grid // 100,
                            "metric": metric,
                            "value": value,
                        }
                    )
                    for metric, value in (
                        ("episodes", 1.0),
                        ("wire_bytes_per_frame_to_learner", bytes_a_frame / 2 * (1 + 0.01 * seed)),
                        ("wire_bytes_per_frame_from_learner", bytes_a_frame / 2 * (1 + 0.01 * seed)),
                    )
                ]
                runs.append(replace(run, curves=pd.concat(parts, ignore_index=True)))
    names = {name: name for pair in PAIRS for name in pair}
    return runs, with_scores(runs), replace(CORRECTION, labels=names, variants={name: {} for name in names})


@pytest.mark.parametrize(
    ("ratios", "verdict", "obstacle"),
    [
        ([3.0, 12.0], "supported", None),
        ([3.0, 9.0], "not_testable", "settings"),
        ([3.0, 9.0, 2.0, 2.0, 12.0], "supported", None),
        ([3.0, 9.0, 2.0, 2.0, 4.0], HERE, None),
    ],
)
def test_a_bound_is_reached_by_one_configuration_and_missed_by_many(
    ratios: list[float], verdict: str, obstacle: str | None
) -> None:
    runs, table, experiment = traffic(ratios)
    asked = claim(**BOUND, configurations=PAIRS[: len(ratios)])
    experiment = replace(experiment, bases={name: {} for pair in PAIRS for name in pair})
    found = evaluate(asked, experiment, table, runs)
    assert (found["verdict"], found.get("obstacle")) == (verdict, obstacle)
    assert found["effect"] == pytest.approx(max(ratios)), "the best configuration is shown"


def test_budgets_of_two_configurations_may_differ_and_those_within_one_may_not() -> None:
    runs, table, experiment = traffic([3.0, 12.0])
    experiment = replace(experiment, bases={name: {} for pair in PAIRS for name in pair})
    asked = claim(**BOUND, configurations=PAIRS[:2])
    table.loc[table["variant"].isin(PAIRS[1]), "env_frames"] = 500
    assert evaluate(asked, experiment, table, runs)["verdict"] == "supported"
    table.loc[table["variant"] == PAIRS[1][0], "env_frames"] = 700
    assert evaluate(asked, experiment, table, runs)["obstacle"] == "budgets"


def family(values: list[tuple[str, str, float]]) -> pd.DataFrame:
    table = pd.DataFrame(values, columns=["origin", "verdict", "p_decision"])
    return corrected(table.assign(detail="x: y."), "a_paper")


def test_a_decision_stands_only_after_holms_correction_for_its_family() -> None:
    found = family(
        [
            ("run", "supported", 0.01),
            ("run", "contradicted_here", 0.03),
            ("run", "no_difference", 0.02),
            ("run", "inconclusive", 0.4),
            ("run", "not_testable", math.nan),
            ("reference", "supported", 0.04),
        ]
    )
    assert list(found["verdict"]) == ["supported", *["inconclusive"] * 3, "not_testable", "supported"]
    assert list(found["p_holm"][:4]) == pytest.approx([0.04, 0.06, 0.06, 0.4])
    assert found["family"][0] == "4 claims of a_paper tested on run runs"
    assert found["family"][4] == ""
    assert found["family"][5] == "1 claim of a_paper tested on reference runs"
    assert found["detail"][1] == (
        "After Holm's correction for 4 claims its p is 0.06, which decides nothing. Alone it would contradict the "
        "claim: x: y."
    )
    assert found["detail"][0] == "x: y."


def test_of_claims_that_are_all_false_one_in_twenty_families_decides_one() -> None:
    generator = np.random.Generator(np.random.PCG64(3))
    wrong = 0
    for _ in range(400):
        rows = []
        for _ in range(8):
            found = difference("a - b", [(generator.normal(0.5, 1, 5), generator.normal(0, 1, 5))])
            rows.append(("run", "supported", found.p_supported(0.5)))
        wrong += bool((family(rows)["verdict"] == "supported").any())
    assert wrong / 400 < 0.05


def test_a_decision_that_holm_undid_says_the_seeds_at_the_level_of_the_correction() -> None:
    generator = np.random.Generator(np.random.PCG64(4))
    own = difference("a - b", [(generator.normal(0, 0.3, 5), generator.normal(0, 0.3, 5))])
    outlook = Outlook(claim(), (own,), own, 0.3, 0.3)
    rows = [("run", "no_difference", 0.04), ("run", "inconclusive", 0.3), ("run", "supported", 0.9)]
    table = pd.DataFrame(rows, columns=["origin", "verdict", "p_decision"])
    table["detail"], table["seeds_needed"] = (
        ["x.", f"y. {outlook.note()} z.", "w."],
        pd.array([None] * 3, dtype="Int64"),
    )
    found = corrected(table, "a_paper", [outlook, outlook, None])
    assert list(found["verdict"]) == ["inconclusive"] * 2 + [found["verdict"][2]]
    assert list(found["seeds_needed"][:2]) == [outlook.units(3)] * 2
    assert int(outlook.units(3) or 0) > int(outlook.units() or 0)
    assert found["detail"][0].endswith(outlook.note(3))
    assert found["detail"][1] == f"y. {outlook.note(3)} z."
    assert "(power 0.8, level 5 % / 3 for 3 claims)" in outlook.note(3)


def own_setting(**changes: Any) -> RunData:
    config = EXPERIMENTS["throughput"].paper_setting("impala", "atari/pong") | {"seed": 1}
    run = run_of("impala", 1)
    return replace(run, environment="atari/pong", manifest={**run.manifest, "config": config | changes})


def test_what_stands_in_for_the_papers_setting_follows_from_the_runs() -> None:
    experiment = replace(EXPERIMENTS["throughput"], proxy=None, paper_budget=None)
    frames = int(own_setting().config["env_frames"])
    asked = claim(metric="final_return")
    assert stand_ins(asked, experiment, [own_setting()], 0.99) == []
    assert stand_ins(asked, experiment, [own_setting(env_frames=frames // 100)], 0.99) == ["0.01 of the paper's frames"]
    topology = {**own_setting().config["topology"], "num_actors": 2}
    assert stand_ins(asked, experiment, [own_setting(topology=topology)], 0.99) == [
        "another number or layout of workers"
    ]
    changed = {**own_setting().config["hyperparameters"], "batch_size": 3}
    assert stand_ins(asked, experiment, [own_setting(hyperparameters=changed)], 0.99) == ["1 changed setting"]
    proxy = replace(experiment, proxy="Catch stands for it.")
    assert stand_ins(asked, proxy, [own_setting()], 0.99) == ["other tasks than the paper's"]
    timed = claim(metric="frames_per_second")
    assert stand_ins(timed, experiment, [own_setting()], 0.99) == ["other hardware"]


def test_the_opposite_at_the_papers_own_setting_contradicts_and_elsewhere_it_contradicts_here() -> None:
    table = scores({A: sample(-0.5, 0.1), B: sample(0.9, 0.1)}, random=-0.6)
    here = evaluate(claim(), CORRECTION, table)
    assert here["verdict"] == HERE
    assert here["detail"].endswith("Not the paper's own setting: other tasks than the paper's.")
    assert evaluate(claim(), replace(CORRECTION, proxy=None), table)["verdict"] == "contradicted"


def test_the_detail_is_about_the_verdict_of_a_claim_with_several_comparisons() -> None:
    reach = claim(kind="at_least", better=None, worse=(), variants=(A, B), threshold=0.5, smallest_effect=0.0)
    both = evaluate(reach, CORRECTION, scores({A: sample(1.0, 0.1), B: sample(0.9, 0.1)}))
    assert both["verdict"] == "supported"
    assert "the interval lies above the value to reach" in both["detail"]
    one = evaluate(reach, CORRECTION, scores({A: sample(1.0, 0.1), B: sample(0.2, 0.05)}))
    assert (one["verdict"], one["decided_by"]) == (HERE, "No correction")
    assert "the interval lies below the value to reach" in one["detail"]
    near = evaluate(reach, CORRECTION, scores({A: sample(1.0, 0.1), B: sample(0.5, 0.1)}))
    assert "the interval holds the value to reach" in near["detail"]


def test_scores_without_references_are_shown_in_returns() -> None:
    """A3C against Gorila on Catch, which has no human score: six runs, all at the best return."""
    asked = claim(metric="human_normalised_score", smallest_effect=5.0)
    a, b = sample(0.98, 0.02), sample(0.96, 0.03)
    table = scores({A: a, B: b}, human_normalised_score=math.nan)
    found = evaluate(asked, CORRECTION, table)
    expected = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    assert (found["obstacle"], found["seeds"], found["effect_unit"]) == ("values", 5, "return")
    shown = (found["effect"], found["ci95_low"], found["ci95_high"])
    assert shown == pytest.approx((0.02, expected.low, expected.high))
    assert "Measured: in return: V-trace against No correction: 0.02 [" in found["detail"]
    assert found["comparisons"] == f"V-trace against No correction: 0.02 [{expected.low:.3g}, {expected.high:.3g}]"
    assert found["p_decision"] is None


def test_values_whose_tasks_have_no_common_scale_are_shown_task_by_task() -> None:
    here = scores({A: sample(3, 1), B: sample(2, 1)}, environment="toy/one")
    there = scores({A: sample(300, 1), B: sample(100, 1)}, environment="toy/two")
    found = evaluate(claim(), CORRECTION, pd.concat([here, there], ignore_index=True))
    assert found["obstacle"] == "values"
    assert "effect" not in found, "units are not averaged over tasks"
    assert "(one 1 [" in found["comparisons"] and "two 200 [" in found["comparisons"]


def test_comparisons_of_one_seed_are_shown_without_an_interval() -> None:
    found = evaluate(claim(), CORRECTION, scores({A: [0.5], B: [0.25]}))
    assert found["comparisons"] == "V-trace against No correction: 0.25 (one seed)"


def test_a_metric_that_no_run_has_is_said_to_be_missing() -> None:
    asked = claim(metric="mean_human_normalised_score", smallest_effect=5.0)
    table = scores({A: sample(1, 0.1), B: sample(0, 0.1)}, human_normalised_score=math.nan)
    found = evaluate(asked, CORRECTION, table)
    assert (found["verdict"], found["obstacle"]) == ("inconclusive", "values")
    assert found["detail"].startswith("no task has a random and a human score.")
