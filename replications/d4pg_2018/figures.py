"""Figures of the D4PG replication: pure functions of the tables that paper.yaml names."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ddrl.analysis.figures import games, panels, plots
from ddrl.analysis.figures.games import Mark, Panels, Variant
from ddrl.analysis.figures.plots import BLUE, DASHES, GREEN, GREY, NAMES, ORANGE, PURPLE, VERMILLION, Style

SUITE, ABLATIONS, ACTORS = "control_suite", "ablations", "actors"
PUBLISHED_FRAMES = 100_000_000
AGENTS = {"d4pg": Variant("D4PG")}
MARKS = {
    "state": Mark("published, from the state", PUBLISHED_FRAMES, short="from the state"),
    "pixels": Mark("published, from pixels", PUBLISHED_FRAMES, filled=False, short="from pixels"),
}
PANELS = Panels(end=2.5 * PUBLISHED_FRAMES, height=1.9)
COMPONENTS = {
    "d4pg": "D4PG",
    "uniform": "uniform replay",
    "mean_critic": "critic of the mean",
    "one_step": "one step",
    "ddpg": "all three (DDPG)",
}
STYLES: dict[str, Style] = {
    "d4pg": (BLUE, "-"),
    "uniform": (GREEN, DASHES[1]),
    "mean_critic": (ORANGE, DASHES[1]),
    "one_step": (PURPLE, DASHES[2]),
    "ddpg": (VERMILLION, DASHES[3]),
}
"""Colour and dashes of D4PG and of its variants without a component."""
TIMES = ("times_1", "times_2", "times_4", "times_8")


def learning_curves(curves: pd.DataFrame, references: pd.DataFrame, published: pd.DataFrame) -> Figure:
    """Show one panel per task: training return against frames, published returns at 100 million, random play."""
    own = curves[curves["experiment"] == SUITE]
    if own.empty:
        return panels.nothing()
    scores = published[(published["experiment"] == SUITE) & (published["environment"] != "")]
    seen = scores["cell"].str.split(".").str[2]
    return games.learning_curves(own, references, scores.assign(mark=seen), AGENTS, MARKS, PANELS)


def ablations(curves: pd.DataFrame, references: pd.DataFrame) -> Figure:
    """Show one panel per task: training return of D4PG and of its variants."""
    own = curves[curves["experiment"] == ABLATIONS]
    if own.empty:
        return panels.nothing()
    return panels.learning(own, references, STYLES, sorted(set(own["environment"])), COMPONENTS)


def components(scores: pd.DataFrame) -> Figure:
    """Show one panel per task with one row per variant: the training return averaged over all frames."""
    own = scores[(scores["experiment"] == ABLATIONS) & scores["mean_return"].notna()]
    if own.empty:
        return panels.nothing()
    tasks, shown = sorted(set(own["environment"])), [name for name in COMPONENTS if name in set(own["variant"])]
    origins, labels = panels.origins_of(own), {name: COMPONENTS[name] for name in shown}
    columns = min(3, len(tasks))
    canvas = plots.new_figure("full", (0.8 + 0.24 * len(shown)) * -(-len(tasks) // columns))
    colours = {name: STYLES[name][0] for name in shown}
    for index, (axes, task) in enumerate(zip(plots.panels(canvas, len(tasks), columns), tasks, strict=True)):
        part = own[own["environment"] == task]
        panels.rows(axes, panels.by_variant(part, "mean_return"), labels, origins, colours=colours)
        axes.set_title(part["env_label"].iloc[0])
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.set_xlabel("mean training return")
        axes.tick_params(labelleft=index % columns == 0)
        axes.grid(axis="x")
    if len(origins) > 1:
        plots.legend_above(canvas, plots.origin_handles(origins))
    return canvas


def actors(curves: pd.DataFrame, wall_clock: pd.DataFrame, runs: pd.DataFrame) -> Figure:
    """By the number of actors: return against frames and against wall time, one row per task; below, their speed."""
    learned, timed, own = (table[table["experiment"] == ACTORS] for table in (curves, wall_clock, runs))
    if own.empty:
        return panels.nothing()
    tasks = sorted(set(own["environment"]))
    canvas = plots.new_figure("full", 0.5 + 1.75 * (len(tasks) + 1))
    grid = canvas.add_gridspec(len(tasks) + 1, 2)
    styles = panels.in_order(TIMES)
    for row, task in enumerate(tasks):
        left = canvas.add_subplot(grid[row, 0])
        right = canvas.add_subplot(grid[row, 1], sharey=left)
        right.tick_params(labelleft=False)
        for axes, table, x in ((left, learned, "env_frames"), (right, timed, "seconds")):
            part = table[table["environment"] == task]
            panels.returns_over(axes, part, styles, x, thin=part["origin"].nunique() > 1)
        left.set_title(own["env_label"][own["environment"] == task].iloc[0])
        left.set_ylabel("training return")
    left.set_xlabel("environment frames")
    right.set_xlabel("wall time of training")
    _speeds(canvas.add_subplot(grid[len(tasks), :]), own)
    plots.legend_above(canvas, plots.variant_handles(learned, styles))
    return canvas


def _speeds(axes: Axes, runs: pd.DataFrame) -> None:
    """Frames per second of training against actors, both logarithmic; dotted: proportional to the fewest actors."""
    counts, machines = sorted(set(runs["num_actors"])), set(zip(runs["origin"], runs["cpu"], strict=True))
    colours = dict(zip(sorted(set(runs["env_label"])), (BLUE, ORANGE, GREEN, PURPLE), strict=False))
    for (origin, task), part in runs.groupby(["origin", "env_label"], sort=True):
        plots.speeds(axes, part, colours[str(task)], counts, filled=plots.is_filled(str(origin)))
    handles = [plots.handle(task, colour, dashes="-") for task, colour in colours.items()]
    for origin, machine in sorted(machines, reverse=True):
        text = f"{NAMES[str(origin)]}: {machine}"
        handles.append(plots.handle(text, GREY, marker="o", filled=plots.is_filled(str(origin))))
    plots.speed_axes(axes, counts)
    place = {"loc": "lower right", "bbox_to_anchor": (1, 1), "borderaxespad": 0.1, "handletextpad": 0.3}
    axes.legend(handles=handles, fontsize=6, ncols=min(3, len(handles)), **place)
