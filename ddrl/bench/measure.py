"""Interleaved repeats: the parts, then each topology, then the same again."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ddrl.bench.parts import Part, Parts, alone, measure_parts, parameter_count
from ddrl.bench.topology import measure_whole
from ddrl.training.config.run_config import RunConfig, fingerprint, to_json
from ddrl.training.records import manifest

PARTS = ("simulation", "inference", "training_part")


@dataclass(frozen=True)
class Repeat:
    """One repeat of one topology: the parts, then the whole."""

    simulation: Part
    inference: Part
    training_part: Part
    bound: float
    """Frames per second if all cores did nothing but the parts."""
    rollout: float
    """Frames per second that the actors made."""
    training: float
    """Fresh frames per second that the learner consumed: the number to compare between systems."""
    ratio: float
    """training / bound."""
    duty: dict[str, float]
    """Fraction of wall-clock that a role (actor: each of them) did not wait for another; where roles take turns
    (runtime serial), the fraction that is its own."""
    cpu_utilisation: float
    """CPU seconds of all processes of the run / (wall-clock x cores)."""
    policy_lag_mean: float
    others: float
    """Fraction of the cores' time that other processes took meanwhile."""


def bench(
    configs: Sequence[RunConfig],
    *,
    seconds: float,
    repeats: int,
    note: Callable[[str], None],
    keep: Callable[[dict[str, Any]], None] = lambda result: None,
) -> dict[str, Any]:
    """Measures all configurations once, then all again, `repeats` times; returns plain data.

    The configurations differ in nothing but their topology. Each takes 1.25 x `seconds` a repeat, and the parts, which
    topologies may have in common, take `seconds`. `keep` gets the result so far after each repeat.
    """
    found: list[list[Repeat]] = [[] for _ in configs]
    provenance = manifest.provenance()
    result: dict[str, Any] = {}
    for index in range(repeats):
        parts: dict[str, Parts] = {}
        for config, results in zip(configs, found, strict=True):
            last = repeat_of(config, seconds, parts)
            results.append(last)
            bound = "" if math.isnan(last.bound) else f" of {last.bound:,.0f} frames/s ({last.ratio:.2f})"
            note(
                f"repeat {index + 1}/{repeats}, {describe_topology(to_json(config)['topology'])}: "
                f"{last.training:,.0f}{bound or ' frames/s'}"
            )
        measurements = [_summary(config, results) for config, results in zip(configs, found, strict=True)]
        result = {
            "parameters": parameter_count(configs[0]),
            "seconds": seconds,
            **{name: provenance[name] for name in ("hardware", "git_sha", "git_dirty", "packages")},
            "measurements": measurements,
            "comparisons": _comparisons(measurements),
        }
        keep(result)
    return result


def measure(config: RunConfig, seconds: float) -> Repeat:
    """One repeat: each part for a third of `seconds`, then the whole for `seconds`."""
    return repeat_of(config, seconds, {})


def repeat_of(config: RunConfig, seconds: float, known: dict[str, Parts]) -> Repeat:
    """Takes the parts from `known`, or measures them and puts them there."""
    torch.set_num_threads(1)
    key = fingerprint(alone(config))
    if key not in known:
        known[key] = measure_parts(config, seconds)
    parts = known[key]
    bound = parts.bound(len(os.sched_getaffinity(0)))
    whole = measure_whole(config, seconds)
    return Repeat(parts.simulation, parts.inference, parts.training, bound, ratio=whole.training / bound, **vars(whole))


def describe_topology(topology: Mapping[str, Any]) -> str:
    """In a few words."""
    learners = f"{topology['num_learners']} learners with " if topology.get("num_learners", 1) > 1 else ""
    threads = topology["learner_threads"]
    return (
        f"{system_of(topology)}, {topology['num_actors']} x {topology['envs_per_actor']} environments, "
        f"{learners}{threads} learner thread{'s' * (threads > 1)}"
    )


def _summary(config: RunConfig, results: list[Repeat]) -> dict[str, Any]:
    return {
        "config": to_json(config),
        "repeats": [asdict(result) for result in results],
        "median_training_frames_per_second": statistics.median(r.training for r in results),
        "median_bound_frames_per_second": statistics.median(r.bound for r in results),
        "median_ratio": statistics.median(r.ratio for r in results),
        "limiting_part": limiting_part(results),
    }


def limiting_part(results: Sequence[Repeat]) -> str:
    """Which part takes most of the CPU time, and whether the cores were kept busy."""
    costs = {
        name: statistics.median(getattr(result, name).cpu_seconds_per_step for result in results) for name in PARTS
    }
    share = {name: cost / sum(costs.values()) for name, cost in costs.items()}
    busy = statistics.median(result.cpu_utilisation for result in results)
    shares = ", ".join(f"{name.removesuffix('_part')} {value:.0%}" for name, value in share.items())
    return f"CPU time: {shares}; cores busy {busy:.0%}"


def system_of(topology: Mapping[str, Any]) -> str:
    """The runtime, and where inference is unless it is with the actors: `ray`, `ray central`, `threads workers`."""
    if topology.get("inference") != "central":
        return str(topology["runtime"])
    return f"{topology['runtime']} {'workers' if topology['central'].get('worker_processes') else 'central'}"


def best_of(measurements: Sequence[Mapping[str, Any]], system: str) -> Mapping[str, Any]:
    """The fastest of a system (`system_of`), by the median."""
    of_system = [one for one in measurements if system_of(one["config"]["topology"]) == system]
    return max(of_system, key=lambda one: one["median_training_frames_per_second"])


def systems_of(measurements: Sequence[Mapping[str, Any]]) -> list[str]:
    """In the order in which they were measured."""
    return list(dict.fromkeys(system_of(one["config"]["topology"]) for one in measurements))


def _comparisons(measurements: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Training speed of each other system over the first one's, each with its best topology: repeat by repeat."""
    first, *others = systems_of(measurements)
    base = best_of(measurements, first)
    return [_compare(best_of(measurements, system), base) for system in others]


def _compare(one: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    ratios = speed_ratios(one, base)
    return {
        "runtime": system_of(one["config"]["topology"]),
        "against": system_of(base["config"]["topology"]),
        "ratios": ratios,
        "median": statistics.median(ratios),
        "lowest": min(ratios),
        "highest": max(ratios),
    }


def speed_ratios(one: Mapping[str, Any], base: Mapping[str, Any]) -> list[float]:
    """Training speed of one topology over that of another, repeat by repeat."""
    pairs = zip(one["repeats"], base["repeats"], strict=True)
    return [own["training"] / other["training"] for own, other in pairs]
