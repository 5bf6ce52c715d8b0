"""IMPALA's own tables: ratios to A3C by hand, beside those of Table 1."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest

from ddrl.papers.own_code import own_function
from tests.analysis.drawn import repeats_of

PAPER = Path(__file__).resolve().parents[3] / "replications" / "impala_2018"
throughput_table = own_function(PAPER, "tables.py", "throughput_table")
cost_table = own_function(PAPER, "tables.py", "cost_table")

ROLES = ("actor", "environment", "inference", "learner")
PUBLISHED = pd.DataFrame(
    {
        "experiment": "throughput",
        "item": "Table 1",
        "task": "seekavoid_arena_01",
        "compared_variant": ["a3c", "impala"],
        "value": [6500.0, 17000.0],
        "hardware": ["64 CPUs, 0 GPUs", "48 CPUs, 0 GPUs"],
    }
)


def runs(**speeds: list[float]) -> pd.DataFrame:
    """Runs on Pong by variant, a repeat each; a million frames take the learner 30 s of CPU and actors 50."""
    seconds = dict.fromkeys(ROLES, 0.0) | {"actor": 50.0, "learner": 30.0}
    columns = {f"{role}_thread_cpu_seconds_per_million_frames": value for role, value in seconds.items()}
    return repeats_of(**speeds).assign(cores=2, policy_lag_mean=1.5, cpu_seconds_per_million_frames=90.0, **columns)


def test_a_ratio_is_of_the_same_repeat() -> None:
    table = throughput_table(runs(a3c=[100.0, 200.0, 400.0], impala=[400.0, 800.0, 1600.0]), PUBLISHED).set_index(
        "system"
    )
    row = table.loc["IMPALA"]
    assert row[["to_a3c", "low", "high"]].to_list() == pytest.approx([4.0, 4.0, 4.0]), "machines slow down for all"
    assert row["speed"] == pytest.approx(2800 / 3)
    assert row["per_core"] == pytest.approx(1400 / 3)
    assert table.loc["A3C", "to_a3c"] == 1


def test_ratios_that_differ_between_repeats_have_an_interval_around_their_geometric_mean() -> None:
    table = throughput_table(runs(a3c=[100.0] * 3, impala=[200.0, 400.0, 800.0]), PUBLISHED).set_index("system")
    row = table.loc["IMPALA"]
    assert row["to_a3c"] == pytest.approx(4)
    # Student's 97.5 % quantile of two degrees of freedom, and the standard error of log 2, log 4 and log 8.
    half = 4.302653 * math.log(2) / math.sqrt(3)
    assert row["low"] == pytest.approx(4 * math.exp(-half), rel=1e-5)
    assert row["high"] == pytest.approx(4 * math.exp(half), rel=1e-5)


def test_two_repeats_have_no_interval_and_a_task_without_a3c_no_ratio() -> None:
    table = throughput_table(runs(a3c=[100.0, 100.0], impala=[200.0, 300.0]), PUBLISHED).set_index("system")
    assert table.loc["IMPALA", ["low", "high"]].isna().all()
    assert math.isnan(throughput_table(runs(impala=[1.0]), PUBLISHED)["to_a3c"].iloc[0])


def test_the_published_numbers_stand_beside_as_the_same_ratios() -> None:
    row = throughput_table(runs(a3c=[100.0], impala=[400.0]), PUBLISHED).set_index("system").loc["IMPALA"]
    assert row["published"] == 17000
    assert row["published_to_a3c"] == pytest.approx(17000 / 6500)
    assert row["published_per_core"] == pytest.approx(17000 / 48)
    unknown = throughput_table(runs(a3c=[1.0], a2c_sync_step=[1.0]), PUBLISHED).set_index("system")
    assert unknown.loc["A2C_SYNC_STEP", ["published", "published_per_core", "published_to_a3c"]].isna().all()


def test_costs_are_means_over_repeats_by_role() -> None:
    table = cost_table(runs(a3c=[100.0, 100.0]))
    assert table[["actor", "environment", "inference", "learner", "cpu", "lag"]].iloc[0].to_list() == [
        50.0,
        0.0,
        0.0,
        30.0,
        90.0,
        1.5,
    ]
    assert table["runs"].to_list() == [2]


def test_without_runs_both_have_their_columns_and_no_rows() -> None:
    nothing = runs(a3c=[1.0]).iloc[:0]
    assert throughput_table(nothing, PUBLISHED).empty
    assert list(cost_table(nothing).columns)[:4] == ["origin", "task", "system", "runs"]
