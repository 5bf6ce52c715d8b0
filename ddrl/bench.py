"""How fast is a topology, and how fast could it be? Everything measured side by side, in one process, in one run.

The yardstick is the sum of parts: cores / (CPU seconds of simulation + inference + training per agent step), each part
measured alone on one thread. A run that keeps every core busy with nothing but these parts has ratio 1.
"""

from __future__ import annotations

import math
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import torch

from ddrl import manifest
from ddrl.config import RunConfig, parse_run_config, to_json
from ddrl.run import Run
from ddrl.types import Unroll, concatenate


@dataclass(frozen=True)
class Part:
    """One part alone: CPU seconds per agent step (all threads of the process), and environment frames per second."""

    cpu_seconds_per_step: float
    frames_per_second: float


@dataclass(frozen=True)
class Repeat:
    """One interleaved repeat: the parts, then the whole topology."""

    simulation: Part
    inference: Part
    training_part: Part
    bound: float
    """Frames per second if all cores did nothing but the parts."""
    rollout: float
    """Frames per second that the actors made."""
    training: float
    """Frames per second that the learner consumed: the number to compare between systems."""
    ratio: float
    """training / bound."""
    duty: dict[str, float]
    """Fraction of wall-clock that a role did not wait for another."""
    cpu_utilisation: float
    """CPU seconds of the process / (wall-clock x cores)."""
    policy_lag_mean: float
    others: float
    """Fraction of the cores' time that other processes took meanwhile."""


def bench(config: RunConfig, *, seconds: float, repeats: int, note: Callable[[str], None]) -> dict[str, Any]:
    """Measures `config` (runtime threads) `repeats` times, each about 2 x `seconds`; returns plain data."""
    results = []
    for index in range(repeats):
        results.append(measure(config, seconds))
        last = results[-1]
        note(f"repeat {index + 1}/{repeats}: {last.training:,.0f} of {last.bound:,.0f} frames/s ({last.ratio:.2f})")
    summary = {
        "median_training_frames_per_second": statistics.median(r.training for r in results),
        "median_bound_frames_per_second": statistics.median(r.bound for r in results),
        "median_ratio": statistics.median(r.ratio for r in results),
        "limiting_part": _limiting_part(results),
    }
    with tempfile.TemporaryDirectory() as directory:
        parameters = _quiet_run(config, directory).parameter_count
    return {
        "config": to_json(config),
        "parameters": parameters,
        "hardware": manifest.hardware(),
        "seconds": seconds,
        "repeats": [asdict(result) for result in results],
        **summary,
    }


def describe(result: dict[str, Any]) -> str:
    """What was measured, as a table in plain text: one row a repeat."""
    config, hardware = result["config"], result["hardware"]
    topology = config["topology"]
    lines = [
        f"{config['algorithm']} on {config['environment']['name']}, {config['hyperparameters']['network']} network of "
        f"{result['parameters']:,} parameters, {config['precision']}; {hardware['cpu']}, {hardware['cores']} cores, "
        f"GPU {hardware['gpu'] or 'none'}",
        f"{topology['num_actors']} actors x {topology['envs_per_actor']} environments, "
        f"{topology['learner_threads']} learner threads; frames/s, environment frames before frame skip",
        "",
        f"{'':8}" + "".join(f"{name:>12}" for name in _COLUMNS),
    ]
    for index, repeat in enumerate(result["repeats"]):
        row = (
            *(f"{repeat[part]['frames_per_second']:,.0f}" for part in ("simulation", "inference", "training_part")),
            *(f"{repeat[name]:,.0f}" for name in ("bound", "rollout", "training")),
            *(f"{value:.2f}" for value in (repeat["ratio"], *repeat["duty"].values(), repeat["cpu_utilisation"])),
            f"{repeat['policy_lag_mean']:.1f}",
        )
        lines.append(f"{index + 1:<8}" + "".join(f"{cell:>12}" for cell in row))
    lines += [
        "",
        f"median: training {result['median_training_frames_per_second']:,.0f} frames/s, bound "
        f"{result['median_bound_frames_per_second']:,.0f}, ratio {result['median_ratio']:.2f}",
        result["limiting_part"],
    ]
    return "\n".join(lines)


_COLUMNS = (
    *("sim alone", "infer alone", "train alone", "bound", "rollout", "training"),
    *("ratio", "actor duty", "learn duty", "cpu busy", "lag mean"),
)


def default_config(algorithm: str, environment: str, overrides: dict[str, Any]) -> RunConfig:
    """The configuration that `ddrl bench` measures where nothing else is said: the fastest topology found so far."""
    topology: dict[str, Any] = {
        "runtime": "threads",
        "num_actors": 3,
        "envs_per_actor": 32,
        "learner_threads": os.cpu_count() or 1,
    }
    values: dict[str, Any] = {
        "algorithm": algorithm,
        "environment": {"name": environment},
        "seed": 0,
        "env_frames": 2**40,
        "recording": {"period_frames": 2**40, "tensorboard": False},
        "checkpoint": {"period_frames": 2**40},
    }
    topology |= overrides.get("topology", {})
    return parse_run_config(values | overrides | {"topology": topology}, where="bench")


def _quiet_run(config: RunConfig, directory: str) -> Run:
    return Run(config, Path(directory), quiet=True)


def measure(config: RunConfig, seconds: float) -> Repeat:
    """One interleaved repeat: each part for a third of `seconds`, then the whole for `seconds`."""
    torch.set_num_threads(1)
    alone = replace(config, topology=replace(config.topology, num_actors=1, learner_threads=1))
    with tempfile.TemporaryDirectory() as directory:
        simulation, inference, training_part = _parts(_quiet_run(alone, directory), seconds / 3)
    with tempfile.TemporaryDirectory() as directory:
        run = _quiet_run(config, directory)
        cores = len(os.sched_getaffinity(0))
        cost = sum(part.cpu_seconds_per_step for part in (simulation, inference, training_part))
        bound = run.spec.frame_skip * cores / cost
        whole = _whole(run, seconds)
    return Repeat(simulation, inference, training_part, bound, ratio=whole["training"] / bound, **whole)


def _parts(run: Run, seconds: float) -> tuple[Part, Part, Part]:
    """Simulation, inference, training: each alone, on one thread, with the shapes that the run uses."""
    collector = run.collectors[0]
    env, policy, skip = collector.env, collector.policy, run.spec.frame_skip
    step = env.reset()
    actions = [policy.act(step).action.numpy() for _ in range(16)]
    counter = iter(range(2**62))
    simulation = _time(lambda: env.step(actions[next(counter) % 16]), env.num_envs, skip, seconds)
    inference = _time(lambda: policy.act(step), env.num_envs, skip, seconds)
    batch = _batch(run)
    training = _time(lambda: run.learner.update(batch), int(batch.valid.sum()), skip, seconds)
    return simulation, inference, training


def _batch(run: Run) -> Unroll:
    """A real batch of fresh columns."""
    hyperparameters, topology = run.config.hyperparameters, run.config.topology
    unrolls = -(-hyperparameters.batch_size // topology.envs_per_actor)
    parts = [run.collectors[0].collect(hyperparameters.unroll_length) for _ in range(unrolls)]
    return concatenate(parts).columns(0, hyperparameters.batch_size)


def _time(work: Callable[[], object], steps: int, frame_skip: int, seconds: float) -> Part:
    """Repeats `work` (worth `steps` agent steps) for `seconds` after a warm-up."""
    for _ in range(3):
        work()
    calls, cpu, wall = 0, time.process_time(), time.perf_counter()
    while time.perf_counter() - wall < seconds:
        work()
        calls += 1
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return Part(cpu / (calls * steps), calls * steps * frame_skip / wall)


def _whole(run: Run, seconds: float) -> dict[str, Any]:
    """The topology at work: a warm-up of a quarter, then `seconds` between two looks."""
    lags: list[float] = []
    updates: list[tuple[float, int]] = []
    learn = run.learner.step

    def learn_and_look() -> Any:
        metrics = learn()
        lags.append(metrics["policy_lag_mean"])
        updates.append((time.perf_counter(), run.learner.env_frames))
        return metrics

    run.learner.step = learn_and_look
    worker = threading.Thread(target=run.run_roles, name="bench")
    worker.start()
    time.sleep(seconds / 4)
    before = _look(run)
    time.sleep(seconds)
    after = _look(run)
    run.interrupted = True
    worker.join()
    wall, cpu, busy, made, insert_waited, sample_waited = (b - a for a, b in zip(before, after, strict=True))
    actors, cores = run.config.topology.num_actors, len(os.sched_getaffinity(0))
    return {
        "rollout": made / wall,
        "training": _speed(updates, before[0], after[0]),
        "duty": {"actor": 1 - insert_waited / (wall * actors), "learner": 1 - sample_waited / wall},
        "cpu_utilisation": cpu / (wall * cores),
        "policy_lag_mean": statistics.fmean(lags) if lags else math.nan,
        "others": max(0.0, busy - cpu) / (wall * cores),
    }


def _look(run: Run) -> tuple[float, ...]:
    made = sum(collector.agent_steps for collector in run.collectors) * run.spec.frame_skip
    queue = run.queue
    clocks = (time.perf_counter(), time.process_time(), _busy())
    return (*clocks, made, queue.insert_waited, queue.sample_waited)


def _speed(updates: Sequence[tuple[float, int]], start: float, end: float) -> float:
    """Frames per second from the first to the last of the updates (time, env_frames) between two times.

    Counted over a fixed time instead, a short benchmark would be wrong by up to one batch.
    """
    inside = [update for update in updates if start <= update[0] <= end]
    if len(inside) < 2:
        return 0.0
    (first, frames), (last, more) = inside[0], inside[-1]
    return (more - frames) / (last - first)


def _busy() -> float:
    """CPU seconds that all processes have had on the cores of this one, waiting and idling left out."""
    times = psutil.cpu_times(percpu=True)
    idle = ("idle", "iowait", "guest", "guest_nice")  # guests are counted in user time already
    cores = [times[core]._asdict() for core in os.sched_getaffinity(0)]
    return float(sum(value for core in cores for name, value in core.items() if name not in idle))


def _limiting_part(results: list[Repeat]) -> str:
    """Which part takes most of the CPU time, and whether the cores were kept busy."""
    costs = {
        name: statistics.median(getattr(result, name).cpu_seconds_per_step for result in results)
        for name in ("simulation", "inference", "training_part")
    }
    share = {name: cost / sum(costs.values()) for name, cost in costs.items()}
    busy = statistics.median(result.cpu_utilisation for result in results)
    shares = ", ".join(f"{name.removesuffix('_part')} {value:.0%}" for name, value in share.items())
    return f"CPU time: {shares}; cores busy {busy:.0%}"
