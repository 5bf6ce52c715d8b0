"""Claims over several comparisons and tasks: horizons per pair, a scale per task, and which comparison decides."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from ddrl.analysis.runs.run_data import RunData
from ddrl.analysis.statistics.significance import no_difference_power
from ddrl.analysis.verdicts.claim_examination import Known, evaluate
from ddrl.analysis.verdicts.claims import claims
from ddrl.analysis.verdicts.learning_range import Ends
from ddrl.papers.claim_kinds import EQUAL_TIME
from ddrl.papers.paper import Needs
from tests.analysis.verdicts.claims_test import (
    CORRECTION,
    EXPERIMENTS,
    PAPER,
    claim,
    reaching,
    run_of,
    sample,
    scores,
    with_scores,
)

A, B, C = "v_trace", "no_correction", "one_step_is"
SEEDS = range(3)
TIMED: dict[str, Any] = {"kind": "time_to_reach", "metric": "seconds", "threshold": 0.5, "smallest_effect": 0.0}


def on_task(run: RunData, environment: str) -> RunData:
    return replace(run, environment=environment)


def two_tasks(finals: dict[str, tuple[Any, Any]], random: tuple[float, float] = (0.0, 0.0)) -> pd.DataFrame:
    """The scores of each variant on a task of small returns and on one of large ones."""
    names = ("toy/catch", "toy/delayed")
    parts = [
        scores({variant: values[index] for variant, values in finals.items()}, names[index], random=random[index])
        for index in (0, 1)
    ]
    return pd.concat(parts, ignore_index=True)


def test_a_third_variant_that_ends_early_does_not_cut_short_what_is_seen_of_two_others() -> None:
    runs = [reaching(A, seed, 8, seconds=100.0 + seed) for seed in SEEDS]
    runs += [reaching(B, seed, 4, seconds=100.0 + seed) for seed in SEEDS]
    runs += [reaching(C, seed, None, seconds=20.0) for seed in SEEDS]
    pair = evaluate(claim(**TIMED, worse=(B,)), CORRECTION, with_scores(runs), runs)
    both = evaluate(claim(**TIMED, worse=(B, C)), CORRECTION, with_scores(runs), runs)
    assert pair["verdict"] == both["verdict"] == "contradicted_here"
    assert both["effect"] == pytest.approx(pair["effect"])
    assert both["effect"] == pytest.approx(-100.0, rel=0.02)  # 80 s against 40 s, and not 20 s against 20 s
    assert "V-trace against 1-step IS, on catch: no run reached the return" in both["detail"]
    assert both["comparisons"].count("against") == 1


def test_a_task_on_which_all_are_censored_says_nothing_and_is_no_difference_of_nothing() -> None:
    runs = [on_task(reaching(A, seed, 2 + seed), task) for task in ("toy/catch",) for seed in SEEDS]
    runs += [reaching(B, seed, 6 + seed) for seed in SEEDS]
    alone = evaluate(claim(**TIMED), CORRECTION, with_scores(runs), runs)
    runs += [on_task(reaching(name, seed, None), "toy/delayed") for name in (A, B) for seed in SEEDS]
    found = evaluate(claim(**TIMED), CORRECTION, with_scores(runs), runs)
    assert [found[key] for key in ("effect", "ci95_low", "p")] == [alone[key] for key in ("effect", "ci95_low", "p")]
    assert "on delayed: no run reached the return while both were watched, which says nothing" in found["detail"]
    assert "(on catch alone)" in found["comparisons"]


def test_a_claim_with_a_comparison_that_says_nothing_is_not_supported() -> None:
    runs = [reaching(A, seed, 4) for seed in SEEDS]
    runs += [reaching(B, seed, 8, seconds=10.0 + 0.1 * seed) for seed in SEEDS]
    runs += [reaching(C, seed, None, seconds=2.0) for seed in SEEDS]
    assert evaluate(claim(**TIMED), CORRECTION, with_scores(runs), runs)["verdict"] == "supported"
    found = evaluate(claim(**TIMED, worse=(B, C)), CORRECTION, with_scores(runs), runs)
    assert (found["verdict"], found["seeds_needed"]) == ("inconclusive", None)


def test_an_equal_time_is_that_of_the_two_variants_compared() -> None:
    rising = np.linspace(0.0, 1.0, 11)
    lengths = {A: 100.0, B: 50.0, C: 10.0}
    runs = [run_of(name, seed, returns=rising, seconds=time + seed) for name, time in lengths.items() for seed in SEEDS]
    timed = {"metric": EQUAL_TIME, "smallest_effect": 0.0}
    pair = evaluate(claim(**timed), CORRECTION, with_scores(runs), runs)
    both = evaluate(claim(**timed, worse=(B, C)), CORRECTION, with_scores(runs), runs)
    assert pair["comparisons"] in both["comparisons"]


def test_the_comparison_that_is_shown_is_the_nearest_to_contradicting_the_claim() -> None:
    # Against B the interval reaches lowest; against C the effect is the smallest for its error, and negative.
    table = scores({A: sample(1.0, 0.1, 3), B: sample(0.5, 2.0, 3), C: sample(1.1, 0.1, 3)})
    found = evaluate(claim(worse=(B, C), smallest_effect=0.0), CORRECTION, table)
    assert found["verdict"] == "inconclusive"
    assert found["effect"] == pytest.approx(-0.1)
    assert found["comparisons"].count("[") == 2
    assert found["p"] == pytest.approx(2 * stats.ttest_ind(*[sample(m, 0.1, 3) for m in (1.0, 1.1)]).pvalue, rel=1e-6)


def test_seeds_are_counted_for_the_comparison_that_needs_most() -> None:
    table = scores({A: sample(1.0, 0.1, 3), B: sample(0.9, 0.5, 3), C: sample(1.1, 0.1, 3)})
    needed = evaluate(claim(worse=(B, C), smallest_effect=0.1), CORRECTION, table)["seeds_needed"]
    level = 0.05 / 2  # two comparisons
    powers = [no_difference_power(count, 0.1, 0.5, 0.1, alpha=level) for count in (needed - 1, needed)]
    assert powers[0] < 0.8 <= powers[1]


def test_returns_of_several_tasks_are_parts_of_the_tasks_scales() -> None:
    finals = {A: (sample(0.8, 0.1), sample(3000, 300)), B: (sample(0.2, 0.1), sample(4000, 300))}
    found = evaluate(claim(smallest_effect=0.0), CORRECTION, two_tasks(finals, random=(-0.45, 0.0)))
    assert found["effect"] == pytest.approx((0.6 / 1.25 - 1000 / 4000) / 2)
    assert found["effect_unit"] == "return, in parts of each task's scale"
    assert "(catch 0.48 [" in found["comparisons"]
    assert "delayed -0.25 [" in found["comparisons"]
    assert "ends above random play: 1.25 on catch and 4,000 on delayed." in found["detail"]
    one = evaluate(claim(), CORRECTION, scores({name: values[0] for name, values in finals.items()}))
    assert (one["effect"], one["effect_unit"]) == (pytest.approx(0.6), "return")


def test_a_task_with_a_reference_score_has_the_scale_of_a_human_normalised_score() -> None:
    """Where nobody learns, the best variant's distance from random play is noise, and so would be the scale."""
    finals = {A: (sample(0.8, 0.1), sample(0.02, 0.03)), B: (sample(0.2, 0.1), sample(-0.01, 0.03))}
    table = two_tasks(finals, random=(-0.45, 0.0))
    known = table.assign(human=table["environment"].map({"toy/delayed": 1.5}))
    found = evaluate(claim(smallest_effect=0.0), CORRECTION, known)
    assert found["effect"] == pytest.approx((0.6 / 1.25 + 0.03 / 1.5) / 2)
    assert "how far its human or reference score lies above random play: 1.5 on delayed. Else it is" in found["detail"]
    assert "its best variant ends above random play: 1.25 on catch." in found["detail"]
    noisy = evaluate(claim(smallest_effect=0.0), CORRECTION, table)
    assert noisy["ci95_high"] - noisy["ci95_low"] > 5 * (found["ci95_high"] - found["ci95_low"])


def test_the_smallest_effect_of_returns_on_one_task_is_the_number_in_the_paper_file() -> None:
    """However far the runs end above random play, and whatever the reference score is."""
    for random, human in ((-0.6, math.nan), (-0.6, 3.0), (math.nan, math.nan)):
        found = evaluate(
            claim(smallest_effect=0.05),
            CORRECTION,
            scores({A: sample(0.9, 0.1), B: sample(0.2, 0.1)}, random=random, human=human),
        )
        assert (found["contradicted_below"], found["supported_above"]) == (-0.05, 0.05)
        assert "scale" not in found["detail"]


def test_a_task_without_a_reference_score_has_the_scale_of_the_best_that_its_rules_allow() -> None:
    """What was known before the runs goes before what the runs say of themselves."""
    finals = {A: (sample(0.8, 0.1), sample(30, 3)), B: (sample(0.2, 0.1), sample(40, 3))}
    table = two_tasks(finals, random=(-0.6, 0.0))
    found = evaluate(claim(), CORRECTION, table, known=Known(ends=Ends(best={"toy/catch": 1.0})))
    assert found["effect"] == pytest.approx((0.6 / 1.6 - 10 / 40) / 2)
    assert "how far the best return that its rules allow lies above random play: 1.6 on catch." in found["detail"]
    assert "40 on delayed. The scale comes from the runs themselves there." in found["detail"]
    plain = table.assign(human=table["environment"].map({"toy/catch": 2.0, "toy/delayed": 50.0}))
    stated = evaluate(claim(), CORRECTION, plain, known=Known(ends=Ends(best={"toy/catch": 1.0})))
    assert stated["effect"] == pytest.approx((0.6 / 2.6 - 10 / 50) / 2)
    assert "runs themselves" not in stated["detail"]


def test_no_task_swamps_another_whatever_the_unit_of_its_returns() -> None:
    finals = {A: (sample(0.8, 0.1), sample(30, 3)), B: (sample(0.2, 0.1), sample(40, 3))}
    larger = {name: (small, 1000 * large) for name, (small, large) in finals.items()}
    found = [evaluate(claim(), CORRECTION, two_tasks(each)) for each in (finals, larger)]
    for key in ("verdict", "effect", "ci95_low", "p", "hedges_g"):
        assert found[0][key] == pytest.approx(found[1][key])


def test_a_task_without_a_scale_decides_nothing() -> None:
    finals = {A: (sample(0.8, 0.1), sample(-30, 3)), B: (sample(0.2, 0.1), sample(-40, 3))}
    found = evaluate(claim(), CORRECTION, two_tasks(finals))
    assert found["verdict"] == "inconclusive"
    assert found["detail"].startswith("toy/delayed has no scale")


@pytest.mark.parametrize(
    ("failing", "verdict"), [(-9.0, "supported"), (3.0, "supported"), (5.0, "inconclusive"), (8.0, "contradicted_here")]
)
def test_a_ratio_of_returns_is_one_of_what_was_learned_above_random_play(failing: float, verdict: str) -> None:
    table = scores({A: sample(9.0, 0.2), B: sample(failing, 0.2)}, random=1.0)
    found = evaluate(claim(kind="ratio", threshold=2.0, smallest_effect=0.0), CORRECTION, table)
    assert found["verdict"] == verdict
    assert found["effect"] == pytest.approx((9.0 - 1.0) - 2 * (failing - 1.0))
    assert found["effect_unit"] == "return above 2 times the other's"
    unknown = evaluate(claim(kind="ratio", threshold=2.0), CORRECTION, table.assign(random=np.nan))
    assert (unknown["verdict"], unknown["obstacle"]) == ("inconclusive", "values")
    assert unknown["detail"].startswith("a task has no random score.")


def with_workers(run: RunData, workers: int, runtime: str = "threads") -> RunData:
    config = {**run.config, "topology": {"num_actors": workers, "runtime": runtime}}
    return replace(run, manifest={**run.manifest, "config": config})


def test_more_workers_than_cores_decide_nothing_about_workers() -> None:
    asked = claim(kind="monotone", metric="frames_per_second", better=None, worse=(), variants=(A, B))
    base = [run_of(A, seed, seconds=1.0 + seed / 10) for seed in SEEDS] + [run_of(B, seed) for seed in SEEDS]
    for workers, verdict in ((2, "supported"), (8, "not_testable")):  # the machine has 2 cores
        runs = [with_workers(run, workers if run.variant == A else 1) for run in base]
        found = evaluate(replace(asked, smallest_effect=0.0), CORRECTION, with_scores(runs), runs)
        assert found["verdict"] == verdict
    assert found["obstacle"] == "cores"
    assert found["detail"].startswith("fewer cores than workers: 2 cores for up to 8 workers. Measured: V-trace")
    assert found["effect"] > 0
    alike = [with_workers(run, 8) for run in base]
    assert evaluate(asked, CORRECTION, with_scores(alike), alike)["detail"].startswith("V-trace against")


def test_agents_that_wait_for_a_central_inference_need_no_core_each() -> None:
    asked = claim(kind="monotone", metric="frames_per_second", better=None, worse=(), variants=(A, B))
    base = [run_of(A, seed, seconds=1.0 + seed / 10) for seed in SEEDS] + [run_of(B, seed) for seed in SEEDS]
    runs = [with_workers(run, 32 if run.variant == A else 2) for run in base]
    for run in runs[: len(SEEDS)]:
        run.config["topology"]["inference"] = "central"
    assert evaluate(replace(asked, smallest_effect=0.0), CORRECTION, with_scores(runs), runs)["verdict"] == "supported"


def test_what_is_said_of_a_gpu_is_decided_on_machines_that_have_one() -> None:
    asked = claim(metric="frames_per_second", smallest_effect=0.0, needs=Needs(gpu=True))
    runs = [run_of(A, seed, seconds=1.0 + seed / 10) for seed in SEEDS] + [run_of(B, seed) for seed in SEEDS]
    found = evaluate(asked, CORRECTION, with_scores(runs), runs)
    assert (found["verdict"], found["obstacle"]) == ("not_testable", "gpu")
    assert found["detail"].startswith("the paper timed this with an accelerator, which these runs did not use. Mea")
    assert found["ci95_low"] < found["effect"] < found["ci95_high"], "what was measured is shown"
    assert "Other load is not recorded." in found["detail"], "and so is what must be known of it"
    for run in runs:
        run.manifest["hardware"]["gpu"] = "a GPU"
    assert evaluate(asked, CORRECTION, with_scores(runs), runs)["verdict"] == "supported"


@pytest.mark.parametrize(
    ("device", "topology", "used"),
    [
        ("auto", {}, True),
        ("cuda", {}, True),
        ("cpu", {}, False),
        ("cpu", {"inference": "central", "central": {"device": "learner"}}, False),
        ("cpu", {"inference": "central", "central": {"device": "cuda:1"}}, True),
        ("cpu", {"inference": "local", "central": {"device": "cuda:1"}}, False),
    ],
)
def test_a_run_on_the_cpus_of_a_machine_with_a_gpu_is_no_run_on_a_gpu(
    device: str, topology: dict[str, Any], used: bool
) -> None:
    asked = claim(metric="frames_per_second", smallest_effect=0.0, needs=Needs(gpu=True))
    base = [run_of(A, seed, seconds=1.0 + seed / 10) for seed in SEEDS] + [run_of(B, seed) for seed in SEEDS]
    runs = []
    for run in base:
        config = {**run.config, "device": device, "topology": {**run.config.get("topology", {}), **topology}}
        hardware = {**run.manifest["hardware"], "gpu": "a GPU"}
        runs.append(replace(run, manifest={**run.manifest, "config": config, "hardware": hardware}))
    found = evaluate(asked, CORRECTION, with_scores(runs), runs)
    assert (found["verdict"] == "supported") == used
    assert (found.get("obstacle") == "gpu") != used
    assert ("a GPU (not used)" in found["detail"]) != used


def test_a_timed_claim_on_serial_runs_says_what_cannot_show() -> None:
    runs = []
    for name, at in ((A, 2), (B, 8)):
        for seed in SEEDS:
            run = with_workers(reaching(name, seed, at), 1, "serial")
            cpu = run.curves.assign(metric="cpu_seconds", value=run.curves["seconds"])
            runs.append(replace(run, curves=pd.concat([run.curves, cpu], ignore_index=True)))
    found = evaluate(claim(**TIMED), CORRECTION, with_scores(runs), runs)
    assert found["verdict"] == "supported"
    assert "In CPU seconds of one core each" in found["detail"]
    assert "took turns in one thread, so what a system gains by doing both at once does not show." in found["detail"]


def test_claims_that_were_tested_have_a_p_corrected_for_each_other() -> None:
    table = scores(
        {A: sample(0.9, 0.3, 3), B: sample(0.2, 0.3, 3), C: sample(0.4, 0.3, 3)}, experiment="x", origin="run"
    )
    table["experiment"] = "off_policy_correction"
    found = claims(PAPER, EXPERIMENTS, table, [])
    tested = found[found["p_decision"].notna()]
    assert len(tested) > 1
    lowest = tested.loc[tested["p_decision"].idxmin()]
    assert lowest["p_holm"] == pytest.approx(min(1.0, lowest["p_decision"] * len(tested)))
    assert found["p_holm"].notna().sum() == len(tested)
    assert set(tested["family"]) == {f"{len(tested)} claims of impala_2018 tested on run runs"}


def test_seeds_that_agree_more_closely_than_their_scores_are_known_do_not_decide_a_claim() -> None:
    """Three seeds each, 0.01 apart by luck: each score is a mean over versions of the parameters that differ by 0.3."""
    used = scores({A: [0.80, 0.81, 0.82], B: [0.60, 0.61, 0.62]}, "toy/catch", random=0.0)
    plain = evaluate(claim(worse=(B,)), CORRECTION, used, [])
    known = evaluate(claim(worse=(B,)), CORRECTION, used.assign(score_error=0.3), [])
    assert known["effect"] == pytest.approx(plain["effect"])
    assert plain["ci95_high"] - plain["ci95_low"] < 0.1
    half = stats.t.ppf(0.975, 4) * 0.3 * np.sqrt(2 / 3)
    assert (known["ci95_high"] - known["ci95_low"]) / 2 == pytest.approx(half)
    assert (plain["verdict"], known["verdict"]) == ("supported", "inconclusive")


def test_speeds_of_several_tasks_are_parts_of_each_tasks_largest_mean() -> None:
    """Else a task with many frames per second decides alone."""
    asked = claim(metric="frames_per_second", smallest_effect=0.1)
    found = []
    for quick in (1.0, 100.0):
        runs = []
        for name, slow, fast in ((A, 4.0, 3.0), (B, 2.0, 4.0)):
            for seed in SEEDS:
                for task, seconds in (("toy/catch", slow), ("toy/delayed", fast / quick)):
                    runs.append(on_task(run_of(name, seed, seconds=seconds * (1 + seed / 100)), task))
        found.append(evaluate(asked, CORRECTION, with_scores(runs), runs))
    for key in ("verdict", "effect", "ci95_low", "p"):
        assert found[0][key] == pytest.approx(found[1][key])
    assert found[0]["effect"] == pytest.approx((-0.5 + 0.25) / 2, rel=0.02)
    assert found[0]["effect_unit"].endswith("in parts of each task's scale")
    assert "A task's scale is the largest mean of a variant:" in found[0]["detail"]
    assert "The scale comes from the runs themselves." in found[0]["detail"]


def test_a_speed_on_one_task_has_a_share_of_the_largest_mean_as_its_smallest_effect() -> None:
    runs = [
        run_of(name, seed, seconds=seconds * (1 + seed / 100))
        for name, seconds in ((A, 2.0), (B, 4.0))
        for seed in SEEDS
    ]
    found = evaluate(claim(metric="frames_per_second", smallest_effect=0.1), CORRECTION, with_scores(runs), runs)
    assert found["supported_above"] == pytest.approx(0.1 * 2 * found["effect"], rel=0.02)
    assert "The scale comes from the runs themselves." in found["detail"]


@pytest.mark.parametrize(("random", "verdict"), [(0.0, "supported"), (-20.0, "supported"), (80.0, "contradicted_here")])
def test_what_may_be_lost_is_a_part_of_what_was_learned_above_random_play(random: float, verdict: str) -> None:
    kept = claim(kind="no_worse", better=None, worse=(), variants=(A,), than=B, margin=0.1, smallest_effect=0.0)
    found = evaluate(kept, CORRECTION, scores({A: sample(95, 1), B: sample(100, 1)}, random=random))
    assert found["verdict"] == verdict
    assert found["effect"] == pytest.approx((95 - random) / (100 - random))
    assert found["effect_unit"].endswith("of returns above random play")
    unknown = evaluate(kept, CORRECTION, scores({A: sample(95, 1), B: sample(100, 1)}, random=np.nan))
    assert (unknown["verdict"], unknown["obstacle"]) == ("inconclusive", "values")


def test_steps_between_returns_are_of_what_was_learned_above_random_play() -> None:
    asked = claim(kind="diminishing", better=None, worse=(), variants=(A, B, C), smallest_effect=0.01)
    finals = {A: sample(350.0, 1), B: sample(280.0, 1), C: sample(200.0, 1)}
    moved = {name: values - 150.0 for name, values in finals.items()}
    found = [
        evaluate(asked, CORRECTION, scores(each, random=random))["effect"]
        for each, random in ((finals, 0.0), (moved, -150.0))
    ]
    assert found[0] == pytest.approx(found[1]) == pytest.approx(280**2 / (350 * 200))
