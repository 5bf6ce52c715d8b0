"""The simulation of synchronous workers: what is known of it exactly, and where its inputs are from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from ddrl.analysis.ring import Ring
from ddrl.environments.worlds.scene_pace import SCENE_STEPS
from ddrl.papers.published import load_published
from ddrl.training.config.experiments import expand
from replications.ddppo_2020.simulation import Times, Work, frames_per_second
from replications.ddppo_2020.tables import (
    COUNTS,
    EQUAL,
    PUBLISHED,
    SUMS,
    UNEQUAL,
    layout,
    predictions,
    times,
    validation,
)

ROOT = Path(__file__).parents[3] / "replications"
TIMES = Times(step=0.001, learning=0.2, ring=Ring(latency=0.0, transfer=0.0), sums=4)


def test_workers_with_equal_work_take_as_long_as_one() -> None:
    one = frames_per_second(TIMES, EQUAL)
    assert one == pytest.approx(4 * 128 / (128 * 0.009 + 0.2))
    assert frames_per_second(TIMES, replace(EQUAL, workers=64)) == pytest.approx(64 * one)


def test_sums_of_gradients_take_time() -> None:
    slow, work = replace(TIMES, ring=Ring(latency=0.001, transfer=0.008)), replace(EQUAL, workers=2)
    assert frames_per_second(slow, EQUAL) == frames_per_second(TIMES, EQUAL)
    assert frames_per_second(slow, work) == pytest.approx(2 * 4 * 128 / (128 * 0.009 + 0.2 + 4 * 2 * 0.005))


def test_whole_unrolls_wait_for_the_slowest_and_preempted_ones_do_not() -> None:
    """With half of two workers, both are always at work: nothing but learning keeps them from it."""
    work = replace(UNEQUAL, workers=2)
    rounds = {"rounds": 4000}
    busy = replace(TIMES, learning=0.0)
    equal = frames_per_second(busy, replace(EQUAL, workers=2), **rounds)
    whole = frames_per_second(busy, work, **rounds)
    preempted = frames_per_second(busy, replace(work, threshold=0.5), **rounds)
    assert preempted == pytest.approx(equal, rel=0.03)
    assert whole < 0.85 * equal


def test_a_threshold_of_all_workers_changes_nothing() -> None:
    work = replace(UNEQUAL, workers=8)
    assert frames_per_second(TIMES, replace(work, threshold=1.0)) == frames_per_second(TIMES, work)


@pytest.mark.parametrize("workers", [8, 128])
def test_lower_thresholds_are_faster_down_to_sixty_percent(workers: int) -> None:
    work = replace(UNEQUAL, workers=workers)
    speeds = [frames_per_second(TIMES, replace(work, threshold=part)) for part in (1.0, 0.9, 0.8, 0.7, 0.6)]
    assert speeds == sorted(speeds)


def test_no_unroll_is_shorter_than_its_least_part() -> None:
    """One worker is a thousand times as fast as the others could be; they still collect a quarter."""
    work = Work(workers=2, envs=1, length=8, pause=0.0, spread=0.0, scene_steps=8, threshold=0.5, least_fraction=0.25)
    alike = frames_per_second(replace(TIMES, learning=0.0), work)
    assert alike == pytest.approx(2 / 0.001)
    uneven = replace(work, pause=1.0, spread=6.0)
    assert frames_per_second(replace(TIMES, learning=0.0, step=0.0), uneven, rounds=50) > 0


def test_the_same_seed_gives_the_same_speed_and_another_one_another() -> None:
    work = replace(UNEQUAL, workers=4, threshold=0.6)
    one, again, other = (frames_per_second(TIMES, work, seed=seed) for seed in (1, 1, 2))
    assert one == again != other


def test_layouts_are_those_of_the_experiment() -> None:
    for run in expand("ddppo_2020", "paper", root=ROOT, experiments=["scaling"], seeds=[1]):
        work, topology, environment = layout(run.variant), run.config["topology"], run.config["environment"]
        assert (work.workers, work.envs) == (topology["num_learners"], topology["envs_per_actor"])
        assert work.length == run.config["hyperparameters"]["unroll_length"]
        assert (work.pause, work.spread) == (environment["step_ms"] / 1000, environment.get("step_spread", 0.0))
        assert work.threshold == (topology["preemption"] or {}).get("threshold")
        if topology["preemption"]:
            assert work.least_fraction == topology["preemption"]["least_fraction"]
        keys = run.config["hyperparameters"]
        assert keys["num_epochs"] * keys["num_minibatches"] == SUMS
    assert EQUAL.scene_steps == SCENE_STEPS


def test_predictions_stand_beside_what_is_published() -> None:
    table = predictions(pd.DataFrame())
    published = load_published(ROOT / "ddppo_2020")
    printed = published[published["metric"] == "speed_up"]
    counts = printed["variant"].str.removesuffix(" GPUs").astype(int)
    assert dict(zip(counts, printed["value"], strict=True)) == PUBLISHED
    beside = table.dropna(subset=["published"])
    assert dict(zip(beside["workers"], beside["published"], strict=True)) == PUBLISHED
    assert set(beside["threshold"]) == {0.6}
    assert (table["speed_up"] <= 1.02 * table["workers"]).all()


def test_measured_runs_stand_beside_predictions_unless_they_are_short() -> None:
    keys = {"origin": "run", "experiment": "scaling", "environment": "pointnav/large"}
    runs = pd.DataFrame(
        [
            keys | {"variant": variant, "variant_label": variant, "seed": seed, "env_frames": frames}
            for variant, frames in (("two_equal", 65_536), ("two_preempted", 4_096))
            for seed in (1, 2)
        ]
    )
    efficiency = runs[[*keys, "variant", "seed"]].assign(steady_frames_per_second=[600.0, 700.0, 500.0, 500.0])
    found = validation(runs, efficiency)
    assert list(found["layout"]) == ["two_equal"]
    row = found.iloc[0]
    assert (row["measured"], row["workers"], row["runs"]) == (650.0, COUNTS["two"], 2)
    assert row["predicted"] == frames_per_second(times(), layout("two_equal"))
    assert row["error"] == pytest.approx(row["predicted"] / 650.0 - 1)
