"""Measurements as tables in plain text."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from ddrl.bench.measure import describe_topology, fastest, speed_ratios, system_of

DISTURBED = 0.1
"""Fraction of the cores' time taken by other processes above which the reader is warned."""


WHOLE, FRACTION = ",.0f", ".2f"
"""Forms of speeds and of ratios."""
COLUMNS: Mapping[str, tuple[str, str]] = {
    "sim alone": ("simulation.frames_per_second", WHOLE),
    "infer alone": ("inference.frames_per_second", WHOLE),
    "train alone": ("training_part.frames_per_second", WHOLE),
    "bound": ("bound", WHOLE),
    "rollout": ("rollout", WHOLE),
    "training": ("training", WHOLE),
    "ratio": ("ratio", FRACTION),
    "actor duty": ("duty.actor", FRACTION),
    "env duty": ("duty.environments", FRACTION),
    "learn duty": ("duty.learner", FRACTION),
    "cpu busy": ("cpu_utilisation", FRACTION),
    "others": ("others", FRACTION),
    "lag mean": ("policy_lag_mean", ".1f"),
}
"""Column -> the number of a repeat that it shows, and its form."""
_SIZES: Mapping[str, tuple[str, str]] = {
    "actors": ("num_actors", ""),
    "envs": ("envs_per_actor", ""),
    "groups": ("env_groups", "1"),
    "env thr": ("env_threads", ""),
    "learn thr": ("learner_threads", ""),
    "queue": ("queue_capacity", ""),
}
"""Column of a sweep -> the key of a topology that it shows, and what an older file without that key had."""
_SWEPT = ("bound", "ratio", "actor duty", "env duty", "learn duty", "cpu busy", "others", "lag mean")


def describe(result: Mapping[str, Any]) -> str:
    """Return a table with a row for each repeat, or for each topology if there are several, and a summary."""
    measurements = result["measurements"]
    bests = fastest(measurements)
    swept = len(measurements) > len(bests)
    lines = [*head(result), "", *(_sweep(measurements) if swept else _repeats(measurements)), ""]
    for best in bests.values():
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
    yield row("", COLUMNS)
    for index in range(len(measurements[0]["repeats"])):
        for one in measurements:
            cells = medians([one["repeats"][index]], COLUMNS)
            yield row(f"{index + 1} {system_of(one['config']['topology'])}", cells)


def _sweep(measurements: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """Yield the rows of topologies, the fastest first."""
    yield row("", (*_SIZES, "training", "lowest", "highest", "to best", *_SWEPT))
    ordered = sorted(measurements, key=lambda one: -one["median_training_frames_per_second"])
    for one in ordered:
        topology = one["config"]["topology"]
        sizes = [str(topology.get(name, former)) for name, former in _SIZES.values()]
        to_best = shown(statistics.median(speed_ratios(one, ordered[0])), FRACTION)
        speeds = spread([repeat["training"] for repeat in one["repeats"]], WHOLE)
        yield row(system_of(topology), [*sizes, *speeds, to_best, *medians(one["repeats"], _SWEPT)])


def _median(one: Mapping[str, Any]) -> str:
    middle, low, high = spread([repeat["training"] for repeat in one["repeats"]], WHOLE)
    bound, ratio = medians(one["repeats"], ("bound", "ratio"))
    topology = describe_topology(one["config"]["topology"])
    return f"{topology}: median training {middle} frames/s ({low} to {high}), bound {bound}, ratio {ratio}"


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


def medians(repeats: list[dict[str, Any]], columns: Iterable[str]) -> list[str]:
    """Return the cells of some of `COLUMNS`: medians over repeats."""
    middle = pd.json_normalize(repeats).median()
    return [shown(float(middle.get(name, math.nan)), form) for name, form in (COLUMNS[column] for column in columns)]


def spread(values: Sequence[float], form: str) -> list[str]:
    """Return median, lowest and highest value as cells."""
    return [shown(value, form) for value in (statistics.median(values), min(values), max(values))]


def shown(value: float, form: str) -> str:
    """Format a number, NaN as a dash."""
    return "-" if math.isnan(value) else f"{value:{form}}"


def row(name: str, cells: Iterable[str], width: int = 17) -> str:
    """Format a row: a name in a column of `width`, then cells."""
    return f"{name:{width}}" + "".join(f"{cell:>12}" for cell in cells)
