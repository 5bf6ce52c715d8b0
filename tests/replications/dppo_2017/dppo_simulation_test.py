"""The simulation of workers: what is known of it exactly, where its inputs are from, and what stands beside it."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from ddrl.training.config.experiments import expand
from replications.dppo_2017.tables import (
    COUNTS,
    ENVIRONMENTS,
    GRADIENT_STEPS,
    LENGTH,
    frames_per_second,
    predictions,
    share_seconds,
    simulated,
    summing_seconds,
    validation,
)

ROOT = Path(__file__).parents[3] / "replications"
KEYS = {
    "origin": "run",
    "experiment": "workers",
    "environment": "terrain/flat",
    "unroll_length": LENGTH,
    "network": "tanh_mlp",
}


def rows(**changes: object) -> pd.DataFrame:
    table = pd.DataFrame(
        [
            KEYS | {"variant": variant, "seed": seed, "batch_size": 16, "steady_frames_per_second": speed + seed}
            for variant, speed in (("one_worker", 1600.0), ("two_workers", 1200.0))
            for seed in (1, 3)
        ]
    )
    return table.assign(**changes)


def test_one_worker_sums_nothing_and_does_all_the_work() -> None:
    assert summing_seconds(1) == 0.0
    assert frames_per_second(1, 16) == pytest.approx(LENGTH * 16 / share_seconds(16))


def test_workers_act_and_learn_for_their_share_and_add_up_every_gradient() -> None:
    expected = share_seconds(4) + summing_seconds(4)
    assert frames_per_second(4, 16) == pytest.approx(LENGTH * 16 / expected)
    assert summing_seconds(64) > summing_seconds(2) > GRADIENT_STEPS * 0.0001


def test_every_share_of_both_batches_was_measured() -> None:
    for environments in ENVIRONMENTS:
        for workers in (count for count in COUNTS.values() if count <= environments):
            assert share_seconds(environments // workers) > 0


def test_layouts_are_those_of_the_experiment() -> None:
    for scale, environments in zip(("workstation", "paper"), ENVIRONMENTS, strict=True):
        for run in expand("dppo_2017", scale, root=ROOT, experiments=["workers"], seeds=[1]):
            topology, keys = run.config["topology"], run.config["hyperparameters"]
            assert topology["num_learners"] == topology["num_actors"] == COUNTS[run.variant]
            assert topology["num_actors"] * topology["envs_per_actor"] == environments == keys["batch_size"]
            assert keys["unroll_length"] == LENGTH
            assert keys["num_epochs"] * keys["num_minibatches"] == GRADIENT_STEPS


def test_predictions_go_on_to_one_environment_a_worker() -> None:
    table = predictions(pd.DataFrame())
    assert table.groupby("environments")["workers"].max().to_dict() == {16: 16, 64: 64}
    assert (table.loc[table["workers"] == 1, "speed_up"] == 1.0).all()
    assert ((table["speed_up"] / table["workers"] - table["efficiency"]).abs() < 1e-12).all()
    assert table["summing"].between(0, 1).all()


def test_runs_stand_beside_their_predictions() -> None:
    found = validation(rows())
    assert found[["environments", "workers", "runs", "measured"]].values.tolist() == [
        [16, 1, 2, 1602],
        [16, 2, 2, 1202],
    ]
    assert found["predicted"].tolist() == [frames_per_second(1, 16), frames_per_second(2, 16)]
    assert found["error"].tolist() == pytest.approx((found["predicted"] / found["measured"] - 1).tolist())


@pytest.mark.parametrize(
    "changes",
    [
        {"unroll_length": 64},
        {"batch_size": 8},
        {"network": "two_stream"},
        {"experiment": "a3c"},
        {"steady_frames_per_second": float("nan")},
    ],
)
def test_runs_that_the_simulation_does_not_know_do_not(changes: dict[str, object]) -> None:
    assert simulated(rows(**changes)).empty and validation(rows(**changes)).empty
