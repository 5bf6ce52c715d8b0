"""Interleaved repeats: the parts and then each topology, in every repeat."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from operator import itemgetter
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from ddrl.bench.parts import Parts, alone, measure_parts
from ddrl.bench.topology import Repeat, measure_whole
from ddrl.training.builder import Builder
from ddrl.training.config.run_config import RunConfig, fingerprint, to_json
from ddrl.training.records import manifest
from ddrl.training.records.recorder import write_json

PARTS = ("simulation", "inference", "training_part")


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
    labels = names or [describe_topology(to_json(config)["topology"]) for config in configs]
    network = Builder(configs[0], torch.device("cpu")).network()
    provenance = manifest.provenance()
    result: dict[str, Any] = {}
    for index in range(repeats):
        parts: dict[str, Parts] = {}
        for config, label, results in zip(configs, labels, found, strict=True):
            last = measure(config, seconds, parts)
            results.append(last)
            without = names or math.isnan(last.bound)
            bound = " frames/s" if without else f" of {last.bound:,.0f} frames/s ({last.ratio:.2f})"
            note(f"repeat {index + 1}/{repeats}, {label}: {last.training:,.0f}{bound}")
        measurements = [_summary(config, results) for config, results in zip(configs, found, strict=True)]
        if names:
            measurements = [{"system": name} | one for name, one in zip(names, measurements, strict=True)]
        result = {
            "parameters": sum(tensor.numel() for tensor in network.parameters()),
            "seconds": seconds,
            **{name: provenance[name] for name in ("hardware", "git_sha", "git_dirty", "packages")},
            "measurements": measurements,
            **({} if names else {"comparisons": _comparisons(measurements)}),
        }
        keep(result)
    return result


def write_result(path: Path, result: Any) -> None:
    """Write a result as JSON, where a number that there is not (the bound with a GPU) is null."""
    write_json(path, _without_nan(result))


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_nan(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_without_nan(part) for part in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def measure(config: RunConfig, seconds: float, known: dict[str, Parts] | None = None) -> Repeat:
    """Measure once: each part for a third of `seconds`, then the whole for `seconds`.

    Parts that are in `known` are taken from there; others are added to it.
    """
    torch.set_num_threads(1)
    known, key = {} if known is None else known, fingerprint(alone(config))
    if key not in known:
        known[key] = measure_parts(config, seconds)
    return measure_whole(config, seconds, known[key])


def describe_topology(topology: Mapping[str, Any]) -> str:
    """Describe a topology in a few words."""
    learners = f"{topology['num_learners']} learners with " if topology.get("num_learners", 1) > 1 else ""
    threads, groups = topology["learner_threads"], topology.get("env_groups", 1)
    return (
        f"{system_of(topology)}, {topology['num_actors']} x {topology['envs_per_actor']} environments"
        f"{f' in {groups} groups' if groups > 1 else ''}, "
        f"{learners}{threads} learner thread{'s' * (threads > 1)}"
    )


def _summary(config: RunConfig, results: list[Repeat]) -> dict[str, Any]:
    """Return repeats and medians; `limiting_part` says how the CPU time is divided, and how busy the cores were."""
    repeats = [asdict(result) for result in results]
    middle = pd.json_normalize(repeats).median().to_dict()
    costs = {name.removesuffix("_part"): middle[f"{name}.cpu_seconds_per_step"] for name in PARTS}
    shares = ", ".join(f"{name} {cost / sum(costs.values()):.0%}" for name, cost in costs.items())
    return {
        "config": to_json(config),
        "repeats": repeats,
        "median_training_frames_per_second": middle["training"],
        "median_bound_frames_per_second": middle["bound"],
        "median_ratio": middle["ratio"],
        "limiting_part": f"CPU time: {shares}; cores busy {middle['cpu_utilisation']:.0%}",
    }


def system_of(topology: Mapping[str, Any]) -> str:
    """Return the runtime, and the place of central inference or of acting: `ray`, `ray central`, `serial device`."""
    if topology.get("acting", "host") != "host":
        return f"{topology['runtime']} {topology['acting']}"
    if topology.get("inference") != "central":
        return str(topology["runtime"])
    return f"{topology['runtime']} {'workers' if topology['central'].get('worker_processes') else 'central'}"


def fastest(measurements: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return system (`system_of`), in the order of measuring -> its measurement with the highest median speed."""
    of_system: dict[str, list[Mapping[str, Any]]] = {}
    for one in measurements:
        of_system.setdefault(system_of(one["config"]["topology"]), []).append(one)
    speed = itemgetter("median_training_frames_per_second")
    return {system: max(found, key=speed) for system, found in of_system.items()}


def _comparisons(measurements: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Compare each other system's training speed with the first one's, each with its best topology."""
    (first, base), *others = fastest(measurements).items()
    comparisons = []
    for system, best in others:
        ratios = speed_ratios(best, base)
        low, median, high = min(ratios), statistics.median(ratios), max(ratios)
        found = {"ratios": ratios, "median": median, "lowest": low, "highest": high}
        comparisons.append({"runtime": system, "against": first} | found)
    return comparisons


def speed_ratios(one: Mapping[str, Any], base: Mapping[str, Any]) -> list[float]:
    """Return the training speed of one topology over another's, for each repeat."""
    pairs = zip(one["repeats"], base["repeats"], strict=True)
    return [own["training"] / other["training"] for own, other in pairs]
