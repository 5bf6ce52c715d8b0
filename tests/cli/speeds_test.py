"""What a frame is expected to cost: which measurements count, how wide the range is, and how often it holds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddrl.cli.speeds import OTHER_DEVICE, SHORT_FRAMES, STEPS, Measured, System, cost_of, measured, share_inside

ROOT = Path(__file__).parents[2]
SYSTEM = System("impala", "toy/catch", "mlp", "threads 2 x 16", gpu=False)
TASK, SAME, ALGORITHM, SIMULATOR, NETWORK, ALONE = STEPS


def costing(core_seconds: float, *, short: bool = False, **changed: Any) -> Measured:
    return Measured(replace(SYSTEM, **changed), core_seconds, short=short)


LADDER = [
    (TASK, {}),
    (SAME, {"environment": "toy/chain", "layout": "serial 1 x 1"}),
    (ALGORITHM, {"algorithm": "ppo"}),
    (SIMULATOR, {"environment": "atari/pong"}),
    (NETWORK, {"network": "deep", "algorithm": "ppo"}),
    (ALONE, {"environment": "atari/pong", "algorithm": "ppo"}),
]


def test_a_kept_agent_measures_what_runs_of_its_kind_cost() -> None:
    known = measured(ROOT / "results")
    (agent,) = [one for one in known if one.system.environment == "terrain/hurdles" and not one.place]
    assert agent.frames is not None and agent.core_seconds > 0
    cost = cost_of(agent.system, known)
    assert cost is not None and cost.step == TASK and agent in cost.measurements


@pytest.mark.parametrize("closest", range(len(LADDER)))
def test_the_closest_measurement_counts_alone(closest: int) -> None:
    known = [costing(10.0 ** -(index + 1), **changed) for index, (_, changed) in enumerate(LADDER)][closest:]
    found = cost_of(SYSTEM, known)
    assert found is not None and found.step is LADDER[closest][0]
    cost, factor = 10.0 ** -(closest + 1), found.step.factor
    if closest != 4:  # a simulator with whatever network and algorithm is one step
        assert (found.low, found.high, len(found.measurements)) == pytest.approx((cost / factor, cost * factor, 1))


def test_runs_that_train_more_or_less_per_frame_are_the_same_system_but_not_the_same_task() -> None:
    known = [costing(1.0, training=(20, 32, None, None, None, 8.0))]
    more = cost_of(replace(SYSTEM, training=(20, 32, None, None, None, 128.0)), known)
    as_much = cost_of(replace(SYSTEM, training=(20, 32, None, None, None, 8.0)), known)
    assert more is not None and more.step is SAME
    assert as_much is not None and as_much.step is TASK


def test_each_looser_likeness_widens_the_range() -> None:
    factors = [step.factor for step in STEPS]
    assert factors == sorted(set(factors)) and factors[0] > 1
    assert [step.same for step in STEPS] == [True, True, False, False, False, False]


def test_nothing_is_said_of_a_network_and_a_simulator_that_nobody_measured() -> None:
    assert cost_of(SYSTEM, [costing(1.0, network="deep", environment="atari/pong")]) is None


def test_a_range_spans_its_measurements_but_for_the_outer_tenths() -> None:
    known = [costing(cost) for cost in (0.001, *(1.0 + index / 10 for index in range(8)), 500.0)]
    found = cost_of(SYSTEM, known)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((1.0 / TASK.factor, 1.7 * TASK.factor))


def test_short_runs_and_other_devices_count_only_where_there_is_nothing_better() -> None:
    short, gpu, long = costing(9.0, short=True), costing(3.0, gpu=True), costing(2.0)
    assert cost_of(SYSTEM, [short, gpu, long]) == cost_of(SYSTEM, [long])
    with_gpu, alone = cost_of(SYSTEM, [short, gpu]), cost_of(SYSTEM, [short])
    assert with_gpu is not None and alone is not None
    assert not with_gpu.same_device and with_gpu.high == pytest.approx(3.0 * TASK.factor * OTHER_DEVICE)
    assert alone.high == pytest.approx(9.0 * TASK.factor)
    on_gpu = cost_of(replace(SYSTEM, gpu=True), [long])
    assert on_gpu is not None and on_gpu.low == pytest.approx(2.0 / TASK.factor / OTHER_DEVICE)
    assert on_gpu.high == pytest.approx(2.0 * TASK.factor)


def test_measurements_are_runs_and_benchmarks_and_what_is_damaged_is_left_out(tmp_path: Path) -> None:
    config = {
        "algorithm": "impala",
        "environment": {"name": "toy/catch"},
        "hyperparameters": {"network": "mlp", "lstm_size": 32, "unroll_length": 5, "num_epochs": 4},
        "topology": {"runtime": "threads", "num_actors": 2, "envs_per_actor": 4},
    }
    run = tmp_path / "smoke" / "impala_2018" / "exp" / "var" / "toy-catch" / "seed1"
    damaged = run.with_name("seed2")
    bench = tmp_path / "reference" / "bench"
    for folder in (run, damaged, bench):
        folder.mkdir(parents=True)
    hardware = {"cores": 8, "gpu": "H200"}
    manifest = {"config": config, "hardware": hardware, "env_frames": SHORT_FRAMES - 1, "seconds": 2.0}
    (run / "run.json").write_text(json.dumps(manifest))
    (damaged / "run.json").write_text('{"config": ')
    measurement = {"config": config, "median_training_frames_per_second": 7.0}
    (bench / "a.json").write_text(json.dumps({"hardware": hardware, "measurements": [measurement]}))
    training = (5, None, 4, None, None, None)
    system = System("impala", "toy/catch", "mlp + LSTM 32", "threads 2 x 4", gpu=True, training=training)
    assert measured(tmp_path) == [
        Measured(system, 16 / (SHORT_FRAMES - 1), ("smoke", "impala_2018", "exp", "var"), True, 8, SHORT_FRAMES - 1),
        Measured(system, 8 / 7, cores=8),
    ]


def test_most_reference_runs_lie_in_the_range_that_other_experiments_predict(
    capsys: pytest.CaptureFixture[str],
) -> None:
    known = measured(ROOT / "results")
    found = share_inside([one for one in known if not one.place or one.place[0] == "reference"])
    hits, predicted = (sum(part) for part in zip(*found.values(), strict=True))
    with capsys.disabled():
        said = ", ".join(f"{name} {hit}/{number}" for name, (hit, number) in found.items())
        print(f"\n{hits} of {predicted} reference runs in their predicted range: {said}")
    assert hits / predicted > 0.85
    for step in (TASK, SAME):
        hit, number = found[step.name]
        assert hit / number > 0.85
