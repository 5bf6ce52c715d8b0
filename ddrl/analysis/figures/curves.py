"""Draws curves of runs side by side: a panel for each environment, the interquartile mean over seeds with its interval.

After Agarwal et al. 2021 (rliable), in the colours of `plots`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from ddrl.analysis.figures import plots
from ddrl.analysis.runs.grids import on_grid
from ddrl.analysis.runs.run_data import env_label
from ddrl.analysis.statistics.bootstrap import INTERVAL, LEVEL, MIN_SEEDS, bootstrap_curve
from ddrl.system.wording import counted

AXES = {"frames": "env_frames", "seconds": "seconds"}
"""Name of an x axis -> its column of curves."""
RESAMPLES = 2000
"""The number of bootstrap resamples."""
COLUMNS, PANEL_HEIGHT, MOST_HANDLES = 2, 2.6, 4
Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Curve:
    """The runs that differ in nothing but their seed."""

    environment: str
    label: str
    x: Floats
    """[G] places that all runs have reached."""
    iqm: Floats
    """[G]."""
    low: Floats
    """[G], NaN below `MIN_SEEDS` runs."""
    high: Floats
    runs: tuple[tuple[Floats, Floats], ...]
    """x and y of each run, as far as it goes."""

    @property
    def title(self) -> str:
        """The label, with the number of runs."""
        return f"{self.label} ({counted(len(self.runs), 'seed')})"


def curve(environment: str, label: str, tables: Sequence[pd.DataFrame], metric: str, axis: str, points: int) -> Curve:
    """Return the curve of a metric over the runs with these curves; every run has records of it.

    A point is the mean over its part of the axis, `points` parts in all, or as many as there are records.
    """
    x, largest = AXES[axis], metric.partition("/")[0].endswith("_max")
    records = [table[table["metric"] == metric] for table in tables]
    first = max(float(own[x].min()) for own in records)
    last = max(first, min(float(own[x].max()) for own in records))
    count = min(points, max(own[x].nunique() for own in records))
    grid = np.linspace(first, last, count if last > first else 1)
    values = np.array([on_grid(own[x].to_numpy(), own["value"].to_numpy(), grid, largest=largest) for own in records])
    found = bootstrap_curve(values, "iqm", seed=0, resamples=RESAMPLES)
    low, high = (
        np.array([getattr(one, side) if one.spread == INTERVAL else math.nan for one in found])
        for side in ("low", "high")
    )
    singles = tuple(_single(own, x, largest, points) for own in records)
    return Curve(environment, label, grid, np.array([one.value for one in found]), low, high, singles)


def _single(records: pd.DataFrame, x: str, largest: bool, points: int) -> tuple[Floats, Floats]:
    first, last = float(records[x].min()), float(records[x].max())
    grid = np.linspace(first, last, min(points, records[x].nunique()))
    return grid, on_grid(records[x].to_numpy(), records["value"].to_numpy(), grid, largest=largest)


def styles(curves: Sequence[Curve]) -> dict[str, plots.Style]:
    """Return label -> colour and dashes: the same in every panel; dashes change once the colours are used up."""
    labels = dict.fromkeys(one.label for one in curves)
    count = len(plots.MANY)
    return {
        label: (plots.MANY[place % count], plots.DASHES[place // count % len(plots.DASHES)])
        for place, label in enumerate(labels)
    }


def caption(axis: str, points: int) -> str:
    """Return what the lines are, for below the figure."""
    return (
        f"Lines: interquartile mean over seeds. Bands: {LEVEL:.0%} intervals over seeds (Student's t times the larger "
        f"standard error of a jackknife and of a bootstrap with {RESAMPLES:,} resamples), from {MIN_SEEDS} seeds on. "
        f"Thin lines: single runs, below {MIN_SEEDS} seeds and where not all runs have got yet. "
        f"Smoothing: a point is the mean over 1/{points} of the {axis}."
    )


def draw(curves: Sequence[Curve], metric: str, axis: str, points: int) -> Canvas:
    """Return the figure: a panel for each environment, one legend."""
    panels: dict[str, list[Curve]] = {}
    for one in curves:
        panels.setdefault(one.environment, []).append(one)
    looks = styles(curves)
    rows = math.ceil(len(panels) / COLUMNS)
    canvas = plots.new_figure("full" if len(panels) > 1 else "column", PANEL_HEIGHT * rows + 0.7)
    for axes, (environment, own) in zip(plots.panels(canvas, len(panels), COLUMNS), panels.items(), strict=True):
        for one in own:
            _draw_curve(axes, one, looks[one.label])
        axes.set_title(env_label(environment))
        axes.set_xlabel("environment frames" if axis == "frames" else "time")
        axes.set_ylabel(metric.replace("_", " "))
        axes.grid(axis="y")
        (plots.frames_axis if axis == "frames" else plots.time_axis)(axes)
    titles = _titles(curves)
    handles = [plots.handle(titles[label], colour, dashes=dashes) for label, (colour, dashes) in looks.items()]
    plots.legend_above(canvas, handles, MOST_HANDLES)
    canvas.supxlabel(caption(axis, points), x=0.01, ha="left", fontsize=5.5, color=plots.GREY, wrap=True)
    return canvas


def _titles(curves: Sequence[Curve]) -> Mapping[str, str]:
    """Return label -> the text of its legend: with the number of seeds where that is the same in every panel."""
    found: dict[str, set[str]] = {}
    for one in curves:
        found.setdefault(one.label, set()).add(one.title)
    return {label: next(iter(titles)) if len(titles) == 1 else label for label, titles in found.items()}


def _draw_curve(axes: Axes, one: Curve, look: plots.Style) -> None:
    colour, dashes = look
    for x, y in one.runs:
        beyond = x >= one.x[-1] if len(one.runs) >= MIN_SEEDS else np.full(len(x), len(one.runs) > 1)
        axes.plot(x[beyond], y[beyond], color=colour, ls=dashes, lw=0.6, alpha=0.6)
    axes.fill_between(one.x, one.low, one.high, color=colour, alpha=0.18, lw=0)
    axes.plot(one.x, one.iqm, color=colour, ls=dashes, **plots.mark(len(one.x)))
