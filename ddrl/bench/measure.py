"""Interleaved repeats: the parts and then each topology, in every repeat."""

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
    """The measurements of one topology in one repeat."""

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
    """Fraction of the wall-clock time in which the learner, or an actor on average, did not wait for another role; in
    runtime serial, where roles take turns, the fraction that a role had."""
    cpu_utilisation: float
    """CPU seconds of all processes of the run / (wall-clock x cores)."""
    policy_lag_mean: float
    others: float
    """Fraction of the cores' time that other processes took."""


def bench(
    configs: Sequence[RunConfig],
    *,
    seconds: float,
    repeats: int,
    note: Callable[[str], None],
    keep: Callable[[dict[str, Any]], None] = lambda result: None,
    names: Sequence[str] = (),
) -> dict[str, Any]:
    """Measure all configurations once in each of `repeats` repeats; return plain data.

    They differ only in their topologies, or (with `names`, one for each) are different systems. In a repeat each takes
    1.25 x `seconds`, and the parts, which topologies may share, take `seconds`. `keep` gets the result so far after
    each repeat.
    """
    found: list[list[Repeat]] = [[] for _ in configs]
    provenance = manifest.provenance()
    result: dict[str, Any] = {}
    for index in range(repeats):
        parts: dict[str, Parts] = {}
        for place, config in enumerate(configs):
            last = repeat_of(config, seconds, parts)
            found[place].append(last)
            label = names[place] if names else describe_topology(to_json(config)["topology"])
            without = names or math.isnan(last.bound)
            bound = " frames/s" if without else f" of {last.bound:,.0f} frames/s ({last.ratio:.2f})"
            note(f"repeat {index + 1}/{repeats}, {label}: {last.training:,.0f}{bound}")
        measurements = [_summary(config, results) for config, results in zip(configs, found, strict=True)]
        if names:
            measurements = [{"system": name} | one for name, one in zip(names, measurements, strict=True)]
        result = {
            "parameters": parameter_count(configs[0]),
            "seconds": seconds,
            **{name: provenance[name] for name in ("hardware", "git_sha", "git_dirty", "packages")},
            "measurements": measurements,
            **({} if names else {"comparisons": _comparisons(measurements)}),
        }
        keep(result)
    return result


def measure(config: RunConfig, seconds: float) -> Repeat:
    """Measure once: each part for a third of `seconds`, then the whole for `seconds`."""
    return repeat_of(config, seconds, {})


def repeat_of(config: RunConfig, seconds: float, known: dict[str, Parts]) -> Repeat:
    """Measure once, but take the parts from `known` if they are there, else add them to it."""
    torch.set_num_threads(1)
    key = fingerprint(alone(config))
    if key not in known:
        known[key] = measure_parts(config, seconds)
    parts = known[key]
    bound = parts.bound(len(os.sched_getaffinity(0)))
    whole = measure_whole(config, seconds)
    return Repeat(parts.simulation, parts.inference, parts.training, bound, ratio=whole.training / bound, **vars(whole))


def describe_topology(topology: Mapping[str, Any]) -> str:
    """Describe a topology in a few words."""
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
    """Say how the CPU time is divided between the parts, and how busy the cores were."""
    costs = {
        name: statistics.median(getattr(result, name).cpu_seconds_per_step for result in results) for name in PARTS
    }
    share = {name: cost / sum(costs.values()) for name, cost in costs.items()}
    busy = statistics.median(result.cpu_utilisation for result in results)
    shares = ", ".join(f"{name.removesuffix('_part')} {value:.0%}" for name, value in share.items())
    return f"CPU time: {shares}; cores busy {busy:.0%}"


def system_of(topology: Mapping[str, Any]) -> str:
    """Return the runtime, and the place of central inference: `ray`, `ray central`, `threads workers`."""
    if topology.get("inference") != "central":
        return str(topology["runtime"])
    return f"{topology['runtime']} {'workers' if topology['central'].get('worker_processes') else 'central'}"


def best_of(measurements: Sequence[Mapping[str, Any]], system: str) -> Mapping[str, Any]:
    """Return the measurement of a system (`system_of`) with the highest median speed."""
    of_system = [one for one in measurements if system_of(one["config"]["topology"]) == system]
    return max(of_system, key=lambda one: one["median_training_frames_per_second"])


def systems_of(measurements: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the systems (`system_of`) in the order in which they were measured."""
    return list(dict.fromkeys(system_of(one["config"]["topology"]) for one in measurements))


def _comparisons(measurements: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Compare each other system's training speed with the first one's, each with its best topology."""
    first, *others = systems_of(measurements)
    base = best_of(measurements, first)
    comparisons = []
    for system in others:
        ratios = speed_ratios(best_of(measurements, system), base)
        low, median, high = min(ratios), statistics.median(ratios), max(ratios)
        found = {"ratios": ratios, "median": median, "lowest": low, "highest": high}
        comparisons.append({"runtime": system, "against": first} | found)
    return comparisons


def speed_ratios(one: Mapping[str, Any], base: Mapping[str, Any]) -> list[float]:
    """Return the training speed of one topology over another's, for each repeat."""
    pairs = zip(one["repeats"], base["repeats"], strict=True)
    return [own["training"] / other["training"] for own, other in pairs]
