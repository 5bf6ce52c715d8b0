"""Architectures side by side: those of IMPALA's Table 1 (Espeholt et al. 2018) and GA3C, on one machine, in one run.

All have the same network, the same number of environments, unrolls of the same length and, where they have batches,
batches of the same size, so that what differs is who waits for whom. A3C and GA3C have an environment a worker, as in
their papers; actors of the others step several together.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ddrl.bench.defaults import default_config, merged
from ddrl.bench.measure import PARTS, Repeat, limiting_part, repeat_of, speed_ratios
from ddrl.bench.parts import Parts, parameter_count
from ddrl.bench.text import disturbance, fraction, head, row, whole
from ddrl.environments.base import registry
from ddrl.errors import UserError
from ddrl.training.config.run_config import RunConfig, to_json
from ddrl.training.records import manifest

ENVIRONMENTS, UNROLL, BATCH = 32, 20, 32
"""Environments of each system; agent steps of an unroll and unrolls of a batch, as in IMPALA's Table G.1."""
WORKERS = 4 * (os.cpu_count() or 1)
"""Actors whose inference is batched: some wait for an answer while others step."""
BASE = "A3C"
"""What the others are held against, as in Table 1."""

_CORES = os.cpu_count() or 1
_EACH_CORE = {"num_actors": _CORES, "envs_per_actor": ENVIRONMENTS // _CORES}
_CENTRAL = {"num_actors": WORKERS, "envs_per_actor": ENVIRONMENTS // WORKERS, "inference": "central"}
_ONE_EACH = {"num_actors": ENVIRONMENTS, "envs_per_actor": 1}
_WAITS = {"schedule": "synchronous"}
SYSTEMS: dict[str, tuple[str, dict[str, Any]]] = {
    BASE: ("a3c", _ONE_EACH | {"learner_threads": 1}),
    "A2C, synchronous steps": (
        "a2c",
        _WAITS | {"num_actors": 1, "envs_per_actor": ENVIRONMENTS, "env_threads": _CORES},
    ),
    "A2C, synchronous trajectories": ("a2c", _WAITS | _EACH_CORE),
    "A2C, dynamic batching": ("a2c", _WAITS | _CENTRAL),
    "GA3C": ("ga3c", _ONE_EACH | {"inference": "central", "learner_threads": 1}),
    "IMPALA": ("impala", _EACH_CORE),
    "IMPALA, dynamic batching": ("impala", _CENTRAL),
}
"""Name -> algorithm, topology."""
_COLUMNS = ("training", "lowest", "highest", "per core", "to A3C", "lowest", "highest", "bound", "ratio")
_MORE = ("cpu busy", "others", "lag mean", "CPU us", "sim", "infer", "train", "rest")


def system_configs(environment: str, overrides: Mapping[str, Any]) -> dict[str, RunConfig]:
    """What `ddrl bench --all` measures, with `overrides` for all. Raises `UserError` where a system cannot learn it."""
    if registry.spec_for(environment).action_size:
        raise UserError(f"bench --all: '{environment}' has continuous actions; allowed: tasks with discrete actions")
    configs = {}
    for name, (algorithm, topology) in SYSTEMS.items():
        hyperparameters = {"unroll_length": UNROLL} | ({} if algorithm == "a3c" else {"batch_size": BATCH})
        own = {"hyperparameters": hyperparameters, "topology": {"learner_threads": _CORES} | topology}
        configs[name] = default_config(algorithm, environment, merged(own, overrides))
    return configs


def bench_all(
    configs: Mapping[str, RunConfig],
    *,
    seconds: float,
    repeats: int,
    note: Callable[[str], None],
    keep: Callable[[dict[str, Any]], None] = lambda result: None,
) -> dict[str, Any]:
    """Measures all systems once, then all again, `repeats` times; returns plain data. `keep` as for `bench`."""
    found: dict[str, list[Repeat]] = {name: [] for name in configs}
    provenance, result = manifest.provenance(), dict[str, Any]()
    for index in range(repeats):
        parts: dict[str, Parts] = {}
        for name, config in configs.items():
            last = repeat_of(config, seconds, parts)
            found[name].append(last)
            note(f"repeat {index + 1}/{repeats}, {name}: {last.training:,.0f} frames/s")
        result = {
            "parameters": parameter_count(next(iter(configs.values()))),
            "seconds": seconds,
            **{name: provenance[name] for name in ("hardware", "git_sha", "git_dirty", "packages")},
            "measurements": [_summary(name, config, found[name]) for name, config in configs.items()],
        }
        keep(result)
    return result


def _summary(name: str, config: RunConfig, repeats: Sequence[Repeat]) -> dict[str, Any]:
    return {
        "system": name,
        "config": to_json(config),
        "repeats": [asdict(repeat) for repeat in repeats],
        "median_training_frames_per_second": statistics.median(repeat.training for repeat in repeats),
        "median_bound_frames_per_second": statistics.median(repeat.bound for repeat in repeats),
        "median_ratio": statistics.median(repeat.ratio for repeat in repeats),
        "limiting_part": limiting_part(repeats),
    }


def cpu_per_frame(repeat: Mapping[str, Any], cores: int, frame_skip: int) -> dict[str, float]:
    """CPU microseconds of an environment frame: of all, of each part as measured alone, and what is left of all."""
    all_ = 1e6 * repeat["cpu_utilisation"] * cores / repeat["training"]
    parts = {name: 1e6 * repeat[name]["cpu_seconds_per_step"] / frame_skip for name in PARTS}
    return {"all": all_, **parts, "rest": all_ - sum(parts.values())}


def describe_all(result: Mapping[str, Any]) -> str:
    """A row a system, in the order of Table 1; processor time is in microseconds of all cores for each frame."""
    measurements, cores = result["measurements"], result["hardware"]["cores"]
    base = next(one for one in measurements if one["system"] == BASE)
    frame_skip = registry.spec_for(**base["config"]["environment"]).frame_skip
    lines = [*head(result, f"{len(measurements)} systems"), "", row("", (*_COLUMNS, *_MORE), 31)]
    for one in measurements:
        speeds, ratios = [repeat["training"] for repeat in one["repeats"]], speed_ratios(one, base)
        speed = statistics.median(speeds)
        cells = [whole(value) for value in (speed, min(speeds), max(speeds), speed / cores)]
        cells += [fraction(value) for value in (statistics.median(ratios), min(ratios), max(ratios))]
        cells += [whole(one["median_bound_frames_per_second"]), fraction(one["median_ratio"])]
        for name in ("cpu_utilisation", "others"):
            cells.append(fraction(statistics.median(repeat[name] for repeat in one["repeats"])))
        cells.append(f"{statistics.median(repeat['policy_lag_mean'] for repeat in one['repeats']):.1f}")
        costs = [cpu_per_frame(repeat, cores, frame_skip) for repeat in one["repeats"]]
        cells += [f"{statistics.median(cost[name] for cost in costs):.0f}" for name in ("all", *PARTS, "rest")]
        lines.append(row(one["system"], cells, 31))
    return "\n".join([*lines, *disturbance(measurements)])
