"""Measurements as tables in plain text."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ddrl.bench.measure import PARTS, best_of, describe_topology, speed_ratios, system_of, systems_of

DISTURBED = 0.1
"""Fraction of the cores' time taken by other processes above which the reader is warned."""

_SPEEDS = ("sim alone", "infer alone", "train alone", "bound", "rollout", "training")
_FRACTIONS = ("ratio", "actor duty", "learn duty", "cpu busy", "others", "lag mean")
_SWEPT = ("actors", "envs", "learn thr", "training", "lowest", "highest", "to best", "bound", "ratio")


def describe(result: Mapping[str, Any]) -> str:
    """Return a table with a row for each repeat, or for each topology if there are several, and a summary."""
    measurements = result["measurements"]
    systems = systems_of(measurements)
    swept = len(measurements) > len(systems)
    lines = [*head(result), "", *(_sweep(measurements) if swept else _repeats(measurements)), ""]
    for system in systems:
        best = best_of(measurements, system)
        lines += [f"{'best: ' if swept else ''}{_median(best)}", f"  {best['limiting_part']}"]
        if swept:
            lines += _not_told_apart(best, measurements)
    for comparison in result["comparisons"]:
        lines.append(
            f"{comparison['runtime']} / {comparison['against']}{', each at its best' if swept else ''}: "
            f"{comparison['median']:.2f} ({comparison['lowest']:.2f} to {comparison['highest']:.2f})"
        )
    return "\n".join([*lines, *_no_bound(measurements), *disturbance(measurements)])


def head(result: Mapping[str, Any], what: str | None = None) -> list[str]:
    """Return lines that say what was measured and where; `what` stands in place of the algorithm's name."""
    first, hardware = result["measurements"][0], result["hardware"]
    config, repeats = first["config"], len(first["repeats"])
    network = config["hyperparameters"].get("network")
    return [
        f"{what or config['algorithm']} on {config['environment']['name']}, {network} network of "
        f"{result['parameters']:,} parameters, {config['precision']}; {hardware['cpu']}, {hardware['cores']} cores, "
        f"GPU {hardware['gpu'] or 'none'}",
        f"{(what and 'each its own schedule') or config['topology']['schedule']}; {repeats} interleaved repeats of "
        f"{result['seconds']:g} s; frames/s, "
        "environment frames before frame skip",
    ]


def _repeats(measurements: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    for one in measurements:
        yield describe_topology(one["config"]["topology"])
    yield row("", (*_SPEEDS, *_FRACTIONS))
    for index in range(len(measurements[0]["repeats"])):
        for one in measurements:
            repeat = one["repeats"][index]
            speeds = [repeat[part]["frames_per_second"] for part in PARTS]
            speeds += [repeat[name] for name in ("bound", "rollout", "training")]
            duty = repeat["duty"]
            fractions = [repeat["ratio"], duty["actor"], duty["learner"], repeat["cpu_utilisation"], repeat["others"]]
            cells = [whole(speed) for speed in speeds] + [fraction(value) for value in fractions]
            cells.append(f"{repeat['policy_lag_mean']:.1f}")
            yield row(f"{index + 1} {system_of(one['config']['topology'])}", cells)


def _sweep(measurements: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """Yield the rows of topologies, the fastest first."""
    yield row("", (*_SWEPT, *_FRACTIONS[1:]))
    ordered = sorted(measurements, key=lambda one: -one["median_training_frames_per_second"])
    for one in ordered:
        topology, repeats = one["config"]["topology"], one["repeats"]
        speeds = [repeat["training"] for repeat in repeats]
        cells = [str(topology[name]) for name in ("num_actors", "envs_per_actor", "learner_threads")]
        cells += [f"{speed:,.0f}" for speed in (statistics.median(speeds), min(speeds), max(speeds))]
        cells += [f"{statistics.median(speed_ratios(one, ordered[0])):.2f}"]
        cells += [whole(one["median_bound_frames_per_second"]), fraction(one["median_ratio"])]
        for role in ("actor", "learner"):
            cells.append(f"{statistics.median(repeat['duty'][role] for repeat in repeats):.2f}")
        cells += [f"{median_of(repeats, name):.2f}" for name in ("cpu_utilisation", "others")]
        yield row(system_of(topology), (*cells, f"{median_of(repeats, 'policy_lag_mean'):.1f}"))


def _median(one: Mapping[str, Any]) -> str:
    speeds = [repeat["training"] for repeat in one["repeats"]]
    return (
        f"{describe_topology(one['config']['topology'])}: median training "
        f"{one['median_training_frames_per_second']:,.0f} frames/s ({min(speeds):,.0f} to {max(speeds):,.0f}), bound "
        f"{whole(one['median_bound_frames_per_second'])}, ratio {fraction(one['median_ratio'])}"
    )


def _no_bound(measurements: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line that explains a missing bound, if one is missing."""
    line = "no bound: a GPU trains, and what the parts take of the cores' time leaves out what they take of its"
    return [line] if any(math.isnan(one["median_bound_frames_per_second"]) for one in measurements) else []


def _not_told_apart(best: Mapping[str, Any], measurements: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line with the topologies of the same system that were at least as fast as the best in some repeat."""
    system = system_of(best["config"]["topology"])
    others = [one for one in measurements if one is not best and system_of(one["config"]["topology"]) == system]
    close = [describe_topology(one["config"]["topology"]) for one in others if max(speed_ratios(one, best)) >= 1]
    return [f"  at least as fast in one of the repeats: {'; '.join(close)}"] if close else []


def disturbance(measurements: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a warning if other processes took too much of the cores' time."""
    others = max(repeat["others"] for one in measurements for repeat in one["repeats"])
    line = f"other processes took up to {others:.0%} of the cores' time: measure again on an idle machine"
    return [line] if others > DISTURBED else []


def median_of(repeats: Sequence[Mapping[str, Any]], name: str) -> float:
    """Return the median of a number over repeats."""
    return float(statistics.median(repeat[name] for repeat in repeats))


def whole(value: float) -> str:
    """Format without decimals, NaN as a dash."""
    return "-" if math.isnan(value) else f"{value:,.0f}"


def fraction(value: float) -> str:
    """Format with two decimals, NaN as a dash."""
    return "-" if math.isnan(value) else f"{value:.2f}"


def row(name: str, cells: Iterable[str], width: int = 17) -> str:
    """Format a row: a name in a column of `width`, then cells."""
    return f"{name:{width}}" + "".join(f"{cell:>12}" for cell in cells)
