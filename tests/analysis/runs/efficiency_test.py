"""The cost of frames: from recorded metrics to columns, claims and published ratios."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ddrl.analysis.runs.efficiency import COLUMNS, efficiency, efficiency_table
from ddrl.analysis.runs.flags import flags
from ddrl.analysis.runs.run_data import RunData, load_run
from ddrl.analysis.verdicts.cell_values import own_values
from ddrl.papers.claim_kinds import EFFICIENCY_METRICS
from ddrl.papers.experiments import load_experiments
from ddrl.papers.paper import CellRule, Prices, load_paper
from ddrl.training.config.experiments import expand
from tests.analysis.fakes import write_measured

ROOT = Path(__file__).parents[3] / "replications"
PAPER = load_paper(ROOT / "seed_rl_2020")
EXPERIMENTS = load_experiments(PAPER.directory)
PRICES = Prices(cpu_core_hour=0.036, accelerator_hour=3.6, source="a test")
MEASURED = {
    "cpu_seconds": 200.0,
    "worker_cpu_seconds": 300.0,
    "learner_utilisation": 0.5,
    "inference_columns_mean": 48.0,
    "round_trip_ms_p50": 2.0,
    "wire_bytes_per_frame_to_learner": 1800.0,
    "wire_bytes_per_frame_from_learner": 200.0,
    "policy_lag_first": 2.0,
    "policy_lag_last": 0.5,
}


def planted(
    results: Path, variant: str = "seed_deep_2", seed: int = 1, speed: float = 1000.0, **changed: float
) -> RunData:
    runs = expand(PAPER.key, "workstation", root=ROOT, experiments=["throughput"], variants=[variant], seeds=[seed])
    folder = write_measured(runs[0], results, final=10.0, speed=speed, measured=MEASURED | changed)
    return load_run(folder, "run", PAPER.key, "throughput", variant)


def rewritten(run: RunData, **hardware: Any) -> RunData:
    return replace(run, manifest=run.manifest | {"hardware": run.manifest["hardware"] | hardware})


def test_speed_and_cpu_are_slopes_that_starting_up_does_not_enter(tmp_path: Path) -> None:
    found = efficiency(planted(tmp_path), PRICES)
    assert found["steady_frames_per_second"] == pytest.approx(1000)
    assert found["cpu_seconds_per_million_frames"] == pytest.approx(500)
    assert found["learner_cpu_seconds_per_million_frames"] == pytest.approx(200)


def test_what_is_recorded_since_the_last_record_is_averaged_without_the_first(tmp_path: Path) -> None:
    found = efficiency(planted(tmp_path), None)
    assert found["inference_columns_mean"] == pytest.approx(48)
    assert found["round_trip_ms_p50"] == pytest.approx(2)
    assert found["learner_utilisation"] == pytest.approx(0.5)
    assert found["wire_bytes_per_frame"] == pytest.approx(2000)
    assert found["policy_lag_span"] == pytest.approx(1.5)


def test_updates_are_counted_over_the_same_seconds_as_frames(tmp_path: Path) -> None:
    run = planted(tmp_path)
    records = run.curves[run.curves["metric"] == "episodes"]
    first, last = records.iloc[0], records.iloc[-1]
    expected = (last["updates"] - first["updates"]) / (last["seconds"] - first["seconds"])
    found = efficiency(run, None)["updates_per_second"]
    assert found == pytest.approx(expected)
    assert found == pytest.approx(1000 / 2560, rel=0.03)  # an update takes 2,560 frames, and counts are whole
    twice = replace(run, curves=run.curves.assign(updates=2 * run.curves["updates"]))
    assert efficiency(twice, None)["updates_per_second"] == pytest.approx(2 * found)
    assert math.isnan(
        efficiency(replace(run, curves=run.curves[run.curves["env_frames"] == 1]), None)["updates_per_second"]
    )


def test_of_percentiles_the_median_over_records_counts(tmp_path: Path) -> None:
    run = planted(tmp_path)
    curves = run.curves.copy()
    late = curves.index[curves["metric"] == "round_trip_ms_p50"][-3:]
    curves.loc[late, "value"] = 1000.0
    assert efficiency(replace(run, curves=curves), None)["round_trip_ms_p50"] == pytest.approx(2)


def test_a_run_says_nothing_of_what_it_did_not_record(tmp_path: Path) -> None:
    run = planted(tmp_path)
    old = replace(run, curves=run.curves[~run.curves["metric"].isin(list(MEASURED))])
    found = efficiency(old, PRICES)
    assert set(found) == set(COLUMNS) >= set(EFFICIENCY_METRICS)
    known = {name for name, value in found.items() if not math.isnan(value)}
    assert known == {"steady_frames_per_second", "updates_per_second", "policy_lag_mean"}


def test_without_workers_the_learners_process_has_done_everything(tmp_path: Path) -> None:
    run = planted(tmp_path)
    alone = replace(run, curves=run.curves[run.curves["metric"] != "worker_cpu_seconds"])
    assert efficiency(alone, None)["cpu_seconds_per_million_frames"] == pytest.approx(200)


def test_cpu_of_workers_that_began_anew_is_not_known(tmp_path: Path) -> None:
    run = planted(tmp_path)
    curves = run.curves.copy()
    half = (curves["metric"] == "worker_cpu_seconds") & (curves["env_frames"] > curves["env_frames"].max() / 2)
    curves.loc[half, "value"] -= 4.0
    assert math.isnan(efficiency(replace(run, curves=curves), None)["cpu_seconds_per_million_frames"])


def test_cores_cost_while_they_work_and_an_accelerator_while_it_is_held(tmp_path: Path) -> None:
    run = planted(tmp_path)
    # 500 CPU seconds a million frames, at a cent in 1000 seconds; a billion frames are a million seconds of a GPU.
    assert efficiency(run, PRICES)["dollars_per_billion_frames"] == pytest.approx(5.0)
    with_gpu = rewritten(run, gpu="NVIDIA H200")
    assert efficiency(with_gpu, PRICES)["dollars_per_billion_frames"] == pytest.approx(5.0 + 1000.0)
    on_cpu = replace(with_gpu, manifest=with_gpu.manifest | {"config": {**with_gpu.config, "device": "cpu"}})
    assert efficiency(on_cpu, PRICES)["dollars_per_billion_frames"] == pytest.approx(5.0)
    assert math.isnan(efficiency(run, None)["dollars_per_billion_frames"])


def test_the_table_has_a_row_for_each_run_and_says_where_it_ran(tmp_path: Path) -> None:
    runs = [planted(tmp_path, variant) for variant in ("impala_deep_2", "seed_deep_2")]
    table = efficiency_table(runs, EXPERIMENTS, PRICES)
    assert list(table["variant"]) == ["impala_deep_2", "seed_deep_2"]
    assert list(table["inference"]) == ["local", "central"]
    assert list(table["variant_label"]) == ["IMPALA, deep, 2 workers", "SEED RL, deep, 2 workers"]
    assert set(table["cpu"]) == {"a processor"}
    assert (
        table[["unroll_length", "batch_size", "frames_per_step", "queue_capacity"]].to_numpy().tolist()
        == [[20, 32, 4, 2]] * 2
    )


RULE = CellRule(
    published={"cell": "c"},
    experiment="throughput",
    variant="seed_deep_2",
    environment=None,
    metric="steady_frames_per_second",
    environments=None,
    paper_envs=None,
    than="impala_deep_2",
    compared_as="ratio",
)


def pairs(results: Path) -> list[RunData]:
    """Three seeds of each: SEED RL is 2, 3 and 4 times as fast as IMPALA; a fourth seed of IMPALA has no partner."""
    seeds = [planted(results, seed=seed, speed=1000.0 * (seed + 1)) for seed in (1, 2, 3)]
    return seeds + [
        planted(results, "impala_deep_2", seed=seed, wire_bytes_per_frame_to_learner=9800.0) for seed in (1, 2, 3, 4)
    ]


def test_a_published_ratio_is_held_against_one_ratio_for_each_seed_that_both_have(tmp_path: Path) -> None:
    found = own_values(RULE, {}, pairs(tmp_path), pd.DataFrame())
    assert found == pytest.approx(np.array([2.0, 3.0, 4.0]))


def test_a_published_reduction_is_a_percentage_of_what_the_other_takes(tmp_path: Path) -> None:
    rule = replace(RULE, metric="wire_bytes_per_frame", compared_as="reduction")
    assert own_values(rule, {}, pairs(tmp_path), pd.DataFrame()) == pytest.approx(np.array([80.0] * 3))


def test_one_of_the_two_alone_gives_no_ratio(tmp_path: Path) -> None:
    assert len(own_values(RULE, {}, [planted(tmp_path)], pd.DataFrame())) == 0


@pytest.mark.parametrize(
    ("gpu", "published", "other"),
    [
        (None, "1 Nvidia P100", True),
        ("Tesla P100-PCIE-16GB", "1 Nvidia Tesla P100-PCIE-16GB", False),
        ("NVIDIA H200", "1 Nvidia P100", True),
        (None, "", True),
    ],
)
def test_speeds_on_other_hardware_are_flagged(tmp_path: Path, gpu: str | None, published: str, other: bool) -> None:
    run = rewritten(planted(tmp_path), gpu=gpu)
    row = {"budget_frames": math.nan, "budget_hours": math.nan, "statistic": "stated", "seeds": 1, "digitised": False}
    found = flags(RULE, row | {"hardware": published}, [run], EXPERIMENTS["throughput"], 0.99, None)
    assert ("other_hardware" in found) == other
    counted = replace(RULE, metric="wire_bytes_per_frame")
    found = flags(counted, row | {"hardware": published}, [run], EXPERIMENTS["throughput"], 0.99, None)
    assert "other_hardware" not in found


def test_the_fakes_are_what_a_run_writes(tmp_path: Path) -> None:
    run = planted(tmp_path)
    assert json.dumps(run.manifest["config"]["topology"]["inference"]) == '"central"'
    assert run.curves["metric"].value_counts()["worker_cpu_seconds"] == 40
