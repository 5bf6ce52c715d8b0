"""Predicts environment frames per second of SEED RL (central inference) and IMPALA (local inference).

A discrete-event simulation of workers, network, inference, queue and learner from measured service times. What it knows
nothing of: memory, caches and their sharing, garbage collection, the variance of inference and training, start-up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np
import pandas as pd
from simpy import Environment, Resource

from ddrl.errors import UserError
from replications.seed_rl_2020.inputs import Layout, Scenario, ServiceTimes, Span, System
from replications.seed_rl_2020.machines import Cores, Integral, Link, Server, Steps
from replications.seed_rl_2020.services import Inference, Learner, LearnerHost, Unroll

SATURATED = 0.95
"""From this utilisation on a part is said to limit the rate."""
TOGETHER = 1e-9
"""Seconds within which steps count as simultaneous."""


@dataclass(frozen=True)
class Prediction:
    """What a layout does, over the measured period. Fractions are of the time, in [0, 1]; NaN: no such part."""

    frames_per_s: float
    """Environment frames per second, before frame skip."""
    first_half_frames_per_s: float
    second_half_frames_per_s: float
    """Of the two halves of the period: where they differ, it is too short, or the warm-up is."""
    updates_per_s: float
    limit: str
    """Parts with a utilisation of at least 0.95, the busiest first; else the longer part of a worker's cycle.

    Inference is busy all the time also where something else is the limit and its batches are small: it counts only with
    full batches, or by itself.
    """
    learner_utilisation: float
    """Training, of the time."""
    inference_utilisation: float
    """Inference, of the time of all inference devices."""
    learner_cores_utilisation: float
    worker_cores_utilisation: float
    """Of all hosts with workers alone; NaN: there are none."""
    server_threads_utilisation: float
    """NaN: their number is not limited."""
    batch_columns_mean: float
    """Columns of an inference batch."""
    call_p50_s: float
    call_p99_s: float
    """Seconds of an inference call as a worker sees it, with messages, and without waiting for room in the queue."""
    server_call_p50_s: float
    server_call_p99_s: float
    """The same from a request's arrival at the batcher to its answer."""
    blocked_fraction: float
    """Of workers' time: waiting for room in the queue."""
    lag_inside_unroll_mean: float
    """Updates between the parameters of an unroll's first and last step."""
    lag_mean: float
    """Updates between the parameters of an unroll's first step and those that it is used to update."""
    bytes_in_per_s: float
    bytes_out_per_s: float
    """Through the learner's network, over all workers on other hosts."""


@dataclass(frozen=True)
class _System:
    """All parts of one simulation."""

    env: Environment
    times: ServiceTimes
    layout: Layout
    host: LearnerHost
    learner: Learner
    inference: Inference
    server: Server
    remote: Link
    worker_cores: list[Cores]
    steps: list[float]
    """When a worker had stepped its environments."""
    calls: list[float]
    """Seconds of each inference call, as a worker sees it."""
    acting: Integral
    """Workers that step environments; with local inference, or infer."""


def predict(
    times: ServiceTimes, layout: Layout, *, system: System = "seed", span: Span | None = None, seed: int = 0
) -> Prediction:
    """Simulates `layout` for `span` (default: `Span()`). The same arguments give the same result.

    Workers start together, and each has its own stream of random step times, from (seed, its number).
    Raises: UserError where a worker's cycle or training takes no time at all.
    """
    _check_time_passes(times, layout, system)
    span = span or Span()
    parts = _build(times, layout)
    worker = _seed_worker if system == "seed" else _impala_actor
    loopback = Link(parts.env, times.loopback_latency_s, times.loopback_bytes_per_s)
    places = [(parts.host.cores, loopback)] * layout.local_workers
    for hosts in layout.worker_hosts:
        for _ in range(hosts.count):
            cores = Cores(parts.env, hosts.cores)
            parts.worker_cores.append(cores)
            places += [(cores, parts.remote)] * hosts.workers
    for number, (cores, link) in enumerate(places):
        generator = np.random.Generator(np.random.PCG64([seed, number]))
        parts.env.process(worker(parts, cores, link, generator))
    parts.env.process(parts.learner.run())
    snapshots = []
    for moment in (span.warm_up_s, span.warm_up_s + span.measured_s):
        if moment > parts.env.now:
            parts.env.run(until=moment)
        snapshots.append(_snapshot(parts))
    return _prediction(parts, system, span, *snapshots)


def _check_time_passes(times: ServiceTimes, layout: Layout, system: System) -> None:
    """Events that follow each other without end at one moment would never let the simulation get further."""
    inference = (times.inference_fixed_s, times.inference_per_column_s)
    local = (times.local_inference_fixed_s, times.local_inference_per_column_s)
    always = (times.step_seconds(layout.envs_per_worker), times.server_message_s, times.worker_message_s)
    hosts = ([times.loopback_latency_s] if layout.local_workers else []) + [layout.latency_s] * bool(
        layout.worker_hosts
    )
    if not any(always + (inference if system == "seed" else local)) and not all(hosts):
        raise UserError("neither environments nor inference nor messages take any time")
    if layout.batch_columns < layout.uses_per_column and not layout.training_seconds(times):
        raise UserError("training takes no time, and it waits for no data")


def _build(times: ServiceTimes, layout: Layout) -> _System:
    env = Environment()
    accelerator = Resource(env, 1) if layout.shared_accelerator else None
    host = LearnerHost(env, times, layout, Cores(env, layout.learner_cores), accelerator)
    learner = Learner(host)
    return _System(
        env=env,
        times=times,
        layout=layout,
        host=host,
        learner=learner,
        inference=Inference(host, learner),
        server=Server(env, times, host.cores, layout.server_threads),
        remote=Link(env, layout.latency_s, layout.bytes_per_s, layout.card_bytes_per_s),
        worker_cores=[],
        steps=[],
        calls=[],
        acting=Integral(env),
    )


def _seed_worker(parts: _System, cores: Cores, link: Link, generator: np.random.Generator) -> Steps:
    """SEED: steps E environments, sends what they observed, gets actions; every T steps are an unroll."""
    env, times, envs = parts.env, parts.times, parts.layout.envs_per_worker
    asked, answered = envs * times.request_bytes_per_column, envs * times.reply_bytes_per_column
    send = times.worker_message_s + asked * times.worker_byte_s
    receive = times.worker_message_s + answered * times.worker_byte_s
    work = _gamma(times.step_seconds(envs), times.step_cv, generator)
    first = 0
    while True:
        for step in range(parts.layout.unroll_length):
            parts.acting.add(1)
            yield cores.run(next(work))
            parts.acting.add(-1)
            began = env.now
            parts.steps.append(began)
            if send:
                yield cores.run(send)
            yield link.send(asked, "in")
            yield from parts.server.handle(asked)
            version = yield parts.inference.request(envs)
            first = first if step else version
            blocked = 0.0
            if step == parts.layout.unroll_length - 1:
                room = parts.learner.queue.put(Unroll(envs, first, version))
                if room is not None:
                    blocked = -env.now
                    yield room
                    blocked += env.now
            yield from parts.server.handle(answered)
            yield link.send(answered, "out")
            if receive:
                yield cores.run(receive)
            parts.calls.append(env.now - began - blocked)


def _impala_actor(parts: _System, cores: Cores, link: Link, generator: np.random.Generator) -> Steps:
    """IMPALA: pulls parameters, acts for T steps with inference of its own, sends the unroll, waits until it is in."""
    times, layout, envs = parts.times, parts.layout, parts.layout.envs_per_worker
    unroll = envs * layout.unroll_length * times.unroll_bytes_per_column_step
    pull = 2 * times.worker_message_s + times.parameter_bytes * times.worker_byte_s
    send = 2 * times.worker_message_s + unroll * times.worker_byte_s
    inference = times.local_inference_fixed_s + envs * times.local_inference_per_column_s
    work = _gamma(times.step_seconds(envs), times.step_cv, generator)
    while True:
        yield link.send(0.0, "in")
        yield from parts.server.handle(0.0)
        version = parts.learner.version
        yield from parts.server.handle(times.parameter_bytes)
        yield link.send(times.parameter_bytes, "out")
        yield cores.run(pull)
        parts.acting.add(1)
        for _ in range(layout.unroll_length):
            yield cores.run(next(work) + inference)
            parts.steps.append(parts.env.now)
        parts.acting.add(-1)
        yield cores.run(send)
        yield link.send(unroll, "in")
        yield from parts.server.handle(unroll)
        room = parts.learner.queue.put(Unroll(envs, version, version))
        if room is not None:
            yield room
        yield from parts.server.handle(0.0)
        yield link.send(0.0, "out")


def _gamma(mean: float, cv: float, generator: np.random.Generator, block: int = 256) -> Iterator[float]:
    """Draws without end: gamma with this mean and coefficient of variation; 0: always the mean."""
    while True:
        if cv and mean:
            yield from generator.gamma(cv**-2, mean * cv**2, size=block).tolist()
        else:
            yield mean


@dataclass(frozen=True)
class _Snapshot:
    """Integrals and counts until one moment."""

    learner: float
    inference: float
    learner_cores: float
    worker_cores: float
    threads: float
    acting: float
    blocked: float
    bytes_in: float
    bytes_out: float
    updates: int
    batches: int
    columns: int
    calls: int
    waits: int
    lags: int


def _snapshot(parts: _System) -> _Snapshot:
    return _Snapshot(
        learner=parts.learner.busy.until_now(),
        inference=parts.inference.busy.until_now(),
        learner_cores=parts.host.cores.busy.until_now(),
        worker_cores=sum(cores.busy.until_now() for cores in parts.worker_cores),
        threads=parts.server.busy.until_now(),
        acting=parts.acting.until_now(),
        blocked=parts.learner.queue.blocked.until_now(),
        bytes_in=parts.remote.sent["in"],
        bytes_out=parts.remote.sent["out"],
        updates=parts.learner.version,
        batches=len(parts.inference.batches),
        columns=sum(parts.inference.batches),
        calls=len(parts.calls),
        waits=len(parts.inference.waits),
        lags=len(parts.learner.lags),
    )


def _prediction(parts: _System, system: System, span: Span, before: _Snapshot, after: _Snapshot) -> Prediction:
    seconds, layout, central = span.measured_s, parts.layout, system == "seed"
    frames = layout.envs_per_worker * parts.times.frames_per_step
    steps = np.asarray(parts.steps)
    steps = steps[steps > span.warm_up_s]
    middle = span.warm_up_s + seconds / 2
    lags = np.asarray(parts.learner.lags[before.lags :]).reshape(-1, 2)
    calls = parts.calls[before.calls :]
    cores = sum(each.cores for each in parts.worker_cores)
    threads = parts.server.threads
    spent = {key: (value - asdict(before)[key]) / seconds for key, value in asdict(after).items()}
    used = {
        "training": spent["learner"],
        "inference": spent["inference"] / layout.inference_devices if central else np.nan,
        "learner's cores": spent["learner_cores"] / layout.learner_cores,
        "workers' cores": spent["worker_cores"] / cores if cores else np.nan,
        "message threads": spent["threads"] / threads if threads else np.nan,
    }
    return Prediction(
        frames_per_s=frames * _rate(steps, seconds),
        first_half_frames_per_s=frames * _rate(steps[steps <= middle], seconds / 2),
        second_half_frames_per_s=frames * _rate(steps[steps > middle], seconds / 2),
        updates_per_s=spent["updates"],
        limit=_limit(used, spent, layout, central),
        learner_utilisation=used["training"],
        inference_utilisation=used["inference"],
        learner_cores_utilisation=used["learner's cores"],
        worker_cores_utilisation=used["workers' cores"],
        server_threads_utilisation=used["message threads"],
        batch_columns_mean=_mean(parts.inference.batches[before.batches :]),
        call_p50_s=_percentile(calls, 50),
        call_p99_s=_percentile(calls, 99),
        server_call_p50_s=_percentile(parts.inference.waits[before.waits :], 50),
        server_call_p99_s=_percentile(parts.inference.waits[before.waits :], 99),
        blocked_fraction=spent["blocked"] / layout.workers,
        lag_inside_unroll_mean=_mean(lags[:, 0]),
        lag_mean=_mean(lags[:, 1]),
        bytes_in_per_s=spent["bytes_in"],
        bytes_out_per_s=spent["bytes_out"],
    )


def _limit(used: dict[str, float], spent: dict[str, float], layout: Layout, central: bool) -> str:
    """What is saturated, the busiest first; where nothing is, what a worker spends most of its cycle on."""
    whole_calls = layout.largest_batch // layout.envs_per_worker * layout.envs_per_worker
    full = spent["columns"] >= SATURATED * whole_calls * spent["batches"]
    shares = dict(used)
    if layout.shared_accelerator:
        shares["accelerator"] = shares.pop("training") + np.nan_to_num(shares.pop("inference"))
    if layout.card_bytes_per_s is not None:
        shares["network card"] = max(spent["bytes_in"], spent["bytes_out"]) / layout.card_bytes_per_s
    saturated = {name: share for name, share in shares.items() if share >= SATURATED}
    if len(saturated) > 1 and not full:
        saturated.pop("inference", None)
    if saturated:
        return ", ".join(sorted(saturated, key=lambda name: -saturated[name]))
    longer = spent["acting"] >= layout.workers / 2
    return ("environments" if longer else "inference calls") if central else ("acting" if longer else "messages")


def _rate(moments: np.ndarray[Any, np.dtype[np.float64]], seconds: float) -> float:
    """Events per second, between the first and the last: exact where they are periodic, whatever the period's phase."""
    if len(moments) < 2 or moments[-1] - moments[0] < TOGETHER:
        return len(moments) / seconds
    return float((moments > moments[0] + TOGETHER).sum() / (moments[-1] - moments[0]))


def _mean(values: Any) -> float:
    return float(np.mean(values)) if len(values) else float("nan")


def _percentile(values: Sequence[float], percent: float) -> float:
    return float(np.percentile(values, percent)) if values else float("nan")


def predict_scenarios(
    times: Mapping[System, ServiceTimes], scenarios: Sequence[Scenario], *, seed: int = 0, processes: int = 1
) -> pd.DataFrame:
    """One row a scenario: name, system, the fields of `Prediction`, what was published, and what was assumed.

    `times` are measured ones, of each system. Column `assumed_times` names those that the scenario puts in their place,
    each with its derivation, and column `assumptions` what else is not known. A row is an extrapolation and never a
    measurement. How many processes work at it changes nothing of it.
    """
    measured = [times[scenario.system] for scenario in scenarios]
    row = partial(_predicted, seed=seed)
    if processes == 1:
        return pd.DataFrame([row(*both) for both in zip(measured, scenarios, strict=True)])
    with ProcessPoolExecutor(processes, get_context("forkserver")) as pool:
        return pd.DataFrame(pool.map(row, measured, scenarios))


def _predicted(times: ServiceTimes, scenario: Scenario, *, seed: int) -> dict[str, Any]:
    """One row of `predict_scenarios`."""
    prediction = predict(scenario.times(times), scenario.layout, system=scenario.system, span=scenario.span, seed=seed)
    assumed = [f"{key} = {one.value:g}: {one.derivation}" for key, one in scenario.assumed_times.items()]
    published = scenario.published_frames_per_s
    return {
        "scenario": scenario.name,
        "system": scenario.system,
        **asdict(prediction),
        "published_frames_per_s": np.nan if published is None else published,
        "published_cell": scenario.published_cell,
        "assumed_times": "; ".join(assumed),
        "assumptions": "; ".join(scenario.assumptions),
    }
