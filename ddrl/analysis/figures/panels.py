"""Draws panels that figures of several replications share: returns, sorted settings, one row per variant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from ddrl.analysis.figures import plots
from ddrl.analysis.figures.plots import BLUE, GREY, PUBLISHED, Style
from ddrl.analysis.statistics.significance import Sample
from ddrl.analysis.verdicts.cell_values import paired_ratios

Samples = Mapping[tuple[str, str], Sample]
"""(origin, variant) -> one value per run."""
FAR_APART = 5
"""With budgets that differ by this ratio or more, an axis of frames or times is logarithmic."""


NOTHING = "Nothing to draw: no episode has ended in training, or no run of this experiment has finished."


def nothing(width: str = "full", why: str = NOTHING) -> Canvas:
    """Return a figure in place of one whose experiment has no runs that it can show."""
    return plots.blank(plots.new_figure(width, 1.0), why)


def in_order(variants: Sequence[str]) -> dict[str, Style]:
    """Return shades of the first system's colour, from light to dark, for variants of it that have an order."""
    return {name: (colour, "-") for name, colour in zip(variants, plots.graded(len(variants)), strict=True)}


def origins_of(*tables: pd.DataFrame) -> list[str]:
    """Return the origins in the tables, this run's first."""
    there = {origin for table in tables for origin in table["origin"]}
    return [name for name in ("run", "reference") if name in there]


def returns(
    axes: Axes,
    table: pd.DataFrame,
    styles: Mapping[str, Style],
    x: str = "env_frames",
    *,
    column: str = "episode_return",
    thin: bool = True,
) -> None:
    """Draw one line per variant and origin with its interval; reference runs are `thin`.

    A panel without any value says so.
    """
    if table[column].isna().all():
        axes.text(0.5, 0.5, "no run yet", ha="center", va="center", color=GREY, fontsize=6.5, transform=axes.transAxes)
    for (origin, variant), part in table.groupby(["origin", "variant"], sort=True):
        colour, dashes = styles[str(variant)]
        width = 0.9 if thin and origin == "reference" else 1.4
        plots.band(axes, part, column, colour=colour, dashes=dashes, x=x, width=width)


def extent(axes: Axes, table: pd.DataFrame, x: str) -> None:
    """Set up the axis of frames or seconds (logarithmic if lines differ much in length) and a grid of returns."""
    ends = table.groupby(["origin", "variant"])[x].max()
    if len(ends) and ends.max() > FAR_APART * ends.min():
        axes.set_xscale("log")
        axes.set_xlim(left=max(1e-3, float(table[x].min())))
    else:
        axes.set_xlim(left=0)
    (plots.frames_axis if x == "env_frames" else plots.time_axis)(axes)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.grid(axis="y")


def returns_over(axes: Axes, table: pd.DataFrame, styles: Mapping[str, Style], x: str, *, thin: bool) -> None:
    """Draw `returns` over frames or seconds, and set up that axis."""
    returns(axes, table, styles, x, thin=thin)
    extent(axes, table, x)


def systems(
    curves: pd.DataFrame, references: pd.DataFrame, labels: Mapping[str, str], styles: Mapping[str, Style]
) -> Canvas:
    """Draw `learning` of the variants that have `labels`, on every task that they have run on."""
    own = curves[curves["variant"].isin(list(labels))]
    return learning(own, references, styles, sorted(set(own["environment"]), reverse=True), labels)


def in_windows(curves: pd.DataFrame, count: int) -> pd.DataFrame:
    """Average each run's returns over `count` windows of its frames, placed at the ends of the windows."""
    runs = ["origin", "variant", "environment", "seed"]
    width = curves.groupby(["origin", "variant", "environment"])["env_frames"].transform("max") / count
    ends = width * np.ceil(curves["env_frames"] / width)
    kept = dict.fromkeys(("env_label", "variant_label"), "first")
    table = curves.assign(env_frames=ends).groupby([*runs, "env_frames"], as_index=False)
    return table.agg({**kept, "episode_return": "mean"})


def learning(
    curves: pd.DataFrame,
    references: pd.DataFrame,
    styles: Mapping[str, Style],
    tasks: Sequence[str],
    labels: Mapping[str, str] | None = None,
) -> Canvas:
    """Draw one panel per task with the training returns of variants; `labels` replace the table's own."""
    if curves.empty:
        return nothing()
    canvas = plots.new_figure("full", 0.5 + 1.9 * -(-len(tasks) // 3))
    known = {str(row["environment"]): row for _, row in references.iterrows()}
    for index, (axes, task) in enumerate(zip(plots.panels(canvas, len(tasks), 3), tasks, strict=True)):
        part = curves[curves["environment"] == task]
        returns(axes, part, styles)
        levels(axes, part["episode_return"], known.get(task))
        axes.set_title(part["env_label"].iloc[0])
        plots.frames_axis(axes)
        axes.set_xlim(left=0)
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.grid(axis="y")
        axes.set_xlabel("environment frames")
        if index % 3 == 0:
            axes.set_ylabel("training return")
    plots.legend_above(canvas, plots.variant_handles(curves, styles, labels))
    return canvas


def levels(axes: Axes, values: pd.Series, known: pd.Series | None) -> None:
    """Draw lines at random play and at a human tester ("reference" if no human played) near the values."""
    if known is None:
        return
    low, high = float(values.min()), float(values.max())
    best = "reference" if str(known["source"]).startswith("measured") else "human"
    for name, text in {"random": "random", "human": best}.items():
        level = float(known[name])
        if np.isfinite(level) and low - (high - low) <= level <= high + (high - low):
            level_line(axes, level, text)


def level_line(axes: Axes, level: float, text: str, dashes: Any = (0, (1, 2))) -> None:
    """Draw a named line across a panel."""
    axes.axhline(level, color=GREY, lw=0.8, ls=dashes, zorder=1)
    place: dict[str, Any] = {"xytext": (-2, 1.5), "textcoords": "offset points", "ha": "right", "fontsize": 6}
    axes.annotate(text, (1, level), xycoords=("axes fraction", "data"), color=GREY, **place)


def marks(axes: Axes, x: Any, y: Any, style: Style, *, thin: bool) -> None:
    """Draw a line through one mark for each value, `thin` and with open marks for reference runs."""
    colour, dashes = style
    face, width = ("white", 0.9) if thin else (colour, 1.4)
    axes.plot(x, y, color=colour, ls=dashes, lw=width, marker="o", ms=3.5, mfc=face, mew=0.9, clip_on=False)


def sorted_settings(axes: Axes, scores: pd.DataFrame, systems: pd.Series, styles: Mapping[str, Style]) -> None:
    """Draw final returns over settings, best first; `systems`: the system of each row's variant."""
    for (origin, system), part in scores.groupby(["origin", systems], sort=True):
        best_first = part.groupby("variant")["final_return"].mean().sort_values(ascending=False).to_numpy()
        places = np.arange(1, len(best_first) + 1)
        marks(axes, places, best_first, styles[str(system)], thin=origin == "reference")
    axes.set_xlabel("hyperparameter settings, best first")
    axes.set_ylabel("final return")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y")


def by_variant(runs: pd.DataFrame, column: str) -> dict[tuple[str, str], Sample]:
    """Return the known values of a column by (origin, variant)."""
    known = runs.dropna(subset=[column])
    groups = known.groupby(["origin", "variant"], sort=True)
    return {(str(o), str(v)): part[column].to_numpy(dtype=np.float64) for (o, v), part in groups}


def ratios(runs: pd.DataFrame, column: str, pairs: Mapping[str, str]) -> dict[tuple[str, str], Sample]:
    """Return by (origin, variant) the ratio of each seed to the variant that `pairs` compares it with."""
    found = {}
    for origin, part in runs.groupby("origin", sort=True):
        for variant, than in pairs.items():
            values = paired_ratios(part.assign(value=part[column]), variant, than)
            if len(values):
                found[(str(origin), variant)] = values
    return found


def rows(
    axes: Axes,
    samples: Samples,
    labels: Mapping[str, str],
    origins: Sequence[str],
    spread: float = 0.24,
    colours: Mapping[str, str] | None = None,
) -> None:
    """Draw one row per variant of `labels`, first on top: a tick per run, mean and interval, by origin.

    `colours` are those of the variants' systems (None: all of the first system).
    """
    shown = list(labels)
    for (origin, variant), values in samples.items():
        shift = spread * (origins.index(origin) - (len(origins) - 1) / 2)
        colour = (colours or {}).get(variant, BLUE)
        plots.dot(axes, values, shift - shown.index(variant), colour=colour, filled=plots.is_filled(origin))
    axes.set_yticks([-index for index in range(len(shown))], list(labels.values()))
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(0.6 - len(shown), 0.6)
    axes.spines["left"].set_visible(False)


def published_row(axes: Axes, values: Sequence[float], row: int, texts: Sequence[str] = ()) -> None:
    """Draw published values in a row of `rows`, each with a short text above it if there are `texts`."""
    axes.plot(values, [-row] * len(values), "D", color=PUBLISHED, ms=4.5, mfc="none", mew=1.1, zorder=4)
    for value, text in zip(values, texts, strict=False):
        style: dict[str, Any] = {"ha": "center", "fontsize": 6, "color": PUBLISHED, "textcoords": "offset points"}
        axes.annotate(text, (value, -row), xytext=(0, 5), **style)


def one_line(axes: Axes) -> None:
    """Draw a line at a ratio of 1."""
    axes.axvline(1.0, color=GREY, lw=0.8, ls=(0, (1, 2)), zorder=1)


def logarithmic(axes: Axes) -> None:
    """Make the axis logarithmic, wide enough for a labelled number wherever the values lie."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    widened = max(1.15, (3 * low / high) ** 0.5)
    axes.set_xlim(low / widened, high * widened)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 40 * low else (1,)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: plots.frames_text(value) if value >= 1000 else f"{value:g}")
    axes.grid(axis="x")
