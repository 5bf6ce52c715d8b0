"""Runs that were added, left out, or used to choose settings do not decide a claim."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddrl.analysis.runs.run_data import RunData
from ddrl.analysis.verdicts.claim_examination import evaluate
from ddrl.analysis.verdicts.claims import claims
from ddrl.analysis.verdicts.planned_seeds import (
    OF_REFERENCE,
    Seeds,
    in_words,
    plan_columns,
    plan_of,
    seed_obstacles,
    seeds_of,
    tasks_without_runs,
    used,
)
from ddrl.papers.tuning import Tuning
from tests.analysis.verdicts.claims_test import CORRECTION, PAPER, claim, run_of, sample, scores, with_scores

A, B = "v_trace", "no_correction"
PLANNED = CORRECTION.scales[OF_REFERENCE].seeds


def runs(*seeds: int, origin: str = "reference") -> list[RunData]:
    return [replace(run_of(variant, seed), origin=origin) for variant in (A, B) for seed in seeds]


def said(seeds: Seeds) -> str:
    """What a report says of these seeds."""
    return "; ".join(in_words(plan_columns(seeds, ())))


def verdict(own: list[RunData], experiment: Any = CORRECTION, unusable: Any = ()) -> dict[str, Any]:
    """What is found on runs of which A ends far above B."""
    seeds = sorted({run.seed for run in own})
    table = scores({A: sample(0.9, 0.05, len(seeds)), B: sample(-0.5, 0.1, len(seeds))})
    table["seed"] = table["seed"].map(dict(enumerate(seeds)))
    counted = seeds_of(claim(), experiment, own, OF_REFERENCE, unusable)
    return evaluate(claim(), experiment, table, own, seeds=seed_obstacles(counted, own[0].origin))


def test_the_planned_runs_decide_a_claim() -> None:
    found = verdict(runs(*PLANNED))
    assert (found["verdict"], found.get("obstacle")) == ("supported", None)
    assert seeds_of(claim(), CORRECTION, runs(*PLANNED), OF_REFERENCE) == Seeds(2 * len(PLANNED), 0, 0, 0)


@pytest.mark.parametrize(
    ("seeds", "obstacle", "reason"),
    [
        ((*PLANNED, 916, 917), "unplanned", "4 runs are not in the plan."),
        (PLANNED[2:], "missing", "4 planned runs are missing."),
        ((*PLANNED[2:], 916), "unplanned;missing", "2 runs are not in the plan; 4 planned runs are missing."),
    ],
)
def test_reference_runs_that_were_added_or_left_out_decide_nothing(
    seeds: tuple[int, ...], obstacle: str, reason: str
) -> None:
    found = verdict(runs(*seeds))
    assert (found["verdict"], found["obstacle"]) == ("inconclusive", obstacle)
    assert found["detail"].startswith(reason)
    assert found["effect"] == pytest.approx(1.4), "what was measured is shown"
    assert found["p_decision"] is None, "it is no part of the family that Holm's correction is for"


def test_a_readers_own_runs_have_the_seeds_that_the_reader_asked_for() -> None:
    own = runs(1, 2, 3, origin="run")
    assert verdict(own)["verdict"] == "supported"
    counted = seeds_of(claim(), CORRECTION, own, OF_REFERENCE)
    assert (counted.unplanned, counted.missing) == (6, 2 * len(PLANNED))
    assert said(counted) == f"6 runs are not in the plan; {2 * len(PLANNED)} planned runs are missing"


def test_a_planned_run_that_cannot_be_used_is_missing() -> None:
    """A run is dropped by breaking it as well as by removing it."""
    broken = {(CORRECTION.name, name, "toy/catch", PLANNED[0]) for name in (A, B)}
    found = verdict(runs(*PLANNED[1:]), unusable=broken)
    assert (found["verdict"], found["obstacle"]) == ("inconclusive", "missing")
    counted = seeds_of(claim(), CORRECTION, runs(*PLANNED[1:]), OF_REFERENCE, broken)
    assert said(counted) == "2 planned runs are missing"


def test_a_task_of_which_no_run_can_be_used_lacks_all_that_were_planned() -> None:
    """With the task gone the claim would be decided on the others."""
    own = [one for one in runs(*PLANNED) if one.variant == A]
    others = {
        (CORRECTION.name, B, "toy/catch", PLANNED[0]),
        (CORRECTION.name, "no_variant_of_the_claim", "toy/catch", PLANNED[0]),
        ("another_experiment", B, "toy/catch", PLANNED[0]),
    }
    counted = seeds_of(claim(), CORRECTION, own, OF_REFERENCE, others)
    assert counted.missing == len(PLANNED)
    table = scores({A: sample(0.9, 0.05, len(PLANNED))})
    found = evaluate(claim(), CORRECTION, table, own, seeds=seed_obstacles(counted, "reference"))
    assert (found["verdict"], found["obstacle"]) == ("inconclusive", "missing")
    assert evaluate(claim(), CORRECTION, table, own)["verdict"] == "not_run"


@pytest.mark.parametrize("origin", ["run", "reference"])
def test_runs_with_whose_seeds_their_settings_were_chosen_do_not_decide_a_claim(origin: str) -> None:
    entry = Tuning("a rate", "here", (A,), ("toy/catch",), (PLANNED[0], 999), runs=2, frames=None)
    found = verdict(runs(*PLANNED, origin=origin), replace(CORRECTION, tuning=(entry,)))
    assert (found["verdict"], found["obstacle"]) == ("inconclusive", "tuned")
    assert found["detail"].startswith(
        f"settings were chosen with the seeds of 1 of {2 * len(PLANNED)} runs. Measured: V-trace"
    )
    assert found["ci95_low"] < found["effect"] < found["ci95_high"]


def test_other_variants_and_experiments_are_no_runs_of_the_claim() -> None:
    others = [run_of("one_step_is", 1), replace(run_of(A, 1), experiment="atari")]
    assert len(used(claim(), [*runs(1), *others])) == 2
    assert used(claim(), [one for one in runs(1) if one.variant == A]) == []


def test_reference_runs_are_held_against_the_plan_that_they_were_made_by_at_every_scale() -> None:
    assert [plan_of("run", scale) for scale in ("smoke", "paper", "reference")] == ["smoke", "paper", OF_REFERENCE]
    assert [plan_of("reference", scale) for scale in ("smoke", "reference")] == [OF_REFERENCE, OF_REFERENCE]


@pytest.mark.parametrize(("origin", "unplanned", "missing"), [("reference", 0, 8), ("run", 2, 6)])
def test_the_table_of_claims_counts_what_keeps_a_claim_from_being_decided(
    origin: str, unplanned: int, missing: int
) -> None:
    """Seed 14 is in the plan of scale workstation, and not in that of smoke."""
    protocol = {"protocol": "toy-1/catch;rows10,columns5"}
    own = [replace(one, seed=14, manifest=one.manifest | protocol) for one in runs(1, origin=origin)]
    ends = with_scores(own).assign(experiment=CORRECTION.name, origin=origin)
    table = claims(PAPER, {CORRECTION.name: CORRECTION}, ends, own, "smoke")
    row = table[(table["claim"] == "v_trace_over_no_correction") & (table["origin"] == origin)].iloc[0]
    assert (row["plan_runs"], row["unplanned_runs"], row["missing_runs"]) == (2, unplanned, missing)
    assert row["missing_tasks"] == ("Breakout" if origin == "reference" else "")
    assert ("missing" in row["obstacle"]) is (origin == "reference")


def test_a_planned_task_without_any_run_is_named_and_a_claim_of_other_tasks_lacks_none() -> None:
    own, breakout = runs(*PLANNED), "atari/breakout"
    assert tasks_without_runs(claim(), CORRECTION, own, OF_REFERENCE) == (breakout,)
    assert tasks_without_runs(claim(environments=("toy/catch",)), CORRECTION, own, OF_REFERENCE) == ()
    assert tasks_without_runs(claim(), CORRECTION, own, "smoke") == ()
    assert tasks_without_runs(claim(), CORRECTION, [], OF_REFERENCE) == (), "a claim without a run is not_run"
    both = [*own, *(replace(one, environment=breakout) for one in own)]
    assert tasks_without_runs(claim(), CORRECTION, both, OF_REFERENCE) == ()


def test_planned_tasks_without_a_run_are_said_in_words() -> None:
    one, two = Seeds(2, 0, 0, 0), Seeds(2, 0, 1, 0)
    assert in_words(plan_columns(one, ["atari/breakout"])) == ["1 planned task without a run (Breakout)"]
    assert in_words(plan_columns(two, ["atari/boxing", "atari/breakout"])) == [
        "1 planned run is missing",
        "2 planned tasks without a run (Boxing, Breakout)",
    ]
