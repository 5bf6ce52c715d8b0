"""Figures of the Ape-X replication: pure functions of the tables that paper.yaml names."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ddrl.analysis.figures import games, panels, plots
from ddrl.analysis.figures.games import Mark, Panels, Rows, Variant
from ddrl.analysis.figures.plots import BLUE, DASHES, NAMES, ORANGE, Style

ATARI, ACTORS, CAPACITY = "atari", "actors", "capacity"
TIMES = ("times_1", "times_2", "times_4", "times_8")
STORED = "stored_8_times"
PARTS = ("eighth", "quarter", "half", "whole")
"""Capacities, the smallest first."""
LONG = 20
"""Two labels of more letters have no room beside each other above a column."""
PAPER_FRAMES = 22_800_000_000
AGENTS = {"ape_x": Variant("Ape-X")}
MARKS = {"ape_x": Mark("published", PAPER_FRAMES)}
PANELS = Panels(end=2.5 * PAPER_FRAMES, height=1.9)


def learning_curves(curves: pd.DataFrame, references: pd.DataFrame, published: pd.DataFrame) -> Figure:
    """One panel per game: training return against frames, published score at 22.8 billion, random and human."""
    own = curves[curves["experiment"] == ATARI]
    return games.learning_curves(own, references, _scores_of(published), AGENTS, MARKS, PANELS)


def _scores_of(published: pd.DataFrame) -> pd.DataFrame:
    """The published scores of single games; points of other curves have budgets of their own."""
    own = published[(published["experiment"] == ATARI) & (published["environment"] != "")]
    return own[own["budget_frames"] == PAPER_FRAMES].assign(mark="ape_x")


def normalised_scores(scores: pd.DataFrame, published: pd.DataFrame, references: pd.DataFrame) -> Figure:
    """One row per game: our final human-normalised scores beside the published one."""
    own = scores[scores["experiment"] == ATARI]
    return games.normalised_scores(own, _scores_of(published), references, AGENTS, MARKS, Rows())


def actors(curves: pd.DataFrame, wall_clock: pd.DataFrame, runs: pd.DataFrame) -> Figure:
    """By the number of actors: return against frames and against wall time, one row per task; below, their speed."""
    chosen = [table[(table["experiment"] == ACTORS) & table["variant"].isin(TIMES)] for table in (curves, wall_clock)]
    own = runs[(runs["experiment"] == ACTORS) & runs["variant"].isin(TIMES)]
    if own.empty:
        return panels.nothing()
    tasks = sorted(set(chosen[0]["environment"]))
    canvas = plots.new_figure("full", 0.5 + 1.75 * (len(tasks) + 1))
    grid = canvas.add_gridspec(len(tasks) + 1, 2)
    styles, thin = panels.in_order(TIMES), chosen[0]["origin"].nunique() > 1
    for row, task in enumerate(tasks):
        left = canvas.add_subplot(grid[row, 0])
        right = canvas.add_subplot(grid[row, 1], sharey=left)
        right.tick_params(labelleft=False)
        frames, clock = (table[table["environment"] == task] for table in chosen)
        panels.returns_over(left, frames, styles, "env_frames", thin=thin)
        panels.returns_over(right, clock, styles, "seconds", thin=thin)
        left.set_title(own["env_label"][own["environment"] == task].iloc[0])
        left.set_ylabel("training return")
        left.set_xlabel("environment frames" if row == len(tasks) - 1 else "")
        right.set_xlabel("wall time of training" if row == len(tasks) - 1 else "")
    _speeds(canvas.add_subplot(grid[len(tasks), :]), own)
    plots.legend_above(canvas, plots.variant_handles(chosen[0], styles))
    return canvas


def replay(curves: pd.DataFrame, wall_clock: pd.DataFrame) -> Figure:
    """Left: return against frames by capacity. Right: against time, whether fresh experience makes up for actors."""
    times = panels.in_order(TIMES)
    few = {TIMES[0]: times[TIMES[0]], STORED: (ORANGE, DASHES[1]), TIMES[-1]: times[TIMES[-1]]}
    left = curves[curves["experiment"] == CAPACITY]
    right = wall_clock[(wall_clock["experiment"] == ACTORS) & wall_clock["variant"].isin(list(few))]
    sides = ((left, panels.in_order(PARTS), "Capacity"), (right, few, "Stored 8 times"))
    rows = max(table["environment"].nunique() for table, _, _ in sides)
    if not rows:
        return panels.nothing()
    canvas = plots.new_figure("full", 0.7 + 1.9 * rows)
    grid = canvas.add_gridspec(rows + 1, 2, height_ratios=[0.45, *[1.9] * rows])
    for column, (table, styles, name) in enumerate(sides):
        _key(canvas.add_subplot(grid[0, column]), table, styles)
        for row, task in enumerate(sorted(set(table["environment"])), start=1):
            axes, own = canvas.add_subplot(grid[row, column]), table[table["environment"] == task]
            panels.returns_over(
                axes, own, styles, "seconds" if column else "env_frames", thin=table["origin"].nunique() > 1
            )
            axes.set_title(f"{name}: {own['env_label'].iloc[0]}")
            axes.set_xlabel("wall time of training" if column else "environment frames")
            axes.set_ylabel("training return")
    return canvas


def _key(axes: Axes, table: pd.DataFrame, styles: Mapping[str, Style]) -> None:
    """The legend of a column, above its panels."""
    axes.set_axis_off()
    handles = plots.variant_handles(table, styles)
    if handles:
        place = {"loc": "center left", "borderaxespad": 0, "columnspacing": 1.2, "handletextpad": 0.5}
        long = max(len(str(entry.get_label())) for entry in handles) > LONG
        axes.legend(handles=handles, ncols=1 if long else -(-len(handles) // 2), fontsize=6.5, **place)


def _speeds(axes: Axes, runs: pd.DataFrame) -> None:
    """Frames per second of training against actors, both logarithmic; dotted: proportional to the fewest actors."""
    counts, handles = sorted(set(runs["num_actors"])), []
    for (origin, machine, task), part in runs.groupby(["origin", "cpu", "env_label"], sort=True):
        filled = plots.is_filled(str(origin))
        plots.speeds(axes, part, BLUE, counts, filled=filled)
        handles.append(plots.handle(f"{NAMES[str(origin)]}, {task}: {machine}", BLUE, marker="o", filled=filled))
    plots.speed_axes(axes, counts)
    place = {"loc": "lower right", "bbox_to_anchor": (1, 1), "borderaxespad": 0.1, "handletextpad": 0.1}
    axes.legend(handles=handles, fontsize=6, **place)
