"""Claims: each kind against scipy or a slow second spelling, with one planted example per verdict."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import optimize, stats

from ddrl.analysis.runs.run_data import RunData
from ddrl.analysis.statistics import claim_tests
from ddrl.analysis.statistics.claim_tests import (
    Contrast,
    difference,
    first_reached,
    near_best,
    over_settings,
    paired,
    ratio,
    shrinking,
)
from ddrl.analysis.statistics.significance import no_difference_power, seeds_for_no_difference
from ddrl.analysis.verdicts.claim_examination import Known, evaluate
from ddrl.analysis.verdicts.claim_values import setting_of
from ddrl.analysis.verdicts.claims import COLUMNS, claims
from ddrl.papers.claim_kinds import EARLY, EQUAL_TIME, EVALUATED
from ddrl.papers.experiments import load_experiments
from ddrl.papers.paper import Claim, Needs, load_paper

IMPALA = Path(__file__).parents[3] / "replications" / "impala_2018"
EXPERIMENTS = load_experiments(IMPALA)
CORRECTION = EXPERIMENTS["off_policy_correction"]
PAPER = load_paper(IMPALA)


def sample(mean: float, deviation: float, n: int = 5) -> np.ndarray[Any, np.dtype[np.float64]]:
    """n values with exactly this mean and standard deviation."""
    shape = np.linspace(-1, 1, n)
    return mean + deviation * shape / shape.std(ddof=1)


def scores(values: dict[str, Any], environment: str = "toy/catch", frames: int = 1000, **columns: Any) -> pd.DataFrame:
    rows = [
        {"variant": variant, "environment": environment, "seed": seed, "final_return": value, "env_frames": frames}
        for variant, column in values.items()
        for seed, value in enumerate(column)
    ]
    return pd.DataFrame(rows).assign(**{"random": math.nan, "human": math.nan} | columns)


def alone(found: Contrast, smallest: float = 0.0, number: int = 1) -> str:
    """What a comparison shows by its own p, as one of a number."""
    if found.p_supported(smallest) <= 0.05:
        return "supported"
    return "contradicted" if number * found.p_contradicted(smallest) <= 0.05 else "inconclusive"


def claim(**changes: Any) -> Claim:
    base = next(item for item in PAPER.claims if item.name == "v_trace_over_no_correction")
    return Claim(**{**vars(base), **changes})


@pytest.mark.parametrize(
    ("better", "worse", "verdict"),
    [
        (sample(0.9, 0.05, 3), sample(-0.5, 0.1, 3), "supported"),
        (sample(-0.5, 0.1, 3), sample(0.9, 0.05, 3), "contradicted_here"),
        (sample(0.9, 0.3, 3), sample(0.7, 0.3, 3), "inconclusive"),
        (sample(0.9, 0.001, 3), sample(0.89, 0.001, 3), "no_difference"),
        (sample(0.9, 0.05, 2), sample(-0.5, 0.1, 3), "inconclusive"),
    ],
)
def test_an_ordering_is_decided_by_welchs_interval(better: Any, worse: Any, verdict: str) -> None:
    found = evaluate(claim(), CORRECTION, scores({"v_trace": better, "no_correction": worse}))
    assert found["verdict"] == verdict
    if len(better) == 3:
        test = stats.ttest_ind(better, worse, equal_var=False)
        expected = test.confidence_interval(0.95)
        assert (found["ci95_low"], found["ci95_high"]) == pytest.approx((expected.low, expected.high))
        assert found["p"] == pytest.approx(test.pvalue)


def test_an_ordering_over_tasks_averages_their_differences() -> None:
    pairs = [(sample(3, 1, 4), sample(1, 2, 4)), (sample(10, 3, 5), sample(4, 1, 3))]
    found = difference("a - b", pairs)
    terms = [group.var(ddof=1) / len(group) / 4 for pair in pairs for group in pair]
    sizes = [len(group) - 1 for pair in pairs for group in pair]
    assert found.effect == pytest.approx((2 + 6) / 2)
    assert found.error == pytest.approx(math.sqrt(sum(terms)))
    assert found.freedom == pytest.approx(sum(terms) ** 2 / sum(t * t / n for t, n in zip(terms, sizes, strict=True)))


def test_a_claim_about_several_is_supported_only_if_each_comparison_is() -> None:
    both = claim(worse=("no_correction", "one_step_is"))
    table = {"v_trace": sample(0.9, 0.05), "no_correction": sample(-0.5, 0.05), "one_step_is": sample(0.9, 0.05)}
    assert evaluate(both, CORRECTION, scores(table))["verdict"] == "inconclusive"
    table["one_step_is"] = sample(0.5, 0.05)
    assert evaluate(both, CORRECTION, scores(table))["verdict"] == "supported"
    table["one_step_is"] = sample(1.3, 0.05)
    assert evaluate(both, CORRECTION, scores(table))["verdict"] == "contradicted_here"


def test_one_of_several_comparisons_contradicts_at_a_level_divided_by_their_number() -> None:
    found = difference("a - b", [(sample(0, 1, 4), sample(1.9, 1, 4))])
    assert alone(found) == "contradicted"
    assert alone(found, number=5) == "inconclusive"


def test_an_inconclusive_claim_says_how_many_seeds_the_smallest_effect_needs() -> None:
    table = scores({"v_trace": sample(0.9, 0.3, 3), "no_correction": sample(0.7, 0.3, 3)})
    found = evaluate(claim(smallest_effect=0.05), CORRECTION, table)
    needed = found["seeds_needed"]
    assert no_difference_power(needed, 0.3, 0.3, 0.05) >= 0.8 > no_difference_power(needed - 1, 0.3, 0.3, 0.05)
    assert (
        f"leans for the claim. About {needed} seeds a group would show no difference if there is none"
        in found["detail"]
    )
    less = scores({"v_trace": sample(0.7, 0.3, 3), "no_correction": sample(0.9, 0.3, 3)})
    other = evaluate(claim(smallest_effect=0.05), CORRECTION, less)
    assert other["seeds_needed"] == needed, "it does not depend on the observed effect"
    assert "leans against the claim" in other["detail"]
    assert evaluate(claim(smallest_effect=0.01), CORRECTION, table)["seeds_needed"] is None  # over 1000
    assert evaluate(claim(), CORRECTION, scores({"v_trace": [1.0], "no_correction": [0.0]}))["seeds_needed"] == 3
    decided = scores({"v_trace": sample(0.9, 0.05), "no_correction": sample(0.1, 0.05)})
    assert "seeds_needed" not in evaluate(claim(), CORRECTION, decided)


def test_the_seeds_needed_by_several_comparisons_are_those_of_the_most_demanding() -> None:
    v_trace, easy, hard = sample(0.9, 0.3, 3), sample(0.3, 0.1, 3), sample(0.7, 0.3, 3)
    both = evaluate(
        claim(worse=("no_correction", "one_step_is"), smallest_effect=0.1),
        CORRECTION,
        scores({"v_trace": v_trace, "no_correction": easy, "one_step_is": hard}),
    )
    assert both["seeds_needed"] == seeds_for_no_difference(0.3, 0.3, 0.1, alpha=0.05 / 2)


def test_unequal_budgets_are_not_compared() -> None:
    table = pd.concat([scores({"v_trace": sample(1, 0.1)}), scores({"no_correction": sample(0, 0.1)}, frames=500)])
    found = evaluate(claim(), CORRECTION, table)
    assert found["verdict"] == "inconclusive"
    assert "budgets differ on toy/catch: 500 against 1,000 frames" in found["detail"]
    nearly = pd.concat([scores({"v_trace": sample(1, 0.1)}), scores({"no_correction": sample(0, 0.1)}, frames=995)])
    assert evaluate(claim(), CORRECTION, nearly)["verdict"] == "supported"


def test_variants_that_are_held_against_a_number_may_have_budgets_of_their_own() -> None:
    variants = ("v_trace", "no_correction")
    reach = claim(kind="at_least", better=None, worse=(), variants=variants, threshold=0.5)
    ends = [scores({"v_trace": sample(1, 0.1)}), scores({"no_correction": sample(1, 0.1)}, frames=500)]
    table = pd.concat(ends, ignore_index=True)
    assert evaluate(reach, CORRECTION, table)["verdict"] == "supported"
    table.loc[table.index[table["variant"] == "v_trace"][0], "env_frames"] = 700
    assert "budgets differ on toy/catch: 700 against 1,000" in evaluate(reach, CORRECTION, table)["detail"]


def test_an_experiment_that_does_not_exist_yet_is_not_run() -> None:
    found = evaluate(claim(experiment="throughput"), None, scores({"v_trace": sample(1, 0.1)}))
    assert found == {"verdict": "not_run", "detail": "planned as experiment 'throughput'"}


def test_a_missing_group_is_named() -> None:
    found = evaluate(claim(), CORRECTION, scores({"v_trace": sample(1, 0.1)}))
    assert found["verdict"] == "not_run"
    assert "no task was run with both v_trace and no_correction" in found["detail"]


def test_a_metric_without_references_is_no_verdict() -> None:
    table = scores({"v_trace": sample(1, 0.1), "no_correction": sample(0, 0.1)}, human_normalised_score=math.nan)
    found = evaluate(claim(metric="human_normalised_score"), CORRECTION, table)
    assert (found["verdict"], found["obstacle"]) == ("inconclusive", "values")
    assert found["detail"].startswith("a task has no random and human score.")


def test_a_threshold_is_compared_with_a_one_sample_interval() -> None:
    values = sample(9.0, 0.2)
    reach = claim(kind="at_least", better=None, worse=(), variants=("v_trace",), threshold=8.0)
    found = evaluate(reach, CORRECTION, scores({"v_trace": values}))
    expected = stats.ttest_1samp(values, 8.0)
    assert found["verdict"] == "supported"
    assert found["p"] == pytest.approx(expected.pvalue)
    assert found["ci95_low"] + 8.0 == pytest.approx(expected.confidence_interval(0.95).low)
    for threshold, verdict in ((9.0, "inconclusive"), (10.0, "contradicted_here")):
        short = claim(kind="at_least", better=None, worse=(), variants=("v_trace",), threshold=threshold)
        assert evaluate(short, CORRECTION, scores({"v_trace": values}))["verdict"] == verdict


def test_a_threshold_that_the_paper_does_not_print_is_said_to_be_ours() -> None:
    reach = claim(kind="at_least", better=None, worse=(), variants=("v_trace",), threshold=0.9)
    table = scores({"v_trace": sample(0.99, 0.01)})
    assert "The threshold is ours" not in evaluate(reach, CORRECTION, table)["detail"]
    found = evaluate(replace(reach, threshold_from="nine tenths of the best return."), CORRECTION, table)
    assert found["verdict"] == "supported"
    assert found["detail"].endswith(" The threshold is ours: nine tenths of the best return.")


def test_a_number_over_all_tasks_is_not_decided_on_a_few_of_them() -> None:
    changes: dict[str, Any] = {"kind": "at_least", "better": None, "worse": (), "variants": ("v_trace",)}
    whole = claim(**changes, metric="median_human_normalised_score", threshold=10.0, needs=Needs(tasks=2))
    one = scores({"v_trace": sample(1, 0.1)}, human_normalised_score=0.5)
    assert "1 of the 2 tasks" in evaluate(whole, CORRECTION, one)["detail"]
    two = pd.concat([one, scores({"v_trace": sample(1, 0.1)}, "toy/delayed", human_normalised_score=0.7)])
    found = evaluate(whole, CORRECTION, two)
    assert (found["verdict"], found["effect"], found["seeds"]) == ("supported", pytest.approx(50.0), 5)


def test_one_seed_has_an_effect_and_no_interval() -> None:
    found = evaluate(claim(), CORRECTION, scores({"v_trace": [0.9], "no_correction": [0.2, 0.4]}))
    assert (found["verdict"], found["obstacle"]) == ("inconclusive", "seeds")
    assert found["effect"] == pytest.approx(0.6)
    assert "ci95_low" not in found
    assert "1 seed a group; a test needs at least 3. Measured: V-trace against No correction" in found["detail"]


def test_a_falling_order_is_a_chain_of_differences() -> None:
    table = scores({"v_trace": sample(9.0, 0.2), "one_step_is": sample(4.0, 0.2), "no_correction": sample(1.0, 0.2)})
    falling = claim(kind="monotone", better=None, worse=(), variants=("v_trace", "one_step_is", "no_correction"))
    found = evaluate(falling, CORRECTION, table)
    assert (found["verdict"], found["effect"]) == ("supported", pytest.approx(3.0))
    rising = claim(kind="monotone", better=None, worse=(), variants=("no_correction", "one_step_is", "v_trace"))
    assert evaluate(rising, CORRECTION, table)["verdict"] == "contradicted_here"
    flat = scores({"v_trace": sample(9.0, 0.2), "one_step_is": sample(9.0, 0.2), "no_correction": sample(1.0, 0.2)})
    assert evaluate(falling, CORRECTION, flat)["verdict"] == "inconclusive"


def test_a_ratio_is_shown_as_a_ratio_with_its_interval_and_decided_against_its_threshold() -> None:
    table = scores({"v_trace": sample(9.0, 0.2), "one_step_is": sample(4.0, 0.2)})
    table = table.assign(human_normalised_score=table["final_return"])
    changes: dict[str, Any] = {"kind": "ratio", "worse": ("one_step_is",), "smallest_effect": 0.0}
    changes["metric"] = "human_normalised_score"
    for threshold, verdict in ((2.0, "supported"), (2.25, "inconclusive"), (3.0, "contradicted_here")):
        found = evaluate(claim(**changes, threshold=threshold), CORRECTION, table)
        assert found["verdict"] == verdict
        assert found["effect"] == pytest.approx(2.25)
        assert found["ci95_low"] < 2.25 < found["ci95_high"]
        side = {"supported": "above", "contradicted_here": "below"}.get(verdict)
        assert side is None or f"the interval lies {side} {threshold:g} times the other's" in found["detail"]


def test_the_interval_of_a_ratio_is_the_delta_methods_and_close_to_fiellers() -> None:
    a, b = sample(30.0, 1.5, 6), sample(10.0, 0.8, 5)
    found = ratio("a / b", [(a, b)], 1.0)
    parts = [(group.std(ddof=1) / group.mean()) ** 2 / len(group) for group in (a, b)]
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / 5 + parts[1] ** 2 / 4)
    half = stats.t.ppf(0.975, freedom) * math.sqrt(sum(parts))
    assert found.shown() == pytest.approx((3.0, 3 * math.exp(-half), 3 * math.exp(half)))

    def edge(r: float) -> float:  # Fieller: |mean(a) - r mean(b)| = t times its standard error
        error = math.sqrt(a.var(ddof=1) / 6 + r * r * b.var(ddof=1) / 5)
        return abs(a.mean() - r * b.mean()) - stats.t.ppf(0.975, freedom) * error

    fieller = (optimize.brentq(edge, 1.0, 3.0), optimize.brentq(edge, 3.0, 6.0))
    assert found.shown()[1:] == pytest.approx(fieller, rel=0.02)


def test_the_interval_of_a_ratio_holds_the_true_ratio_as_often_as_it_says() -> None:
    generator = np.random.Generator(np.random.PCG64(11))
    inside = []
    for _ in range(1500):
        found = ratio("a / b", [(generator.normal(30, 3, 4), generator.normal(10, 1.5, 4))], 1.0)
        inside.append(found.shown()[1] <= 3.0 <= found.shown()[2])
    assert 0.93 < np.mean(inside) < 0.98


def test_a_ratio_of_scores_that_are_not_positive_is_no_verdict() -> None:
    table = scores({"v_trace": sample(9.0, 0.2), "one_step_is": sample(-4.0, 0.2)})
    table = table.assign(human_normalised_score=table["final_return"])
    asked = claim(kind="ratio", metric="human_normalised_score", worse=("one_step_is",), threshold=2.0)
    found = evaluate(asked, CORRECTION, table)
    assert (found["verdict"], found["obstacle"]) == ("inconclusive", "values")
    assert found["detail"].startswith("a ratio needs positive means.")
    with pytest.raises(ValueError, match="positive"):
        ratio("a / b", [(sample(1, 0.1), sample(-1, 0.1))], 1.0)


def run_of(
    variant: str, seed: int, *, returns: Any = (), frames: int = 1000, seconds: float = 10.0, **hyperparameters: Any
) -> RunData:
    """A run on Catch whose training return is recorded at equal distances."""
    grid = np.linspace(frames / max(len(returns), 1), frames, len(returns)).astype(np.int64)
    curves = pd.DataFrame(
        {"env_frames": grid, "seconds": grid * seconds / frames, "metric": "episode_return", "value": returns}
    )
    config = {"environment": {"name": "toy/catch"}, "seed": seed, "hyperparameters": hyperparameters}
    hardware = {"cpu": "one", "cores": 2, "memory_gib": 8.0, "gpu": None}
    manifest = {"config": config, "env_frames": frames, "seconds": seconds, "hardware": hardware}
    return RunData("run", "impala_2018", "off_policy_correction", variant, "toy/catch", seed, manifest, curves)


def with_scores(runs: list[RunData], finals: Any = 0.0) -> pd.DataFrame:
    values = np.broadcast_to(finals, len(runs))
    rows = [
        {
            "variant": run.variant,
            "environment": run.environment,
            "seed": run.seed,
            "final_return": float(value),
            "env_frames": run.manifest["env_frames"],
        }
        for run, value in zip(runs, values, strict=True)
    ]
    return pd.DataFrame(rows).assign(random=math.nan, human=math.nan)


def test_frames_per_second_come_from_the_manifests_and_need_no_equal_budgets() -> None:
    fast = [run_of("v_trace", seed, frames=3000, seconds=1.0 + 0.01 * seed) for seed in range(3)]
    slow = [run_of("no_correction", seed, frames=1000, seconds=10.0 + 0.1 * seed) for seed in range(3)]
    times = claim(kind="ratio", metric="frames_per_second", threshold=20.0)
    found = evaluate(times, CORRECTION, with_scores(fast + slow), fast + slow)
    assert found["verdict"] == "supported"
    assert found["effect"] == pytest.approx(30.0, rel=1e-3)
    assert "All on one, 2 cores, 8 GiB, no GPU. Other load is not recorded." in found["detail"]


@pytest.mark.parametrize(
    ("kind", "metric"), [("ratio", "frames_per_second"), ("time_to_reach", "seconds"), ("ordering", EQUAL_TIME)]
)
def test_times_on_different_hardware_decide_nothing(kind: str, metric: str) -> None:
    runs = [
        reaching(name, seed, 2 + 6 * (name != "v_trace")) for name in ("v_trace", "no_correction") for seed in range(3)
    ]
    timed = claim(kind=kind, metric=metric, threshold=0.5, smallest_effect=0.0)
    assert evaluate(timed, CORRECTION, with_scores(runs), runs)["detail"].endswith("Other load is not recorded.")
    faster = {**runs[0].manifest["hardware"], "cpu": "another"}
    begun_elsewhere = {"history": [{"hardware": faster}, {"hardware": runs[0].manifest["hardware"]}]}
    for change in ({"hardware": faster}, begun_elsewhere):
        moved = [replace(run, manifest={**run.manifest, **change}) for run in runs[:3]] + runs[3:]
        found = evaluate(timed, CORRECTION, with_scores(moved), moved)
        assert found["verdict"] == "inconclusive"
        assert found["detail"].startswith("times on different hardware")
    frames = claim(kind="time_to_reach", metric="env_frames", threshold=0.5, smallest_effect=0.0)
    assert evaluate(frames, CORRECTION, with_scores(moved), moved)["verdict"] == "supported"


def test_a_timed_claim_says_how_many_of_its_runs_went_side_by_side() -> None:
    times = [("10:00", "10:20"), ("10:10", "10:30"), ("10:20", "10:40")]
    runs = []
    for name in ("v_trace", "no_correction"):
        for seed, (begin, end) in enumerate(times):
            one = reaching(name, seed, 2 if name == "v_trace" else 8)
            day = "2026-01-01" if name == "v_trace" else "2026-01-02"
            spent = {"started": f"{day}T{begin}:00+00:00", "finished": f"{day}T{end}:00+00:00"}
            runs.append(replace(one, manifest={**one.manifest, **spent}))
    timed = claim(kind="time_to_reach", metric="seconds", threshold=0.5, smallest_effect=0.0)
    assert (
        "; up to 2 of these runs went side by side." in evaluate(timed, CORRECTION, with_scores(runs), runs)["detail"]
    )


def test_returns_at_an_equal_time_are_those_when_the_fastest_run_ends() -> None:
    rising = np.linspace(0.0, 1.0, 11)
    runs = [run_of("v_trace", seed, returns=rising, seconds=10.0) for seed in range(3)]
    runs += [run_of("no_correction", seed, returns=rising, seconds=20.0 + seed) for seed in range(3)]
    timed = claim(metric=EQUAL_TIME, smallest_effect=0.0)
    found = evaluate(timed, CORRECTION, with_scores(runs), runs)
    assert found["verdict"] == "supported"
    values = []
    for run in runs:  # the last tenth of the first ten seconds, point by point
        clock = run.curves["seconds"].to_numpy()
        values.append(np.mean([np.interp(second, clock, rising) for second in np.linspace(9, 10, 1001)]))
    assert found["effect"] == pytest.approx(np.mean(values[:3]) - np.mean(values[3:]), abs=1e-3)
    assert found["effect"] > 0.4


def test_evaluations_during_training_are_averaged_over_frames_whatever_the_training_returns_are() -> None:
    """Two episodes at 0 frames, one at 400 and one at 1000: straight lines between their means."""
    runs = []
    for name, height in (("v_trace", 1.0), ("no_correction", 0.5)):
        for seed in range(3):
            one = run_of(name, seed, returns=[-height] * 5)
            at = np.array([0, 0, 400, 1000])
            value = np.array([0.0, 0.2, 0.5, 1.0]) * (height + 0.01 * seed)
            added = pd.DataFrame({"env_frames": at, "seconds": at / 100, "metric": "evaluation_return", "value": value})
            runs.append(replace(one, curves=pd.concat([one.curves, added], ignore_index=True)))
    found = evaluate(claim(metric=EVALUATED, smallest_effect=0.0), CORRECTION, with_scores(runs), runs)
    assert found["verdict"] == "supported"
    mean = 0.4 * (0.1 + 0.5) / 2 + 0.6 * (0.5 + 1.0) / 2
    assert found["effect"] == pytest.approx(0.5 * mean)


@pytest.mark.parametrize(
    ("early", "verdict"), [(0.95, "supported"), (0.5, "contradicted_here"), (math.nan, "inconclusive")]
)
def test_the_share_of_the_final_return_that_is_there_early_is_compared_with_a_number(
    early: float, verdict: str
) -> None:
    """After a tenth of 1000 frames, halfway between evaluations at 50 and 150; the final return is 2."""
    runs = []
    for seed in range(5):
        one = run_of("v_trace", seed, returns=[9.0] * 5)
        at = np.array([50, 150, 1000] if early == early else [150, 1000])
        value = np.array([early - 0.05, early + 0.05, 1.0] if early == early else [1.0, 1.0]) * 2.0
        value[:-1] += 0.01 * seed
        added = pd.DataFrame({"env_frames": at, "seconds": at / 100, "metric": "evaluation_return", "value": value})
        runs.append(replace(one, curves=pd.concat([one.curves, added], ignore_index=True)))
    wanted = claim(
        kind="at_least", metric=EARLY, part=0.1, variants=("v_trace",), threshold=0.9, better=None, worse=(),
        smallest_effect=0.0,
    )  # fmt: skip
    found = evaluate(wanted, CORRECTION, with_scores(runs), runs)
    assert found["verdict"] == verdict, found["detail"]


@pytest.mark.parametrize(
    ("own", "verdict"),
    [(sample(95, 2), "supported"), (sample(80, 2), "contradicted_here"), (sample(91, 8), "inconclusive")],
)
def test_no_worse_asks_whether_no_more_than_the_margin_is_lost(own: Any, verdict: str) -> None:
    kept = claim(kind="no_worse", better=None, worse=(), variants=("v_trace",), than="no_correction", margin=0.1)
    kept = replace(kept, smallest_effect=0.0)
    found = evaluate(kept, CORRECTION, scores({"v_trace": own, "no_correction": sample(100, 2)}, random=0.0))
    assert found["verdict"] == verdict
    assert found["effect"] == pytest.approx(own.mean() / 100)
    assert "V-trace against No correction" in found["detail"]
    same = ratio("a / b", [(own, sample(100, 2))], 0.9)
    assert (found["ci95_low"], found["ci95_high"]) == pytest.approx(same.shown()[1:])


def test_no_worse_of_several_needs_each_of_them() -> None:
    table = scores(
        {"v_trace": sample(99, 1), "one_step_is": sample(50, 1), "no_correction": sample(100, 1)}, random=0.0
    )
    both = claim(
        smallest_effect=0.0,
        kind="no_worse",
        better=None,
        worse=(),
        variants=("v_trace", "one_step_is"),
        than="no_correction",
        margin=0.2,
    )
    found = evaluate(both, CORRECTION, table)
    assert found["verdict"] == "contradicted_here"
    assert found["effect"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("means", "verdict"),
    [
        ((350, 280, 200, 100), "supported"),
        ((800, 400, 200, 100), "inconclusive"),
        ((1600, 350, 180, 150), "contradicted_here"),
    ],
)
def test_diminishing_asks_whether_each_step_is_a_smaller_factor(means: Any, verdict: str) -> None:
    names = ("v_trace", "one_step_is", "epsilon_correction", "no_correction")
    table = scores({name: sample(mean, 0.01 * mean) for name, mean in zip(names, means, strict=True)}, random=0.0)
    less = claim(kind="diminishing", better=None, worse=(), variants=names, smallest_effect=0.0)
    found = evaluate(less, CORRECTION, table)
    assert found["verdict"] == verdict
    a, b, c, d = means
    assert found["effect"] == pytest.approx(min(b * b / (a * c), c * c / (b * d)))
    assert found["comparisons"].count("the step from") == 2


def test_the_interval_of_a_shrinking_step_is_the_delta_methods() -> None:
    a, b, c = sample(30, 2, 4), sample(20, 1, 5), sample(10, 1, 3)
    found = shrinking("b b / a c", [(a, b, c)])
    parts = [w * g.var(ddof=1) / g.mean() ** 2 / len(g) for w, g in ((1, a), (4, b), (1, c))]
    freedom = sum(parts) ** 2 / sum(part**2 / (len(g) - 1) for part, g in zip(parts, (a, b, c), strict=True))
    half = stats.t.ppf(0.975, freedom) * math.sqrt(sum(parts))
    assert found.shown() == pytest.approx([400 / 300 * math.exp(step) for step in (0, -half, half)])
    with pytest.raises(ValueError, match="positive"):
        shrinking("b b / a c", [(a, b, sample(-1, 0.1))])


def reaching(variant: str, seed: int, at: int | None, **options: Any) -> RunData:
    """Ten records; the return is 1 from record `at` on (1 to 10), never for None."""
    returns = [1.0 if at is not None and record >= at else 0.0 for record in range(1, 11)]
    return run_of(variant, seed, returns=returns, **options)


MILESTONE = Known(milestones={"toy/catch": 0.9})
TIME: dict[str, Any] = {"kind": "time_to_reach", "metric": "env_frames", "threshold": 0.5, "smallest_effect": 0.0}


def decide_times(better: list[int | None], worse: list[int | None], **changes: Any) -> dict[str, Any]:
    runs = [reaching("v_trace", seed, at) for seed, at in enumerate(better)]
    runs += [reaching("no_correction", seed, at) for seed, at in enumerate(worse)]
    return evaluate(claim(**{**TIME, **changes}), CORRECTION, with_scores(runs), runs)


@pytest.mark.parametrize(
    ("better", "worse", "verdict"),
    [
        ([2, 3, 2, 3], [8, 9, 8, 9], "supported"),
        ([8, 9, 8, 9], [2, 3, 2, 3], "contradicted_here"),
        ([2, 9, 3, 8], [4, 7, 3, 9], "inconclusive"),
        ([2, 3, 2, 3], [None, None, None, None], "supported"),
        ([None, None, None], [None, None, None], "inconclusive"),
        ([2, 3], [8, 9], "inconclusive"),
    ],
)
def test_reaching_a_return_earlier_is_decided_by_restricted_means(better: Any, worse: Any, verdict: str) -> None:
    found = decide_times(better, worse)
    assert found["verdict"] == verdict
    if len(better) > 2:
        times = [np.array([1000.0 if at is None else 100.0 * at for at in group]) for group in (worse, better)]
        if set(better) | set(worse) == {None}:
            assert "effect" not in found
            assert "no run reached the return while both were watched" in found["detail"]
            return
        assert found["effect"] == pytest.approx(100 * (1 - times[1].mean() / times[0].mean()))
        low, high = ratio("worse / better", [(times[0], times[1])], 1.0).shown()[1:]
        assert (found["ci95_low"], found["ci95_high"]) == pytest.approx((100 * (1 - 1 / low), 100 * (1 - 1 / high)))


def test_the_restricted_mean_is_the_area_under_the_curve_of_runs_still_on_their_way() -> None:
    times, horizon = np.array([200.0, 400.0, np.inf, 300.0]), 1000.0
    grid = np.arange(0, 1000)
    still_going = [(times > moment).mean() for moment in grid]  # Kaplan-Meier without losses before the horizon
    assert np.minimum(times, horizon).mean() == pytest.approx(np.sum(still_going))


def test_seconds_are_cut_where_the_shortest_run_ends() -> None:
    runs = [reaching("v_trace", seed, 2, seconds=10.0) for seed in range(3)]
    runs += [reaching("no_correction", seed, None, seconds=30.0) for seed in range(3)]
    found = evaluate(claim(**TIME | {"metric": "seconds"}), CORRECTION, with_scores(runs), runs)
    assert found["effect"] == pytest.approx(100 * (10.0 - 2.0) / 10.0)


def test_without_a_threshold_the_milestone_of_the_task_is_the_return_to_reach() -> None:
    runs = [reaching(variant, seed, 3) for variant in ("v_trace", "no_correction") for seed in range(3)]
    asked = claim(**TIME | {"threshold": None})
    table = with_scores(runs)
    assert evaluate(asked, CORRECTION, table, runs, MILESTONE)["effect"] == pytest.approx(0.0)
    assert evaluate(asked, CORRECTION, table, runs)["detail"].startswith("a task has no return to reach.")


def test_a_task_without_a_milestone_may_have_a_part_of_the_way_to_its_reference_score_as_return_to_reach() -> None:
    runs = [reaching("v_trace", seed, 2) for seed in range(3)]
    runs += [reaching("no_correction", seed, 8) for seed in range(3)]
    table = with_scores(runs).assign(random=-0.5, human=2.0)  # the return is 0, then 1
    found = {
        part: evaluate(claim(**TIME | {"threshold": None}, reference_part=part), CORRECTION, table, runs)
        for part in (0.1, 0.5, 0.7)
    }
    assert found[0.1]["effect"] == pytest.approx(0.0)  # -0.25 is there from the first record
    assert found[0.5]["effect"] == pytest.approx(75.0)  # 0.75
    assert "Returns to reach, as the mean of 20 episodes or more: 0.75 on catch." in found[0.5]["detail"]
    assert "no run reached the return" in found[0.7]["detail"]  # 1.25
    stated = evaluate(claim(**TIME | {"threshold": None}, reference_part=0.7), CORRECTION, table, runs, MILESTONE)
    assert stated["effect"] == pytest.approx(75.0)  # the milestone goes before


def test_the_first_record_at_the_threshold_counts_also_where_the_return_falls_again() -> None:
    returns = pd.DataFrame({"env_frames": [30, 10, 20], "seconds": [3.0, 1.0, 2.0], "value": [0.0, 0.2, 0.9]})
    assert first_reached(returns, 0.9, "env_frames") == 20
    assert first_reached(returns, 0.2, "seconds") == 1.0
    assert first_reached(returns, 1.0, "env_frames") == math.inf


KEYS = ("hyperparameters.optimizer.learning_rate", "hyperparameters.entropy_cost")
STABLE: dict[str, Any] = {"kind": "stability", "settings": KEYS, "statistic": "area", "smallest_effect": 0.01}


def sweep(values: dict[str, list[float]]) -> tuple[list[RunData], pd.DataFrame]:
    """One run per variant and setting; position i is the same setting for all, a variant of its own in the sweep."""
    runs, finals = [], []
    for variant, column in values.items():
        for index, value in enumerate(column):
            rate = {"learning_rate": 1e-4 * (index + 1)}
            runs.append(run_of(f"{variant}__s{index:02d}", 1, optimizer=rate, entropy_cost=0.01))
            finals.append(value)
    return runs, with_scores(runs, finals)


def decide_sweep(values: dict[str, list[float]], **changes: Any) -> dict[str, Any]:
    runs, table = sweep(values)
    return evaluate(claim(**{**STABLE, **changes}), CORRECTION, table, runs)


LADDER = [0.1, 0.3, 0.2, 0.6, 0.5, 0.9, 0.4, 0.8]


@pytest.mark.parametrize(
    ("better", "verdict"),
    [
        ([value + 0.3 + 0.01 * (index % 2) for index, value in enumerate(LADDER)], "supported"),
        ([value - 0.3 + 0.01 * (index % 2) for index, value in enumerate(LADDER)], "contradicted_here"),
        (LADDER[::-1], "inconclusive"),
    ],
)
def test_stability_compares_the_areas_under_sorted_scores_setting_by_setting(better: Any, verdict: str) -> None:
    found = decide_sweep({"v_trace": better, "no_correction": LADDER})
    steps = [sum(sorted(column)[rank] * (1 / 8) for rank in range(8)) for column in (better, LADDER)]
    test = stats.ttest_rel(better, LADDER)
    assert found["verdict"] == verdict
    assert found["effect"] == pytest.approx(steps[0] - steps[1])
    assert (found["ci95_low"], found["ci95_high"]) == pytest.approx(tuple(test.confidence_interval(0.95)))
    assert found["p"] == pytest.approx(test.pvalue)


def test_stability_can_compare_the_part_of_settings_near_the_best() -> None:
    values = {"v_trace": [0.9, 0.8, 1.0, 0.95, 0.9, 0.2], "no_correction": [0.9, 0.1, 0.2, 0.1, 0.3, 0.2]}
    found = decide_sweep(values, statistic="near_best", within=0.25)
    near = [[float(value >= 1.0 - 0.25) for value in column] for column in values.values()]
    assert found["effect"] == pytest.approx(5 / 6 - 1 / 6)
    assert found["p"] == pytest.approx(stats.ttest_rel(*near).pvalue)
    assert found["verdict"] == "supported"


def test_the_best_is_the_best_of_all_variants_on_each_task() -> None:
    table = pd.DataFrame({"environment": ["a", "a", "b", "b"], "value": [1.0, 0.4, 5.0, 4.8]})
    assert list(near_best(table, 0.5)["value"]) == [1.0, 0.0, 1.0, 1.0]


def test_a_setting_is_what_the_named_keys_are_in_the_configuration() -> None:
    config = {"seed": 3, "hyperparameters": {"optimizer": {"learning_rate": 0.0006}, "entropy_cost": 0.01}}
    assert setting_of(config, KEYS) == "optimizer.learning_rate=0.0006, entropy_cost=0.01"
    assert setting_of(config, ["hyperparameters.absent"]) == "absent=None"


def test_settings_that_one_variant_lacks_are_left_out_and_too_few_are_no_test() -> None:
    found = decide_sweep({"v_trace": [*LADDER, 9.0], "no_correction": LADDER})
    assert found["effect"] == pytest.approx(0.0)
    few = decide_sweep({"v_trace": LADDER, "no_correction": LADDER[:4]})
    assert (few["verdict"], few["seeds_needed"]) == ("inconclusive", None)
    assert few["detail"].startswith("4 settings in common; a test needs at least 5.")


def test_seeds_of_a_setting_are_averaged_before_settings_are_compared() -> None:
    rows = [
        {"variant": variant, "setting": setting, "environment": task, "seed": seed, "value": 10 * position + seed}
        for position, variant in enumerate(("a", "b"))
        for setting, task, seed in itertools.product(("s", "t"), ("x", "y"), (0, 1))
    ]
    grid = over_settings(pd.DataFrame(rows))
    assert grid.loc["s"].to_dict() == {"a": 0.5, "b": 10.5}
    lacking = pd.DataFrame(
        [row for row in rows if (row["variant"], row["setting"], row["environment"]) != ("a", "t", "y")]
    )
    assert math.isnan(over_settings(lacking).loc["t", "a"])


def test_an_open_stability_claim_asks_for_settings_and_not_for_seeds() -> None:
    noisy = [value + 0.3 * (-1) ** index + 0.06 for index, value in enumerate(LADDER)]
    found = decide_sweep({"v_trace": noisy, "no_correction": LADDER}, smallest_effect=0.05)
    assert found["verdict"] == "inconclusive"
    assert f"About {found['seeds_needed']} settings would show no difference" in found["detail"]


def test_an_ordering_is_supported_by_mistake_in_at_most_5_percent_of_cases() -> None:
    generator = np.random.Generator(np.random.PCG64(5))
    mistakes = []
    for _ in range(1500):
        pairs = [(generator.normal(0, 1, 3), generator.normal(0, 3, 3)) for _ in range(2)]
        mistakes.append(alone(difference("a - b", pairs)) != "inconclusive")
    assert np.mean(mistakes) < 0.06


def test_groups_without_spread_have_a_point_for_an_interval() -> None:
    found = difference("a - b", [(np.ones(3), np.zeros(3))])
    assert found.interval() == (1.0, 1.0)
    assert (found.p(), alone(found, 0.5)) == (0.0, "supported")
    assert paired("a - b", np.ones(5), np.ones(5)).p() == 1.0
    assert isinstance(found, Contrast)


def test_the_table_has_a_row_for_each_claim_and_names_what_it_waits_for() -> None:
    table = claims(PAPER, EXPERIMENTS, with_scores([run_of("v_trace", 1)]).assign(experiment="x", origin="run"), [])
    assert list(table.columns) == COLUMNS
    assert list(table["claim"]) == [item.name for item in PAPER.claims]
    assert set(table["verdict"]) == {"not_run"}
    waiting = table[~table["experiment"].isin(EXPERIMENTS)]
    assert (waiting["detail"] == [f"planned as experiment '{name}'" for name in waiting["experiment"]]).all()


def test_every_kind_of_claim_is_documented_and_has_a_test_here() -> None:
    from ddrl.analysis.verdicts import claims as module
    from ddrl.papers.claim_kinds import KIND_METRICS

    assert module.__doc__ is not None and claim_tests.__doc__ is not None
    assert all(f"    {kind} " in module.__doc__ for kind in KIND_METRICS)
