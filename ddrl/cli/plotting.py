"""`ddrl plot`: curves of any runs, finished or not, in a picture or in the terminal."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddrl.cli import outputs
from ddrl.cli.run_folders import CONFIGS, CURVES, find
from ddrl.errors import Command, UserError, about, unknown_name
from ddrl.system.config_differences import check_seeds, compared, flatten
from ddrl.system.files import replacing
from ddrl.system.notes import say
from ddrl.training.records.identity import as_now, read_mapping

if TYPE_CHECKING:
    import pandas as pd

    from ddrl.analysis.figures.curves import Curve

FORMATS: Mapping[str, Mapping[str, Any]] = {
    ".png": {"dpi": 200, "metadata": {"Software": None}},
    ".svg": {"metadata": {"Date": None}},
    ".pdf": {"metadata": {"CreationDate": None}},
}
"""Ending of a picture's name -> what makes the same curves the same bytes."""
MOST_LINES, MOST_PANELS = 24, 16
"""In a panel, and in a figure: more cannot be told apart."""
TERMINAL_ROWS, TERMINAL_TICKS = 20, 6
PLAIN_MARKERS = "*+ox#@%&"
"""Of lines where there are no colours."""


@dataclass(frozen=True)
class Recorded:
    """A run with the curves that there are so far."""

    directory: Path
    config: Mapping[str, Any]
    """Flat, without keys that change no result and without the seed."""
    seed: int
    environment: str
    curves: pd.DataFrame


def read(directory: Path) -> Recorded | None:
    """Read a run; None where it has no records yet, which the user is told. Raise UserError for a damaged one."""
    from ddrl.analysis.runs import run_data
    from ddrl.training.records import recorder

    finished, running = (directory / name for name in CURVES)
    curves = run_data.read_curves(finished) if finished.exists() else recorder.read_curves(running)
    if curves.empty:
        say(f"{directory}: has no records yet; left out")
        return None
    if not finished.exists():
        say(f"{directory}: has not finished; drawn to {curves['env_frames'].max():,} frames")
    stated = next((read_mapping(path) for name in CONFIGS if (path := directory / name).exists()), {})
    config = flatten(as_now(stated))
    if not {"algorithm", "environment.name", "seed"} <= config.keys():
        raise UserError(f"{directory}: its configuration cannot be read (config.json)")
    own = {key: json.dumps(value) for key, value in config.items() if compared(key) and key != "seed"}
    return Recorded(directory, own, config["seed"], str(config["environment.name"]), curves)


def grouped(runs: Sequence[Recorded]) -> list[tuple[str, list[Recorded]]]:
    """Return the runs that differ only in their seed together, with a label that tells them from the others.

    Raise UserError where two of a group have the same seed.
    """
    groups: dict[tuple[tuple[str, str], ...], list[Recorded]] = {}
    for run in runs:
        groups.setdefault(tuple(sorted(run.config.items())), []).append(run)
    for group in groups.values():
        with about(Command("ddrl plot")):
            check_seeds([(run.seed, run.directory) for run in group])
    firsts = [group[0] for group in groups.values()]
    keys = distinguishing([(run.environment, run.config) for run in firsts])
    return [(_label(keys, group[0].config), group) for group in groups.values()]


def distinguishing(configs: Sequence[tuple[str, Mapping[str, str]]]) -> list[str]:
    """Return few and short keys by which configurations of the same environment differ; the algorithm comes first."""
    candidates = sorted({key for _, config in configs for key in config}, key=lambda key: (len(key), key))

    def told_apart(keys: Sequence[str]) -> int:
        return len({(environment, *map(config.get, keys)) for environment, config in configs})

    differ = len({config["algorithm"] for _, config in configs}) > 1
    chosen = ["algorithm"] if differ else []
    while told_apart(chosen) < len(configs):
        chosen.append(max(candidates, key=lambda key: told_apart([*chosen, key])))
    return chosen


def _label(keys: Sequence[str], config: Mapping[str, str]) -> str:
    last = [key.rpartition(".")[2] for key in keys]
    names = [short if last.count(short) == 1 else key for key, short in zip(keys, last, strict=True)]
    parts = [
        json.loads(config[key]) if key == "algorithm" else f"{name}={config.get(key, 'none').strip(chr(34))}"
        for key, name in zip(keys, names, strict=True)
    ]
    return ", ".join(parts) or str(json.loads(config["algorithm"]))


def curves_of(paths: Sequence[Path], metric: str, axis: str, points: int) -> list[Curve]:
    """Return the curves of the runs at or below `paths`, one for each group, sorted by environment and label.

    Raise UserError for a metric that no run has, and for more lines than a figure can hold.
    """
    from ddrl.analysis.figures.curves import curve

    runs = [run for path in find(paths) if (run := read(path))]
    if not runs:
        raise UserError("none of these runs has records yet; the first one comes after recording.period_frames frames")
    having = [run for run in runs if (run.curves["metric"] == metric).any()]
    if not having:
        raise unknown_name("metric", metric, {name for run in runs for name in run.curves["metric"]}, where="--metric")
    for run in runs:
        if run not in having:
            say(f"{run.directory}: has no metric '{metric}'; left out")
    groups = sorted(((group[0].environment, label, group) for label, group in grouped(having)), key=lambda one: one[:2])
    _check_number(environment for environment, _, _ in groups)
    return [
        curve(environment, label, [run.curves for run in group], metric, axis, points)
        for environment, label, group in groups
    ]


def _check_number(environments: Iterator[str]) -> None:
    shown = list(environments)
    panels, lines = len({*shown}), max(map(shown.count, shown))
    if panels > MOST_PANELS or lines > MOST_LINES:
        raise UserError(
            f"{panels} environments with up to {lines} groups of runs; a figure holds {MOST_PANELS} with {MOST_LINES} "
            "each; name fewer runs"
        )


def save(curves: Sequence[Curve], output: Path, metric: str, axis: str, points: int) -> None:
    """Draw the curves into a PNG, SVG or PDF file."""
    from ddrl.analysis.figures import plots
    from ddrl.analysis.figures.curves import draw

    with plots.style():
        canvas = draw(curves, metric, axis, points)
        with replacing(output) as temporary:
            canvas.savefig(temporary, format=output.suffix[1:].lower(), **FORMATS[output.suffix.lower()])


def check_output(output: Path) -> None:
    """Raise UserError where a picture cannot be written there."""
    if output.suffix.lower() not in FORMATS:
        raise UserError(f"--output {output}: allowed endings of the name: {', '.join(FORMATS)}")
    outputs.check_output(output)


def terminal(curves: Sequence[Curve], metric: str, axis: str) -> Iterator[str]:
    """Yield a chart of each environment for the terminal; without colours, each line is of another letter."""
    import numpy as np
    import plotext

    from ddrl.analysis.figures.curves import styles
    from ddrl.analysis.figures.plots import frames_text

    coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    looks = styles(curves)
    for environment in dict.fromkeys(one.environment for one in curves):
        figure = plotext.figure.clear()
        figure.plot_size(min(shutil.get_terminal_size().columns, 120), TERMINAL_ROWS)
        figure.theme("simple" if coloured else "colorless")
        figure.title(f"{environment}: {metric}, interquartile mean over seeds")
        figure.label(axis)
        for one in (one for one in curves if one.environment == environment):
            place = list(looks).index(one.label)
            colour = tuple(bytes.fromhex(looks[one.label][0][1:]))
            mark = plotext.marker("hd", colour) if coloured else PLAIN_MARKERS[place % len(PLAIN_MARKERS)]
            figure.draw(figure.signal(one.x.tolist(), one.iqm.tolist(), marker=mark).label(one.title).lines())
        if axis == "frames":
            places = np.linspace(*_reach(curves, environment), TERMINAL_TICKS).tolist()
            figure.ruler("x").ticks(places, list(map(frames_text, places)))
        yield str(figure.build().string(colorless=not coloured))


def _reach(curves: Sequence[Curve], environment: str) -> tuple[float, float]:
    """Return the first and the last place of the curves of an environment."""
    own = [one.x for one in curves if one.environment == environment]
    return min(float(x[0]) for x in own), max(float(x[-1]) for x in own)
