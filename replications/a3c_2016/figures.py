"""Figures of the A3C replication: pure functions of the tables that paper.yaml names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator

from ddrl.analysis.figures import games, panels, plots
from ddrl.analysis.figures.games import Mark, Panels, Rows, Variant
from ddrl.analysis.figures.plots import BLUE, DASHES, GREEN, GREY, NAMES, PUBLISHED, VERMILLION, Style

ATARI, CATCH, SYSTEMS, THREADS = "atari", "catch", "systems", "threads"
AGENTS = {"ff": Variant("Feed-forward", "o", "-"), "lstm": Variant("LSTM", "D", plots.DASHES[1])}
MARKS = {
    "NoisyNet, Table 3": Mark("NoisyNet's A3C", 320_000_000, "^", short="NoisyNet"),
    "PFRL reproduction": Mark("PFRL's A3C", 200_000_000, "v", filled=False, short="PFRL"),
}
"""Published scores with no-op starts, by the item that they stand in."""
PANELS = Panels(end=2.5 * 320_000_000, height=1.9)
ROWS = Rows(height=0.24, dense=0.08)
STYLES: dict[str, Style] = {
    "a3c": (BLUE, "-"),
    "gorila": (VERMILLION, DASHES[1]),
    "a2c": (GREEN, DASHES[2]),
    "ff": (BLUE, "-"),
    "lstm": (BLUE, DASHES[1]),
}
"""Colour and dashes of the systems, and of the agents of A3C."""
RELATIVES = {"gorila": "Gorila", "a3c": "A3C", "a2c": "Batched A2C"}
"""A3C between the systems before and after it."""
BEST = {"toy/catch": 1.0}
"""The best possible returns (replications/references/toy.csv)."""
COUNTS = {f"threads_{count}": count for count in (1, 2, 4, 8, 16)}
ONE = "threads_1"
SHAPES = ("o", "s", "D", "^", "v")
ASIDE = 1.09
"""Ratio of the places on the axis of threads at which neighbouring tasks stand."""
MOST_ROWS = 3
"""The panel of speed-ups grows no higher than so many tasks."""


def learning_curves(curves: pd.DataFrame, references: pd.DataFrame, published: pd.DataFrame) -> Figure:
    """One panel per game: training return against frames, scores that others published for A3C, random and human."""
    own = curves[curves["experiment"] == ATARI]
    return games.learning_curves(own, references, _scores_of(published), AGENTS, MARKS, PANELS)


def _scores_of(published: pd.DataFrame) -> pd.DataFrame:
    """The published final scores of single games; points of the paper's own curves are none."""
    own = published[(published["experiment"] == ATARI) & (published["environment"] != "")]
    return own[own["item"].isin(list(MARKS))].assign(mark=lambda table: table["item"])


def normalised_scores(scores: pd.DataFrame, published: pd.DataFrame, references: pd.DataFrame) -> Figure:
    """One row per game and agent: our final human-normalised scores beside those that others published."""
    own = scores[scores["experiment"] == ATARI]
    return games.normalised_scores(own, _scores_of(published), references, AGENTS, MARKS, ROWS)


def catch(curves: pd.DataFrame, references: pd.DataFrame) -> Figure:
    """Training return on a toy task, between random play and the best possible return."""
    own = curves[curves["experiment"] == CATCH]
    if own.empty:
        return panels.nothing("column")
    tasks, styles = sorted(set(own["environment"])), {name: STYLES[name] for name in AGENTS}
    canvas = plots.new_figure("column", 0.5 + 2.0 * len(tasks))
    random = references.set_index("environment")["random"]
    for axes, task in zip(canvas.subplots(len(tasks), 1, squeeze=False)[:, 0], tasks, strict=True):
        part = own[own["environment"] == task]
        panels.returns(axes, part, styles)
        if task in BEST:
            panels.level_line(axes, BEST[task], "best possible", (0, (4, 2)))
        if task in random.index:
            panels.level_line(axes, float(random[task]), "random")
        panels.extent(axes, part, "env_frames")
        axes.margins(y=0.1)
        axes.set_title(part["env_label"].iloc[0])
        axes.set_ylabel("training return")
        axes.set_xlabel("environment frames")
    plots.legend_above(canvas, plots.variant_handles(own, styles))
    return canvas


def systems(curves: pd.DataFrame, references: pd.DataFrame) -> Figure:
    """One panel per task: training return of Gorila, A3C and batched A2C against frames."""
    return panels.systems(curves[curves["experiment"] == SYSTEMS], references, RELATIVES, STYLES)


def threads(wall_clock: pd.DataFrame, milestones: pd.DataFrame, published: pd.DataFrame) -> Figure:
    """By the number of threads: return against wall time, one row per task; how many times as early as with one."""
    own = wall_clock[(wall_clock["experiment"] == THREADS) & wall_clock["variant"].isin(list(COUNTS))]
    if own.empty:
        return panels.nothing()
    tasks, styles = sorted(set(own["environment"]), reverse=True), panels.in_order(list(COUNTS))
    canvas = plots.new_figure("full", 0.5 + max(2.4, 1.6 * len(tasks)))
    grid = canvas.add_gridspec(len(tasks), 2)
    for row, task in enumerate(tasks):
        axes, part = canvas.add_subplot(grid[row, 0]), own[own["environment"] == task]
        panels.returns_over(axes, part, styles, "seconds", thin=own["origin"].nunique() > 1)
        axes.set_title(part["env_label"].iloc[0])
        axes.set_ylabel("training return")
        axes.set_xlabel("wall time of training" if row == len(tasks) - 1 else "")
    rows = published[(published["experiment"] == THREADS) & (published["metric"] == "speed_up")]
    _speed_up(canvas.add_subplot(grid[:MOST_ROWS, 1]), milestones[milestones["experiment"] == THREADS], rows)
    plots.legend_above(canvas, plots.variant_handles(own, styles))
    return canvas


def _speed_up(axes: Axes, milestones: pd.DataFrame, published: pd.DataFrame) -> None:
    """How many times as early as with one thread the milestone is reached, of each seed that reaches it with both."""
    tasks, handles = sorted(set(milestones["environment"]), reverse=True), []
    for index, task in enumerate(tasks[: len(SHAPES)]):
        part = milestones[milestones["environment"] == task]
        found = panels.ratios(part, "seconds", {name: ONE for name in COUNTS if name != ONE})
        aside = ASIDE ** (index - (len(tasks) - 1) / 2)
        for (origin, variant), longer in found.items():
            look: dict[str, Any] = {"colour": BLUE, "marker": SHAPES[index], "vertical": True}
            look |= {"filled": plots.is_filled(origin)}
            plots.dot(axes, 1 / longer, aside * COUNTS[variant], **look)
        for origin in [name for name in panels.origins_of(part) if name in {origin for origin, _ in found}]:
            label = f"{part['env_label'].iloc[0]}, {NAMES[origin]}"
            handles.append(plots.handle(label, BLUE, marker=SHAPES[index], filled=plots.is_filled(origin)))
    if not handles:
        style: dict[str, Any] = {"ha": "right", "fontsize": 6.5, "color": GREY, "transform": axes.transAxes}
        axes.text(0.98, 0.04, "No seed reached it with one thread and with more.", **style)
    known = published[published["compared_variant"].isin(list(COUNTS))]
    counts = known["compared_variant"].map(COUNTS).to_numpy(dtype=np.float64)
    order = np.argsort(counts)
    if len(known):
        axes.plot(counts[order], known["value"].to_numpy(dtype=np.float64)[order], "D-", color=PUBLISHED, ms=4, lw=1.0)
        handles.append(plots.handle("published, 7 games", PUBLISHED, marker="D", dashes="-"))
    most = max(COUNTS.values())
    axes.plot([1, most], [1, most], color=GREY, lw=0.8, ls=(0, (1, 2)), zorder=1)
    handles.append(plots.handle("proportional", GREY, dashes=(0, (1, 2))))
    for axis, name in ((axes.xaxis, "x"), (axes.yaxis, "y")):
        (axes.set_xscale if name == "x" else axes.set_yscale)("log", base=2)
        axis.set_major_locator(FixedLocator(list(COUNTS.values())) if name == "x" else LogLocator(base=2))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlim(0.85, 1.2 * most)
    axes.set_title("Time to the milestone")
    axes.set_xlabel("threads")
    axes.set_ylabel("times as early as with one")
    axes.legend(handles=handles, loc="upper left", fontsize=6.5, handlelength=1.6)
    axes.grid(axis="y")
