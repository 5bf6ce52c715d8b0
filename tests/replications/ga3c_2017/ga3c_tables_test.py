"""GA3C's own table: predictions, trainings and gains by hand, beside those of Table 2."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from ddrl.papers.own_code import own_function
from tests.analysis.drawn import repeats_of

PAPER = Path(__file__).resolve().parents[3] / "replications" / "ga3c_2017"
throughput_table = own_function(PAPER, "tables.py", "throughput_table")

PUBLISHED = pd.DataFrame(
    {
        "item": "Table 2",
        "metric": ["speed_up", "speed_up", "prediction_throughput"],
        "compared_variant": "ga3c_small",
        "value": [3.0, 6.0, 1080.0],
        "hardware": ["System I: a CPU and a GPU", "System II: another", "System I: a CPU and a GPU"],
    }
)


def runs(**speeds: list[float]) -> pd.DataFrame:
    """Runs on Pong by variant, a repeat each: steps of four frames, and an update every fifth step."""
    table = repeats_of(**speeds)
    return table.assign(frames_per_step=4, updates_per_second=table["steady_frames_per_second"] / 20)


def test_a_prediction_is_a_step_and_a_gain_is_of_the_same_repeat_and_network() -> None:
    measured = runs(a3c_small=[100.0, 200.0, 400.0], ga3c_small=[300.0, 600.0, 1200.0], ga3c_large=[80.0] * 3)
    table = throughput_table(measured, PUBLISHED).set_index("system")
    row = table.loc["GA3C_SMALL"]
    assert row[["pps", "tps"]].to_list() == pytest.approx([175.0, 35.0])
    assert row[["gain", "low", "high"]].to_list() == pytest.approx([3.0, 3.0, 3.0]), "machines slow down for all"
    assert row["runs"] == 3
    assert table.loc["A3C_SMALL", "gain"] == pytest.approx(1)
    assert table.loc["GA3C_LARGE", ["gain", "low", "high"]].isna().all(), "A3C has not run with this network"


def test_gains_stand_beside_those_of_each_machine_and_two_repeats_have_no_interval() -> None:
    table = throughput_table(runs(a3c_small=[100.0] * 2, ga3c_small=[300.0] * 2), PUBLISHED).set_index("system")
    row = table.loc["GA3C_SMALL"]
    assert row[["gain_i", "gain_ii"]].to_list() == [3.0, 6.0]
    assert row[["low", "high", "gain_iii"]].isna().all()
    assert table.loc["A3C_SMALL", ["gain_i", "gain_ii", "gain_iii"]].isna().all()


def test_without_runs_there_are_columns_and_no_rows() -> None:
    table = throughput_table(runs(a3c_small=[1.0]).iloc[:0], PUBLISHED)
    assert table.empty and list(table.columns)[:4] == ["origin", "task", "system", "runs"]
