"""Where nobody learned, or everybody is at the best there is, a claim about returns is not testable."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from ddrl.analysis.verdicts.claim_decisions import corrected
from ddrl.analysis.verdicts.claim_examination import Known, evaluate
from ddrl.analysis.verdicts.learning_range import Ends, Range, above_random, ranges, unknown_note
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


OTHER = "one_step_is"
BOTH = claim(smallest_effect=0.05, worse=(B, OTHER))


def test_two_at_the_best_there_is_are_not_alike_for_that() -> None:
    """V-trace with replay: it and 1-step IS play as well as the rules allow, the other corrections do not."""
    table = {A: sample(0.998, 0.002), B: sample(0.2, 0.05), OTHER: sample(0.996, 0.002)}
    found = evaluate(BOTH, CORRECTION, scores(table, random=-0.6), known=CATCH)
    assert (found["verdict"], found["obstacle"]) == ("not_testable", "ceiling")
    assert found["detail"].startswith("V-trace against 1-step IS: every variant is at the best return there is")
    assert "V-trace against 1-step IS: 0.002 [" in found["comparisons"], "what was measured is shown"
    assert evaluate(BOTH, CORRECTION, scores(table, random=-0.6))["verdict"] == "no_difference", "no best is known"
    table = {A: sample(0.9, 0.002), B: sample(0.2, 0.05), OTHER: sample(0.898, 0.002)}
    assert evaluate(BOTH, CORRECTION, scores(table, random=-0.6), known=CATCH)["verdict"] == "no_difference"


def test_two_that_learned_nothing_are_not_alike_for_that_though_a_third_learned() -> None:
    table = {A: sample(-0.6, 0.01), B: sample(-0.6, 0.01), OTHER: sample(-0.58, 0.01)}
    found = evaluate(BOTH, CORRECTION, scores(table, random=-0.6), known=CATCH)
    assert (found["verdict"], found["obstacle"]) == ("not_testable", "nobody_learned")
    assert found["detail"].startswith("V-trace against No correction: no variant is shown to be above random play")


def test_what_can_be_tested_contradicts_a_claim_whatever_else_cannot() -> None:
    table = {A: sample(-0.6, 0.01), B: sample(-0.6, 0.01), OTHER: sample(0.8, 0.05)}
    found = evaluate(BOTH, CORRECTION, scores(table, random=-0.6), known=CATCH)
    assert (found["verdict"], found.get("obstacle")) == ("contradicted_here", None)
    assert "Not tested: V-trace against No correction: no variant is shown" in found["detail"]
    rows = [{"origin": "run"} | found, {"origin": "run", "verdict": "supported", "p_decision": 0.04, "detail": "x"}]
    rows[0]["p_decision"] = 0.03
    after = corrected(pd.DataFrame(rows).assign(obstacle="", seeds_needed=None), "a", [found["outlook"], None])
    assert list(after["verdict"]) == ["not_testable", "inconclusive"]
    assert after["obstacle"][0] == "nobody_learned"


def test_a_claim_with_a_comparison_that_can_be_tested_is_in_the_family_of_the_correction() -> None:
    table = {A: sample(0.998, 0.002), B: sample(0.2, 0.05), OTHER: sample(0.996, 0.002)}
    assert evaluate(BOTH, CORRECTION, scores(table, random=-0.6), known=CATCH)["p_decision"] > 0.05
    table[B] = sample(0.997, 0.001)
    assert evaluate(BOTH, CORRECTION, scores(table, random=-0.6), known=CATCH)["p_decision"] is None


def test_who_is_not_shown_to_have_learned_is_said_with_its_p() -> None:
    """Road Runner: 1520, 840 and 840 against 11.5 of random play, one of four groups."""
    table = scores({A: [1520.0, 840.0, 840.0], B: [11.0, 12.0, 13.0]}, environment="atari/road_runner", random=11.5)
    other = scores({A: [200.0, 300.0, 250.0], B: [200.0, 290.0, 260.0]}, environment="atari/ms_pacman", random=250.0)
    found = evaluate(
        claim(smallest_effect=0.05), CORRECTION, pd.concat([table, other], ignore_index=True).assign(human=9000.0)
    )
    p = stats.ttest_1samp([1520, 840, 840], 11.5, alternative="greater").pvalue
    assert found["obstacle"] == "nobody_learned"
    assert f"shown to be above random play on any task (p is {p:.2g} or more, at a level of 0.013)" in found["detail"]
    assert p == pytest.approx(0.0215, abs=1e-4)


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


def settings(values: Sequence[tuple[float, ...]], known: Known = CATCH, **changes: Any) -> dict[str, Any]:
    """The verdict on the stability of two or three systems with these final returns, setting by setting."""
    runs, finals = [], []
    for index, several in enumerate(values):
        for variant, final in zip((A, B, OTHER), several, strict=False):
            runs.append(run_of(f"{variant}__s{index:02d}", 1, optimizer={"learning_rate": index}, entropy_cost=0.01))
            finals.append(final)
    asked = claim(
        **{
            "kind": "stability",
            "settings": KEYS,
            "statistic": "area",
            "smallest_effect": 0.0,
            "margin": 0.05,
            **changes,
        }
    )
    return evaluate(asked, CORRECTION, with_scores(runs, finals).assign(random=-0.6), runs, known)


def test_settings_that_teach_both_nothing_or_everything_do_not_make_one_as_stable() -> None:
    ends = [(-0.62, -0.61)] * 4 + [(0.99, 1.0)] * 5
    found = settings([*ends, (0.5, 0.52), (0.55, 0.55), (0.3, 0.31)])
    assert (found["verdict"], found["obstacle"]) == ("not_testable", "nobody_learned;ceiling")
    assert "in 4 of 12 settings no variant is shown to have learned" in found["detail"]
    assert "the other 3 are too few for a test" in found["detail"]
    assert settings([*ends, *[(0.5 + 0.01 * n, 0.5) for n in range(5)]])["verdict"] == "supported"


TELLING = [(0.5 + 0.01 * n, 0.2 + 0.02 * n) for n in range(6)]


def test_settings_that_tell_nothing_are_left_out_of_the_effect_and_counted() -> None:
    alone = settings(TELLING)
    found = settings([*TELLING, *[(-0.62, -0.61)] * 10, *[(0.99, 1.0)] * 4])
    for name in ("effect", "ci95_low", "ci95_high"):
        assert found[name] == pytest.approx(alone[name]), name
    assert (
        "V-trace against No correction: 6 of 20 settings tell something; those are left out: in 10" in found["detail"]
    )
    assert "in 4 of 20 settings every variant is at the best return there is" in found["detail"]


def test_the_settings_that_tell_something_are_those_of_the_two_that_are_compared() -> None:
    """The third system learns in every setting; the first two in four."""
    both: dict[str, Any] = {"worse": (B, OTHER), "margin": None, "smallest_effect": 0.05}
    values = [*[(-0.6, -0.61, -0.54 + 0.001 * n) for n in range(8)], *[(0.3, 0.31, -0.1 + 0.01 * n) for n in range(4)]]
    found = settings(values, **both)
    assert (found["verdict"], found["obstacle"]) == ("not_testable", "nobody_learned")
    assert "No correction: in 8 of 12 settings no variant is shown to have learned; the other 4" in found["detail"]
    assert "1-step IS: 12 of 12 settings tell something" in found["detail"]
    worse = [(*pair[:2], pair[2] + 0.5) for pair in values]
    assert settings(worse, **both)["verdict"] == "contradicted_here", "against the third it does worse"


def test_noise_of_random_play_is_no_learning_also_where_the_best_is_not_known() -> None:
    noisy = Known(ends=Ends(random_error={"toy/catch": 0.1}))
    values = [*TELLING[:4], *[(-0.5 + 0.01 * n, -0.6) for n in range(8)]]
    assert settings(values, noisy)["obstacle"] == "nobody_learned"
    assert "obstacle" not in settings(values, Known(ends=Ends(random_error={"toy/catch": 0.001})))


def test_the_noise_of_random_play_is_part_of_the_test() -> None:
    values = np.array([0.3, 0.1, 0.2])
    assert above_random(values, 0.0, 0.0) == pytest.approx(stats.ttest_1samp(values, 0.0, alternative="greater").pvalue)
    assert above_random(values, 0.0, 0.1) > above_random(values, 0.0, 0.0)
    assert above_random(np.array([0.3]), 0.0, 0.1) == pytest.approx(stats.norm.sf(3), rel=1e-3)
    assert above_random(np.array([0.3, 0.3]), 0.0, 0.0) == 0.0
    assert above_random(np.array([-0.3, -0.3]), 0.0, 0.0) == 1.0


@pytest.mark.system
def test_groups_at_random_are_found_to_have_learned_in_at_most_one_case_in_twenty() -> None:
    generator = np.random.Generator(np.random.PCG64(7))
    learned = 0
    for _ in range(400):
        table = scores({A: generator.normal(0, 1, 4), B: generator.normal(0, 2, 4)}, random=0.0)
        learned += evaluate(claim(smallest_effect=0.05), CORRECTION, table).get("obstacle") != "nobody_learned"
    assert learned / 400 < 0.07


def test_without_random_play_nothing_is_said_of_what_was_learned_but_that_it_is_not_known() -> None:
    table = scores({A: sample(0.5, 0.01), B: sample(0.5, 0.001)}, random=math.nan)
    found = evaluate(claim(smallest_effect=0.05), CORRECTION, table, known=CATCH)
    assert found["verdict"] == "no_difference"
    assert "Random play is not known on catch, so nobody can tell whether anybody learned there." in found["detail"]
    best = scores({A: sample(0.99, 0.01), B: sample(1.0, 0.001)}, random=math.nan)
    assert evaluate(claim(smallest_effect=0.05), CORRECTION, best, known=CATCH)["obstacle"] == "ceiling"


def test_the_ends_of_one_task_are_not_forgotten_for_another_without_them() -> None:
    known = scores({A: sample(0.99, 0.01), B: sample(1.0, 0.001)}, random=-0.6)
    other = scores({A: sample(0.5, 0.01), B: sample(0.5, 0.01)}, environment="toy/other", random=math.nan)
    suite = replace(claim(), smallest_effect=0.05, margin=0.05, kind="no_worse", variants=(A,), than=B)
    (own,) = ranges(suite, [(A, B)], known, known.assign(comparison=0, value=known["final_return"]), CATCH.ends)
    assert [one.name for one in own.obstacles] == ["ceiling"]
    both = pd.concat([known, other], ignore_index=True)
    both = both.assign(comparison=0, value=both["final_return"])
    assert ranges(suite, [(A, B)], both, both, CATCH.ends) == [Range()]
    assert unknown_note(suite, both).startswith(" Random play is not known on other,")
    two_ends = both.assign(random=both["random"].fillna(0.5))
    (own,) = ranges(suite, [(A, B)], two_ends, two_ends, CATCH.ends)
    assert [one.name for one in own.obstacles] == ["nobody_learned", "ceiling"], "nothing is left that tells anything"
    assert "above random play on other (p is" in own.obstacles[0].reason
    assert own.obstacles[1].reason.startswith("every variant is at the best return there is on catch,")


def test_the_best_returns_and_the_noise_of_random_play_are_read_with_the_references() -> None:
    paper = load_paper(IMPALA)
    best = best_returns(paper)
    assert (best["toy/catch"], best["atari/pong"], best["gymnasium/CartPole-v1"]) == (1.0, 21.0, 500.0)
    errors = random_errors(paper)
    assert errors["firstperson/vizdoom_basic"] == 0.16
    assert "toy/catch" not in errors


def test_each_task_whose_best_is_known_has_a_random_score_or_says_why_not() -> None:
    from ddrl.papers.experiments import papers
    from ddrl.papers.published import load_references
    from ddrl.papers.reference_numbers import BEST, REFERENCES
    from ddrl.system.csv_cells import read_rows

    known = {
        row["environment"]
        for name in papers(REFERENCES.parent)
        for row in load_references(load_paper(REFERENCES.parent / name)).to_dict("records")
        if not math.isnan(row["random"])
    }
    rows = read_rows(REFERENCES / BEST)
    assert len(rows) > 3
    for row in rows:
        assert (row["environment"] in known) != ("random play is not known here" in row["source"]), row["environment"]


def test_no_known_best_is_below_what_a_reference_reaches() -> None:
    from ddrl.papers.published import load_references

    paper = load_paper(IMPALA)
    known = load_references(paper).set_index("environment")[["random", "human"]].astype("float64")
    for environment, best in best_returns(paper).items():
        if environment in known.index:
            assert not pd.Series(known.loc[environment]).gt(best).any(), environment
