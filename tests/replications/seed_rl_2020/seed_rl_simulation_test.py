"""The simulation of SEED RL and IMPALA: against closed forms, its parts by their rules, and its inputs where wrong."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from simpy import Environment, Resource

from ddrl.errors import UserError
from ddrl.papers.published import load_published, matching, reference_scores
from ddrl.papers.schema import schema
from replications.seed_rl_2020.inputs import Hosts, Layout, Scenario, ServiceTimes, Span, System, read_scenarios
from replications.seed_rl_2020.machines import Cores, Link
from replications.seed_rl_2020.services import Inference, Learner, LearnerHost, Unroll, UnrollQueue
from replications.seed_rl_2020.simulation import Prediction, predict, predict_scenarios

FOLDER = Path(__file__).parents[3] / "replications" / "seed_rl_2020"
FREE = ServiceTimes(
    frames_per_step=4,
    step_fixed_s=0.0,
    step_per_env_s=0.0,
    inference_fixed_s=0.0,
    inference_per_column_s=0.0,
    train_fixed_s=0.0,
    train_per_column_step_s=0.0,
)
"""Everything takes no time; each test makes dear what it is about."""
ONE = Layout(learner_cores=4, local_workers=1, envs_per_worker=1, unroll_length=1, batch_columns=1)
NOISY = replace(
    FREE, step_per_env_s=1e-3, step_cv=0.5, inference_fixed_s=1e-3, inference_per_column_s=2e-4, train_fixed_s=1e-3
)


def run(times: ServiceTimes, layout: Layout, measured_s: float = 4.0, **options: Any) -> Prediction:
    return predict(times, layout, span=Span(1.0, measured_s), **options)


# Closed forms: central inference.


def test_one_worker_takes_the_sum_of_all_that_it_waits_for() -> None:
    times = replace(
        FREE,
        step_fixed_s=1e-3,
        step_per_env_s=5e-4,
        inference_fixed_s=2e-3,
        inference_per_column_s=1e-4,
        worker_message_s=1e-4,
        worker_byte_s=1e-8,
        server_message_s=3e-4,
        server_byte_s=2e-8,
        request_bytes_per_column=1000.0,
        reply_bytes_per_column=10.0,
    )
    layout = replace(
        ONE, local_workers=0, worker_hosts=(Hosts(1, 1, 1),), envs_per_worker=3, latency_s=4e-3, bytes_per_s=1e6
    )
    step, inference = 1e-3 + 3 * 5e-4, 2e-3 + 3 * 1e-4
    messages = 2 * (1e-4 + 3e-4) + (3000 + 30) * (1e-8 + 2e-8)
    call = messages + 2 * 4e-3 + 3030 / 1e6 + inference
    result = run(times, layout)
    assert result.frames_per_s == pytest.approx(3 * 4 / (step + call), rel=1e-9)
    assert result.first_half_frames_per_s == pytest.approx(result.second_half_frames_per_s, rel=1e-9)
    assert (result.call_p50_s, result.call_p99_s) == pytest.approx((call, call), rel=1e-9)
    assert result.server_call_p50_s == pytest.approx(inference, rel=1e-9)
    assert result.limit == "inference calls"
    assert result.bytes_in_per_s == pytest.approx(3000 / (step + call), rel=0.01)
    assert result.worker_cores_utilisation == pytest.approx((step + 2e-4 + 3030 * 1e-8) / (step + call), rel=0.01)


def test_saturated_inference_gives_the_columns_of_its_largest_batch_in_that_batch_s_time() -> None:
    times = replace(FREE, step_per_env_s=1e-4, inference_fixed_s=2e-3, inference_per_column_s=1e-4)
    layout = replace(ONE, learner_cores=64, local_workers=64, batch_columns=16, max_columns=16, queue_unrolls=64)
    result = run(times, layout)
    assert result.frames_per_s == pytest.approx(4 * 16 / (2e-3 + 16 * 1e-4), rel=2e-3)
    assert result.limit == "inference"
    assert result.batch_columns_mean == pytest.approx(16, rel=0.01)


@pytest.mark.parametrize(("workers", "cores"), [(1, 4), (4, 4), (8, 4), (9, 4), (5, 2.5)])
def test_where_only_environments_take_time_the_cores_are_the_limit(workers: int, cores: float) -> None:
    times = replace(FREE, step_per_env_s=2e-3, step_cv=0.3)
    result = run(times, replace(ONE, learner_cores=cores, local_workers=workers, envs_per_worker=2), 8.0)
    assert result.frames_per_s == pytest.approx(min(workers, cores) * 2 * 4 / (2 * 2e-3), rel=0.02)
    exact = run(replace(times, step_cv=0.0), replace(ONE, learner_cores=cores, local_workers=workers), 1.0)
    assert exact.frames_per_s == pytest.approx(min(workers, cores) * 4 / 2e-3, rel=1e-6)
    assert exact.limit == ("learner's cores" if workers >= cores else "environments")


def test_training_on_the_workers_cores_slows_them_down_by_its_share() -> None:
    times = replace(FREE, step_per_env_s=1e-3, train_fixed_s=1.0, train_cores=3)
    layout = replace(ONE, learner_cores=2, uses_per_column=1e9, queue_unrolls=10_000)  # it trains all the time
    result = run(times, layout)
    assert result.frames_per_s == pytest.approx(4 * (2 / 4) / 1e-3, rel=1e-6)
    assert result.learner_utilisation == pytest.approx(1)
    assert result.updates_per_s == pytest.approx(0.5, abs=0.25)


def test_latency_is_the_limit_where_it_is_all() -> None:
    layout = replace(ONE, local_workers=0, worker_hosts=(Hosts(10, 1, 1),), latency_s=0.05)
    result = run(FREE, layout, 10.0)
    assert result.frames_per_s == pytest.approx(10 * 4 / 0.1, rel=1e-6)
    assert result.limit == "inference calls"
    assert run(FREE, replace(layout, envs_per_worker=8), 10.0).frames_per_s == pytest.approx(80 * 4 / 0.1, rel=1e-6)


@pytest.mark.parametrize(("uses", "devices", "efficiency"), [(1.0, 1, 1.0), (1.5, 1, 1.0), (1.0, 4, 0.75)])
def test_back_pressure_holds_workers_to_what_the_learner_uses(uses: float, devices: int, efficiency: float) -> None:
    times = replace(FREE, step_per_env_s=1e-4, train_fixed_s=0.02, train_per_column_step_s=1e-4)
    layout = Layout(
        learner_cores=8,
        local_workers=8,
        envs_per_worker=4,
        unroll_length=5,
        batch_columns=24,
        queue_unrolls=6,
        uses_per_column=uses,
        training_devices=devices,
        training_efficiency=efficiency,
    )
    seconds = (0.02 + 24 * 5 * 1e-4) / (devices * efficiency)
    result = run(times, layout, 16.0)
    assert result.frames_per_s == pytest.approx(24 / uses * 5 * 4 / seconds, rel=0.01)
    assert result.limit == "training"
    assert result.blocked_fraction > 0.5
    assert result.updates_per_s == pytest.approx(1 / seconds, rel=0.01)
    assert result.call_p99_s < 0.1 * seconds


def test_a_shared_accelerator_does_one_thing_at_a_time() -> None:
    times = replace(FREE, inference_fixed_s=1e-3, inference_per_column_s=1e-4, train_fixed_s=0.02, step_per_env_s=1e-5)
    layout = Layout(
        learner_cores=64,
        local_workers=64,
        envs_per_worker=1,
        unroll_length=10,
        batch_columns=32,
        queue_unrolls=64,
        min_columns=32,
        max_columns=32,
        shared_accelerator=True,
    )
    a_batch = 0.02 + 10 * (1e-3 + 32 * 1e-4)
    result = run(times, layout, 5.0)
    assert result.frames_per_s == pytest.approx(32 * 10 * 4 / a_batch, rel=0.02)
    assert result.limit == "accelerator"
    assert result.learner_utilisation + result.inference_utilisation == pytest.approx(1, abs=0.01)
    apart = run(times, replace(layout, shared_accelerator=False), 1.0)
    assert apart.frames_per_s == pytest.approx(32 * 4 / (1e-3 + 32 * 1e-4), rel=0.01)


def test_one_message_at_a_time_is_a_limit_of_its_own() -> None:
    times = replace(FREE, server_message_s=1e-3)
    layout = replace(ONE, learner_cores=8, local_workers=8)
    assert run(times, layout).frames_per_s == pytest.approx(8 * 4 / 2e-3, rel=1e-6)
    result = run(times, replace(layout, server_threads=1))
    assert result.frames_per_s == pytest.approx(4 / 2e-3, rel=0.005)
    assert result.limit == "message threads"
    busy = run(replace(times, inference_fixed_s=1e-4, step_fixed_s=1e-4), replace(layout, server_threads=1))
    assert busy.limit == "message threads"


def test_inference_in_small_batches_is_the_limit_only_where_nothing_else_is() -> None:
    times = replace(FREE, inference_fixed_s=2e-3, server_message_s=5e-4, step_per_env_s=1e-5)
    layout = replace(ONE, learner_cores=64, local_workers=32)
    alone = run(times, layout)
    both = run(replace(times, server_message_s=1e-3), replace(layout, server_threads=1))
    assert alone.inference_utilisation > 0.95 and both.inference_utilisation > 0.95
    assert alone.batch_columns_mean < 32
    assert (alone.limit, both.limit) == ("inference", "message threads")


def test_the_learner_s_network_card_is_shared_by_all_messages() -> None:
    times = replace(FREE, request_bytes_per_column=1e4, reply_bytes_per_column=10.0)
    layout = replace(ONE, local_workers=0, worker_hosts=(Hosts(50, 1, 1),), latency_s=1e-4, card_bytes_per_s=1e7)
    result = run(times, layout)
    assert result.frames_per_s == pytest.approx(4 * 1e7 / 1e4, rel=0.01)
    assert result.limit == "network card"
    assert result.bytes_in_per_s == pytest.approx(1e7, rel=0.01)


def test_more_inference_devices_never_reduce_the_rate() -> None:
    layout = replace(ONE, learner_cores=32, local_workers=16, unroll_length=10, batch_columns=8, queue_unrolls=32)
    rates = [run(NOISY, replace(layout, inference_devices=devices)).frames_per_s for devices in (1, 2, 3, 4, 8)]
    assert all(more >= 0.995 * fewer for fewer, more in pairwise(rates))
    assert rates[-1] > 1.3 * rates[0]


def test_the_same_seed_gives_the_same_result_and_another_one_another() -> None:
    layout = replace(ONE, local_workers=6, unroll_length=5, batch_columns=4, queue_unrolls=4, min_columns=3)
    assert run(NOISY, layout, seed=3) == run(NOISY, layout, seed=3)
    assert run(NOISY, layout, seed=3).frames_per_s != run(NOISY, layout, seed=4).frames_per_s


def test_random_steps_have_the_mean_and_the_variation_that_were_measured() -> None:
    times = replace(FREE, step_per_env_s=1e-3, step_cv=0.8)
    assert run(times, ONE, 20.0).frames_per_s == pytest.approx(4 / 1e-3, rel=0.02)
    pair = replace(ONE, learner_cores=2, local_workers=2, min_columns=2, max_wait_s=1.0)  # waits for the slower one
    # The larger of two gamma variables of shape k is on average mean * (1 + gamma(k + 1/2) / (sqrt(pi) k gamma(k))).
    k = 0.8**-2
    slower = 1e-3 * (1 + math.gamma(k + 0.5) / (math.sqrt(math.pi) * k * math.gamma(k)))
    assert run(times, pair, 20.0).frames_per_s == pytest.approx(2 * 4 / slower, rel=0.02)


def test_lag_counts_the_updates_from_acting_to_use() -> None:
    times = replace(FREE, step_per_env_s=0.01, train_fixed_s=0.005)
    layout = replace(ONE, local_workers=10, learner_cores=10, unroll_length=20, batch_columns=1, queue_unrolls=10)
    # All workers end their unrolls together, every 0.2 s. By the next first step, 0.01 s later, two of the ten updates
    # are done, by the last one all. The k-th unroll (from 0) is used 10 + k updates after the end of the one before.
    central = run(times, layout, 20.0)
    assert central.lag_inside_unroll_mean == pytest.approx(8, abs=0.6)
    assert central.lag_mean == pytest.approx(8 + 4.5, abs=0.6)
    local = run(times, layout, 20.0, system="impala")  # parameters are pulled before the first update of the ten
    assert local.lag_inside_unroll_mean == 0
    assert local.lag_mean == pytest.approx(10 + 4.5, abs=0.6)


# Closed forms: local inference.


def test_an_actor_takes_the_sum_of_acting_and_of_two_round_trips() -> None:
    times = replace(
        FREE,
        step_per_env_s=1e-3,
        local_inference_fixed_s=2e-3,
        local_inference_per_column_s=5e-4,
        unroll_bytes_per_column_step=1000.0,
        parameter_bytes=5e4,
        worker_message_s=1e-4,
        worker_byte_s=1e-9,
        server_message_s=2e-4,
        server_byte_s=2e-9,
    )
    layout = replace(
        ONE, local_workers=0, worker_hosts=(Hosts(1, 1, 1),), envs_per_worker=2, latency_s=0.01, bytes_per_s=1e6
    )
    sizes = 2 * 1000.0 + 5e4
    cycle = 2e-3 + 3e-3 + 4 * 0.01 + sizes / 1e6 + 4 * (1e-4 + 2e-4) + sizes * 3e-9
    result = run(times, layout, 20.0, system="impala")
    assert result.frames_per_s == pytest.approx(2 * 4 / cycle, rel=1e-9)
    assert math.isnan(result.inference_utilisation)
    assert math.isnan(result.call_p50_s)


def test_actors_infer_on_their_own_cores() -> None:
    times = replace(FREE, step_per_env_s=1e-3, step_cv=0.3, local_inference_fixed_s=3e-3)
    layout = replace(ONE, local_workers=0, worker_hosts=(Hosts(2, 4, 6),), unroll_length=20, queue_unrolls=8)
    result = run(times, replace(layout, batch_columns=4), 10.0, system="impala")
    assert result.frames_per_s == pytest.approx(8 * 4 / 4e-3, rel=0.01)
    assert result.limit == "workers' cores"


def test_a_slow_learner_holds_actors_back_too() -> None:
    times = replace(FREE, step_per_env_s=1e-3, train_fixed_s=0.1)
    layout = replace(ONE, learner_cores=8, local_workers=8, unroll_length=10, batch_columns=4, queue_unrolls=4)
    result = run(times, layout, 20.0, system="impala")
    assert result.frames_per_s == pytest.approx(4 * 10 * 4 / 0.1, rel=0.01)
    assert result.limit == "training"


# Parts.


def fluid(cores: float, jobs: list[tuple[float, float, float]]) -> list[float]:
    """The ends of jobs (arrival, work, width): the rates between two events are constant, event by event."""
    left = [work for _, work, _ in jobs]
    ends = [math.inf] * len(jobs)
    now = 0.0
    while any(math.isinf(end) for end in ends):
        active = [i for i, job in enumerate(jobs) if job[0] <= now + 1e-12 and math.isinf(ends[i])]
        width = sum(jobs[i][2] for i in active)
        speed = min(1.0, cores / width) if width else 1.0
        coming = [job[0] - now for job in jobs if job[0] > now + 1e-12]
        step = min([left[i] / speed for i in active] + coming)
        now += step
        for i in active:
            left[i] -= step * speed
            if left[i] <= 1e-12:
                ends[i] = now
    return ends


@settings(max_examples=150, deadline=None)
@given(
    st.floats(0.5, 4),
    st.lists(
        st.tuples(st.integers(0, 40).map(lambda k: k / 8), st.integers(1, 16).map(lambda k: k / 8), st.floats(0.25, 3)),
        min_size=1,
        max_size=12,
    ),
)
def test_cores_are_shared_equally(cores: float, jobs: list[tuple[float, float, float]]) -> None:
    env = Environment()
    shared = Cores(env, cores)
    ends = [math.nan] * len(jobs)

    def job(i: int) -> Any:
        yield env.timeout(jobs[i][0])
        yield shared.run(jobs[i][1], jobs[i][2])
        ends[i] = env.now

    for i in range(len(jobs)):
        env.process(job(i))
    env.run()
    assert ends == pytest.approx(fluid(cores, jobs), abs=1e-9)
    if all(width <= cores for _, _, width in jobs):
        assert shared.busy.until_now() <= sum(work * width for _, work, width in jobs) + 1e-9
    assert shared.busy.until_now() == pytest.approx(sum(work * width for _, work, width in jobs), rel=1e-6)


def test_a_message_waits_at_the_card_only_for_its_own_direction() -> None:
    env = Environment()
    link = Link(env, 1.0, 100.0, 50.0)
    came: list[tuple[str, float]] = []
    for name, direction in (("a", "in"), ("b", "in"), ("c", "out")):
        event = link.send(100.0, direction)
        event.callbacks.append(lambda _, name=name: came.append((name, env.now)))
    env.run()
    assert sorted(came) == [("a", 3.0), ("b", 5.0), ("c", 3.0)]
    assert link.sent == {"in": 200.0, "out": 100.0}


Batches = list[tuple[float, float, list[int]]]
"""The moment at which a batch was answered, the longest wait of a request, its requests."""


def batches(layout: Layout, requests: list[tuple[float, int]], seconds: float = 1.0, shared: bool = False) -> Batches:
    """The batches that inference makes of requests (moment, columns), each taking `seconds`."""
    env = Environment()
    accelerator = Resource(env, 1) if shared else None
    host = LearnerHost(env, replace(FREE, inference_fixed_s=seconds), layout, Cores(env, 1), accelerator)
    inference = Inference(host, Learner(host))
    answered: list[tuple[float, int]] = []

    def ask(number: int) -> Any:
        yield env.timeout(requests[number][0])
        yield inference.request(requests[number][1])
        answered.append((env.now, number))

    def train() -> Any:
        assert accelerator is not None
        turn = accelerator.request()
        yield turn
        yield env.timeout(5.0)
        accelerator.release(turn)

    if shared:
        env.process(train())
    for number in range(len(requests)):
        env.process(ask(number))
    env.run(until=100.0)
    moments = sorted({moment for moment, _ in answered})
    return [
        (
            moment,
            max(moment - requests[n][0] for m, n in answered if m == moment),
            [n for m, n in answered if m == moment],
        )
        for moment in moments
    ]


RULES = replace(ONE, local_workers=10, min_columns=4, max_columns=6, max_wait_s=10.0, queue_unrolls=8)


def summary(found: Batches) -> list[tuple[float, list[int]]]:
    return [(moment, numbers) for moment, _, numbers in found]


def test_a_batch_begins_once_enough_columns_wait() -> None:
    assert summary(batches(RULES, [(0, 2), (1, 1), (3, 1), (3.5, 1)])) == [(4, [0, 1, 2]), (14.5, [3])]


def test_a_batch_begins_once_its_oldest_request_has_waited_long_enough() -> None:
    assert summary(batches(RULES, [(0, 1), (2, 1), (9, 1)])) == [(11, [0, 1, 2])]
    assert summary(batches(RULES, [(0, 1), (10.5, 1)])) == [(11, [0]), (21.5, [1])]


def test_a_batch_takes_whole_requests_in_order_up_to_the_largest() -> None:
    found = batches(RULES, [(0, 4), (0.1, 3), (0.2, 2), (0.3, 2), (0.4, 1), (0.5, 1)])
    assert summary(found) == [(1, [0]), (2, [1, 2]), (3, [3, 4, 5])]


def test_a_request_that_does_not_fit_lets_no_younger_one_pass() -> None:
    assert summary(batches(RULES, [(0, 4), (0.1, 5), (0.2, 2), (0.3, 1)])) == [(1, [0]), (2, [1]), (11.2, [2, 3])]


def test_a_request_that_is_overdue_when_a_device_gets_free_waits_no_longer() -> None:
    assert summary(batches(RULES, [(0, 4), (1, 1), (13, 1)], seconds=12.0)) == [(12, [0]), (24, [1]), (36, [2])]


def test_a_second_device_begins_while_the_first_is_busy() -> None:
    found = batches(replace(RULES, inference_devices=2), [(0, 4), (0.5, 4), (0.6, 4), (0.7, 1)])
    assert summary(found) == [(1, [0]), (1.5, [1]), (2, [2, 3])]


def test_training_on_the_accelerator_lets_the_batch_grow() -> None:
    found = batches(replace(RULES, shared_accelerator=True), [(0, 4), (1, 1), (2, 1), (3, 1)], shared=True)
    assert summary(found) == [(6, [0, 1, 2]), (14, [3])]


def test_the_queue_is_bounded_in_unrolls_and_a_part_of_one_takes_no_room() -> None:
    env = Environment()
    queue = UnrollQueue(env, 2)
    assert queue.put(Unroll(3, 0, 0)) is None
    assert queue.put(Unroll(3, 1, 1)) is None
    third, fourth = queue.put(Unroll(3, 2, 2)), queue.put(Unroll(3, 3, 3))
    assert third is not None and fourth is not None
    taken = queue.take(4)
    assert taken.value == [Unroll(3, 0, 0), Unroll(1, 1, 1)]
    assert third.triggered and fourth.triggered  # two columns of the second unroll are left, and two whole ones
    assert queue.put(Unroll(3, 4, 4)) is not None
    waiting = queue.take(100)
    assert not waiting.triggered


# Inputs.


LAYOUT = {
    "learner_cores": 4,
    "worker_hosts": [{"count": 2, "cores": 1, "workers": 1}],
    "envs_per_worker": 2,
    "unroll_length": 5,
    "batch_columns": 4,
}
SCENARIO = {
    "name": "a",
    "system": "seed",
    "layout": LAYOUT,
    "span": {"warm_up_s": 0.1, "measured_s": 0.5},
    "assumptions": ["each host has one core"],
    "assumed_times": {"train_fixed_s": {"value": 0.01, "derivation": "half of ours"}},
    "published_frames_per_s": 67000,
    "published_cell": "t1.seed.r2d2.v100.throughput",
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_fixed_s": -1.0}, "key 'train_fixed_s' must be at least 0 (got -1.0)"),
        ({"step_fixed_s": math.inf}, "key 'step_fixed_s' must be finite"),
        ({"step_fixed_s": math.nan}, "key 'step_fixed_s' must be at least 0 (got nan)"),
        ({"frames_per_step": 0}, "key 'frames_per_step' must be above 0"),
    ],
)
def test_a_wrong_time_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        replace(NOISY, **change)
    assert str(caught.value).startswith(message)


def refusal(read: Any, path: Path) -> str:
    with pytest.raises(UserError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_missing_and_broken_files_are_one_line_each(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert "no such file" in refusal(read_scenarios, path)
    path.write_text("{")
    assert "not valid YAML" in refusal(read_scenarios, path)
    path.write_text("[]")
    assert "is not of type 'object'" in refusal(read_scenarios, path)
    path.write_text(yaml.safe_dump({"scenarios": [SCENARIO, SCENARIO]}))
    assert "scenario 'a': is given twice" in refusal(read_scenarios, path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layout": LAYOUT | {"worker_hosts": []}}, "scenario 'a': key 'local_workers' or 'worker_hosts' must give"),
        ({"layout": LAYOUT | {"min_columns": 5}}, "scenario 'a': key 'min_columns' must be at most max_columns"),
        ({"layout": LAYOUT | {"max_columns": 1}}, "scenario 'a': key 'max_columns' must be at least the 2 columns"),
        ({"layout": LAYOUT | {"queue_unrolls": 1}}, "scenario 'a': key 'queue_unrolls' holds less than"),
        ({"layout": LAYOUT | {"latency": 1}}, "scenarios.0.layout: unknown key 'latency' (did you mean 'latency_s'?)"),
        ({"layout": LAYOUT | {"worker_hosts": [3]}}, "key 'scenarios.0.layout.worker_hosts.0': 3 is not of type"),
        ({"system": "sead"}, "unknown value of 'scenarios.0.system': 'sead' (did you mean 'seed'?)"),
        ({"assumptions": []}, "key 'scenarios.0.assumptions': [] should be non-empty"),
        ({"assumptions": "none"}, "key 'scenarios.0.assumptions': 'none' is not of type 'array'"),
        ({"assumed_times": {"train": {"value": 1, "derivation": "x"}}}, "assumed_times: unknown key 'train'"),
        ({"assumed_times": {"step_cv": {"value": 1}}}, "'derivation' is a required property"),
        ({"assumed_times": {"step_cv": {"value": 1, "derivation": " "}}}, "step_cv.derivation': ' ' does not match"),
        ({"latencies_s": []}, "key 'scenarios.0.latencies_s': [] should be non-empty"),
        ({"latencies_s": ["x"]}, "key 'scenarios.0.latencies_s.0': 'x' is not of type 'number'"),
        ({"span": {"measured_s": 0}}, "key 'scenarios.0.span.measured_s': 0 is less than or equal to the minimum of 0"),
    ],
)
def test_a_wrong_scenario_is_one_line_with_file_scenario_and_key(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = tmp_path / "scenarios.yaml"
    path.write_text(yaml.safe_dump({"scenarios": [SCENARIO | change]}))
    assert message in refusal(read_scenarios, path)


def test_the_schema_knows_every_key_of_the_inputs_and_no_other() -> None:
    definitions = schema("scenarios")["$defs"]
    parts = definitions["scenario"]["properties"]
    stated = {
        ServiceTimes: parts["assumed_times"]["properties"],
        Layout: definitions["layout"]["properties"],
        Hosts: definitions["layout"]["properties"]["worker_hosts"]["items"]["properties"],
        Span: parts["span"]["properties"],
        Scenario: {name: rule for name, rule in parts.items() if name != "latencies_s"},
    }
    for kind, properties in stated.items():
        assert set(properties) == {one.name for one in fields(kind)}


def test_a_shared_accelerator_is_one_device() -> None:
    with pytest.raises(UserError, match="'shared_accelerator' needs 1 inference_devices"):
        replace(ONE, shared_accelerator=True, inference_devices=2)


@pytest.mark.parametrize("system", ["seed", "impala"])
def test_a_system_without_any_time_is_refused(system: Any) -> None:
    with pytest.raises(UserError, match="neither environments nor inference nor messages take any time"):
        run(FREE, ONE, system=system)
    with pytest.raises(UserError, match="training takes no time"):
        run(replace(NOISY, train_fixed_s=0.0), replace(ONE, uses_per_column=2.0), system=system)


def test_scenarios_say_what_was_assumed_and_stand_beside_what_was_published(tmp_path: Path) -> None:
    path = tmp_path / "scenarios.yaml"
    path.write_text(yaml.safe_dump({"scenarios": [SCENARIO, SCENARIO | {"name": "b", "latencies_s": [0.001, 0.05]}]}))
    scenarios = read_scenarios(path)
    assert [(one.name, one.layout.latency_s) for one in scenarios] == [("a", 0), ("b_1ms", 0.001), ("b_50ms", 0.05)]
    assert scenarios[0].times(NOISY) == replace(NOISY, train_fixed_s=0.01)
    table = predict_scenarios({"seed": NOISY}, scenarios)
    assert list(table["scenario"]) == ["a", "b_1ms", "b_50ms"]
    assert table["frames_per_s"].is_monotonic_decreasing
    assert set(table["assumed_times"]) == {"train_fixed_s = 0.01: half of ours"}
    assert set(table["assumptions"]) == {"each host has one core"}
    assert set(table["published_frames_per_s"]) == {67000}


def test_each_scenario_has_the_service_times_of_its_own_system(tmp_path: Path) -> None:
    path = tmp_path / "scenarios.yaml"
    path.write_text(yaml.safe_dump({"scenarios": [SCENARIO, SCENARIO | {"name": "b", "system": "impala"}]}))
    slower = replace(NOISY, step_per_env_s=3 * NOISY.step_per_env_s)
    times: dict[System, ServiceTimes] = {"seed": NOISY, "impala": slower}
    scenarios = read_scenarios(path)
    rates = [
        predict(one.times(times[one.system]), one.layout, system=one.system, span=one.span).frames_per_s
        for one in scenarios
    ]
    assert list(predict_scenarios(times, scenarios)["frames_per_s"]) == rates
    assert rates != list(predict_scenarios({"seed": slower, "impala": NOISY}, scenarios)["frames_per_s"])


def test_every_scenario_of_the_replication_runs_and_names_a_published_cell() -> None:
    scenarios = read_scenarios(FOLDER / "scenarios.yaml")
    cells = set(load_published(FOLDER)["cell"])
    assert {one.published_cell for one in scenarios} - {""} <= cells
    assert all(one.published_cell for one in scenarios if one.published_frames_per_s)
    assert {one.layout.latency_s for one in scenarios} >= {1e-4, 1e-3, 0.01, 0.05, 0.1}
    assert {one.system for one in scenarios} == {"seed", "impala"}
    brief = [replace(one, span=Span(0.0, 0.05 + 2.5 * one.layout.latency_s)) for one in scenarios]
    times: dict[System, ServiceTimes] = {"seed": NOISY, "impala": NOISY}
    table = predict_scenarios(times, brief)
    assert (table["frames_per_s"] > 0).all()
    assert (table["assumptions"].str.len() > 40).all()
    pd.testing.assert_frame_equal(predict_scenarios(times, brief, processes=2), table)


# Published cells.


def test_the_derived_medians_are_those_of_the_digitised_curves() -> None:
    published = load_published(FOLDER)
    references = reference_scores(FOLDER.parent / "references" / "atari57.csv", ["standard"]).set_index("task")
    curves = matching(published, {"item": "Repository training curves", "metric": "episode_return"})
    assert curves.groupby("task").size().eq(4).all()
    own = references.loc[curves["task"]]
    scores = 100 * (curves["value"].to_numpy() - own["random"]) / (own["human"] - own["random"])
    medians = scores.groupby(curves["budget_frames"].to_numpy()).median()
    derived = matching(published, {"statistic": "derived"}).set_index("budget_frames")["value"]
    assert len(derived) == 4
    assert dict(derived) == {frames: round(median) for frames, median in medians.items()}
