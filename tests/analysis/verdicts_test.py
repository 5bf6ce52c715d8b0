"""Verdicts on cells and claims: each rule by an example, and error rates by simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from ddrl.analysis.claims import Contrast, contrast, evaluate
from ddrl.analysis.curves import RunData
from ddrl.analysis.experiments import load_experiments
from ddrl.analysis.paper import CellRule, Claim, load_paper
from ddrl.analysis.verdicts import changed_settings, decide, flags, seeds_needed

IMPALA = Path(__file__).parents[2] / "replications" / "impala_2018"
EXPERIMENTS = load_experiments(IMPALA)


def sample(mean: float, deviation: float, n: int = 5) -> np.ndarray[Any, np.dtype[np.float64]]:
    """n values with exactly this mean and standard deviation."""
    shape = np.linspace(-1, 1, n)
    return mean + deviation * shape / shape.std(ddof=1)


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        (sample(100, 2), "equivalent"),
        (sample(80, 2), "below"),
        (sample(120, 2), "above"),
        (sample(100, 30), "inconclusive"),
        (sample(107, 4), "consistent"),
        (sample(109.5, 1.0), "inconclusive"),
        (sample(100, 1, n=4), "inconclusive"),
        (sample(500, 1, n=4), "inconclusive"),
    ],
)
def test_verdicts_on_a_published_100_with_a_margin_of_10(ours: Any, verdict: str) -> None:
    assert decide(ours, 100.0, 10.0, 1, []).verdict == verdict


def test_a_hard_flag_leaves_no_verdict() -> None:
    found = decide(sample(100, 2), 100.0, 10.0, 1, ["reduced_budget(0.1)"])
    assert found.verdict == "not_comparable"
    assert "reduced_budget(0.1)" in found.detail


def test_an_inconclusive_verdict_says_how_many_seeds_would_do() -> None:
    assert decide(sample(100, 30), 100.0, 10.0, 1, []).seeds_needed == seeds_needed(30.0, 10.0)
    needed = seeds_needed(30.0, 10.0)
    half = [stats.t.ppf(0.95, n - 1) * 30.0 / np.sqrt(n) for n in (needed, needed - 1)]
    assert half[0] <= 10.0 < half[1]
    assert decide(sample(100, 2, n=3), 100.0, 10.0, 1, []).seeds_needed == 5


def test_equality_is_declared_by_mistake_in_at_most_5_percent_of_cases() -> None:
    generator = np.random.Generator(np.random.PCG64(3))
    draws = generator.normal(110.0, 4.0, size=(2000, 5))  # exactly at the margin
    assert np.mean([decide(row, 100.0, 10.0, 1, []).verdict == "equivalent" for row in draws]) < 0.06


RULE = CellRule({}, "atari", "shallow", "atari/{task}", "final_return", None, None, None)
ROW = {"statistic": "final", "seeds": 1, "digitised": False, "budget_frames": 200_000_000}


def atari_run(frames: int = 200_000_000, **changes: Any) -> RunData:
    config = EXPERIMENTS["atari"].paper_setting("shallow", "atari/pong") | {"seed": 1}
    for key, value in changes.items():
        config["hyperparameters"] = config["hyperparameters"] | {key: value}
    manifest = {"config": config, "env_frames": frames}
    return RunData("run", "impala_2018", "atari", "shallow", "atari/pong", 1, manifest, pd.DataFrame())


def found_flags(runs: list[RunData], *, rule: CellRule = RULE, experiment: str = "atari", **row: Any) -> list[str]:
    return flags(rule, ROW | row, runs, EXPERIMENTS[experiment], 0.99)


def test_a_run_with_the_papers_setting_and_budget_has_no_flag() -> None:
    assert found_flags([atari_run()]) == []


def test_flags_are_decided_from_budget_settings_and_what_the_cell_is() -> None:
    assert found_flags([atari_run(frames=400_000)]) == ["reduced_budget(0.002)"]
    assert found_flags([atari_run(batch_size=8)]) == ["changed_hyperparameters(batch_size)"]
    assert found_flags([atari_run()], statistic="mean_of_best_3_of_24", seeds=pd.NA) == [
        "published_best_of_k",
        "published_n_unknown",
    ]
    assert found_flags([atari_run()], digitised=True) == ["digitised"]
    assert found_flags([], experiment="off_policy_correction") == ["proxy_env"]


def test_flags_name_missing_games_fewer_actors_and_another_emulator() -> None:
    rule = CellRule({}, "atari", "shallow", None, "mean_human_normalised_score", 57, "ALE 0.12", 100)
    assert found_flags([atari_run()], rule=rule) == ["env_version_gap", "reduced_suite(1/57)", "fewer_actors(64/100)"]


def test_budget_and_bookkeeping_are_no_changed_settings() -> None:
    stated = {"env_frames": 10, "evaluation": {"episodes": 1}, "hyperparameters": {"a": 1.0, "b": {"c": None}}}
    ours = {"env_frames": 5, "evaluation": {"episodes": 9}, "hyperparameters": {"a": 1, "b": {"c": 2}}}
    assert changed_settings(ours, stated) == ["hyperparameters.b.c"]


def scores(values: dict[str, Any], environment: str = "toy/catch", frames: int = 1000) -> pd.DataFrame:
    rows = [
        {"variant": variant, "environment": environment, "seed": seed, "final_return": value, "env_frames": frames}
        for variant, column in values.items()
        for seed, value in enumerate(column)
    ]
    return pd.DataFrame(rows)


def claim(**changes: Any) -> Claim:
    base = next(item for item in load_paper(IMPALA).claims if item.name == "v_trace_over_no_correction")
    return Claim(**{**vars(base), **changes})


CORRECTION = EXPERIMENTS["off_policy_correction"]


@pytest.mark.parametrize(
    ("better", "worse", "verdict"),
    [
        (sample(0.9, 0.05, 3), sample(-0.5, 0.1, 3), "supported"),
        (sample(-0.5, 0.1, 3), sample(0.9, 0.05, 3), "contradicted"),
        (sample(0.9, 0.3, 3), sample(0.7, 0.3, 3), "inconclusive"),
        (sample(0.9, 0.001, 3), sample(0.89, 0.001, 3), "inconclusive"),
        (sample(0.9, 0.05, 2), sample(-0.5, 0.1, 3), "inconclusive"),
    ],
)
def test_an_ordering_is_decided_by_welchs_interval(better: Any, worse: Any, verdict: str) -> None:
    found = evaluate(claim(), CORRECTION, scores({"v_trace": better, "no_correction": worse}))
    assert found["verdict"] == verdict
    if len(better) == 3:
        expected = stats.ttest_ind(better, worse, equal_var=False).confidence_interval(0.95)
        assert (found["ci95_low"], found["ci95_high"]) == pytest.approx((expected.low, expected.high))


def test_a_claim_about_several_is_supported_only_if_each_comparison_is() -> None:
    both = claim(worse=("no_correction", "one_step_is"))
    table = {"v_trace": sample(0.9, 0.05), "no_correction": sample(-0.5, 0.05), "one_step_is": sample(0.9, 0.05)}
    assert evaluate(both, CORRECTION, scores(table))["verdict"] == "inconclusive"
    table["one_step_is"] = sample(0.5, 0.05)
    assert evaluate(both, CORRECTION, scores(table))["verdict"] == "supported"
    table["one_step_is"] = sample(1.3, 0.05)
    assert evaluate(both, CORRECTION, scores(table))["verdict"] == "contradicted"


def test_unequal_budgets_are_not_compared() -> None:
    table = pd.concat([scores({"v_trace": sample(1, 0.1)}), scores({"no_correction": sample(0, 0.1)}, frames=500)])
    found = evaluate(claim(), CORRECTION, table)
    assert found["verdict"] == "inconclusive"
    assert "budgets differ on toy/catch: 500 against 1,000 frames" in found["detail"]


def test_an_experiment_that_does_not_exist_yet_is_not_run() -> None:
    found = evaluate(claim(experiment="throughput"), None, scores({"v_trace": sample(1, 0.1)}))
    assert found == {"verdict": "not_run", "detail": "planned as experiment 'throughput'"}


def test_other_kinds_of_claims() -> None:
    table = scores({"v_trace": sample(9.0, 0.2), "one_step_is": sample(4.0, 0.2), "no_correction": sample(1.0, 0.2)})
    ratio = claim(kind="ratio", worse=("one_step_is",), threshold=2.0)
    assert evaluate(ratio, CORRECTION, table)["verdict"] == "supported"
    assert (
        evaluate(claim(kind="ratio", worse=("one_step_is",), threshold=3.0), CORRECTION, table)["verdict"]
        == "contradicted"
    )
    reach = claim(kind="at_least", better=None, worse=(), variants=("v_trace",), threshold=8.0)
    assert evaluate(reach, CORRECTION, table)["verdict"] == "supported"
    falling = claim(kind="monotone", better=None, worse=(), variants=("v_trace", "one_step_is", "no_correction"))
    assert evaluate(falling, CORRECTION, table)["verdict"] == "supported"
    rising = claim(kind="monotone", better=None, worse=(), variants=("no_correction", "one_step_is", "v_trace"))
    assert evaluate(rising, CORRECTION, table)["verdict"] == "contradicted"


def test_an_ordering_is_supported_by_mistake_in_at_most_5_percent_of_cases() -> None:
    generator = np.random.Generator(np.random.PCG64(5))
    mistakes = []
    for _ in range(1500):
        pairs = [(generator.normal(0, 1, 3), generator.normal(0, 3, 3)) for _ in range(2)]
        mistakes.append(contrast("a - b", pairs).verdict(0.0, 1) != "inconclusive")
    assert np.mean(mistakes) < 0.06


def test_groups_without_spread_have_a_point_for_an_interval() -> None:
    found = contrast("a - b", [(np.ones(3), np.zeros(3))])
    assert found == Contrast("a - b", 1.0, 0.0, found.freedom, pytest.approx(np.nan, nan_ok=True))
    assert found.interval() == (1.0, 1.0)
