"""Figures of the DPPO replication: pure functions of the tables that paper.yaml names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ddrl.analysis.figures import panels, plots
from ddrl.analysis.figures.plots import BLUE, DASHES, GREY, ORANGE, VERMILLION, Style
from replications.dppo_2017.tables import SPEED, simulated

WORKERS, STREAMS, SYSTEMS = "workers", "two_stream", "a3c"
WORKER_LABELS = {
    "one_worker": "1 worker",
    "two_workers": "2 workers",
    "four_workers": "4 workers",
    "eight_workers": "8 workers",
    "sixteen_workers": "16 workers",
    "thirty_two_workers": "32 workers",
    "sixty_four_workers": "64 workers",
}
TEST_COURSES = {"curriculum": "Tested on tall hurdles", "curriculum_easy": "Tested on low hurdles"}
"""Experiment -> the title of its panel."""
COURSE_STYLES: dict[str, Style] = {"curriculum": (BLUE, "-"), "stationary": (VERMILLION, DASHES[1])}
CHANGES = {"robustness_friction": "Slippery ground", "robustness_incline": "A slope upwards"}
"""Experiment -> the title of its panel."""
SCHOOLS = {"hurdles": "trained with hurdles", "flat": "trained on flat ground"}
SCHOOL_COLOURS = {"hurdles": BLUE, "flat": VERMILLION}
STREAM_STYLES: dict[str, Style] = {"two_stream": (BLUE, "-"), "one_network": (VERMILLION, DASHES[1])}
BATCH_STYLES: Mapping[int, Style] = {16: (BLUE, "-"), 64: (ORANGE, DASHES[2])}
"""Environments of all workers together -> style."""
SYSTEM_STYLES: dict[str, Style] = {"dppo": (BLUE, "-"), "a3c": (VERMILLION, DASHES[1])}


def workers(curves: pd.DataFrame, wall_clock: pd.DataFrame, runs: pd.DataFrame) -> Figure:
    """By the number of workers: return against frames and against wall time, one row per course; below, their speed."""
    learned, timed, own = (table[table["experiment"] == WORKERS] for table in (curves, wall_clock, runs))
    if own.empty or learned.empty:
        return panels.nothing()
    tasks, origins = sorted(set(own["environment"])), panels.origins_of(own)
    labels = {name: text for name, text in WORKER_LABELS.items() if name in set(own["variant"])}
    styles = panels.in_order(list(labels))
    canvas = plots.new_figure("full", 1.1 + 1.9 * len(tasks) + 0.22 * len(labels))
    heights = [*[1.9] * len(tasks), 0.5 + 0.22 * len(labels)]
    grid = canvas.add_gridspec(len(tasks) + 1, 2, height_ratios=heights)
    for row, task in enumerate(tasks):
        pair = [canvas.add_subplot(grid[row, column]) for column in range(2)]
        _frames_and_time(pair, [table[table["environment"] == task] for table in (learned, timed)], styles)
    for column, task in enumerate(tasks):
        axes = canvas.add_subplot(grid[len(tasks), column])
        part = own[own["environment"] == task]
        speeds = panels.by_variant(part, "training_speed")
        panels.rows(axes, speeds, labels, origins, colours={name: styles[name][0] for name in labels})
        axes.set_title(part["env_label"].iloc[0])
        axes.set_xlabel("frames per second of training")
        _from_zero(axes)
        axes.tick_params(labelleft=column == 0)
    plots.legend_above(canvas, plots.variant_handles(learned, styles, labels))
    return canvas


def _frames_and_time(axes: Sequence[Axes], tables: Sequence[pd.DataFrame], styles: Mapping[str, Style]) -> None:
    """Draw the training return of one course against frames on the first axes, and against time on the second."""
    left, right = axes
    for place, table, x in ((left, tables[0], "env_frames"), (right, tables[1], "seconds")):
        panels.returns_over(place, table, styles, x, thin=table["origin"].nunique() > 1)
        place.set_title(table["env_label"].iloc[0])
    right.set_ylim(left.get_ylim())
    left.set_ylabel("training return")
    left.set_xlabel("environment frames")
    right.set_xlabel("wall time of training")


def _from_zero(axes: Axes) -> None:
    """Let a linear axis of values begin at 0, or below it if there are values below."""
    low, high = axes.get_xlim()
    axes.set_xlim(min(0.0, low), high + 0.05 * abs(high))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.grid(axis="x")


def scaling(efficiency: pd.DataFrame, predictions: pd.DataFrame) -> Figure:
    """Show speed-ups over one worker by the number of workers: of runs, and of the simulation."""
    if predictions.empty:
        return panels.nothing()
    canvas = plots.new_figure("column", 2.6)
    axes = canvas.subplots()
    ticks = sorted(set(predictions["workers"]))
    axes.plot(ticks, ticks, color=GREY, lw=0.8, ls=(0, (1, 2)), zorder=1)
    handles = []
    for environments, (colour, dashes) in BATCH_STYLES.items():
        line = predictions[predictions["environments"] == environments]
        axes.plot(line["workers"], line["speed_up"], color=colour, ls=dashes, lw=1.2)
        handles.append(plots.handle(f"{environments} environments", colour, dashes=dashes))
    runs = simulated(efficiency)
    for (origin, environments), own in runs.groupby(["origin", "environments"]):
        alone, colour = float(own[own["workers"] == 1][SPEED].mean()), BATCH_STYLES[int(environments)][0]
        for workers, part in own.groupby("workers"):
            values, filled = part[SPEED].to_numpy(dtype=float) / alone, plots.is_filled(str(origin))
            plots.dot(axes, values, float(workers), colour=colour, filled=filled, vertical=True)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xticks(ticks)
    axes.set_xlabel("workers")
    axes.set_ylabel("times the speed of one")
    axes.grid(axis="y")
    plots.legend_above(canvas, [*handles, *plots.origin_handles(panels.origins_of(runs))])
    return canvas


def curriculum(evaluations: pd.DataFrame) -> Figure:
    """Show one panel per test course: the return of evaluations of agents trained on both kinds of courses."""
    own = evaluations[evaluations["experiment"].isin(list(TEST_COURSES))]
    if own.empty:
        return panels.nothing()
    canvas = plots.new_figure("full", 2.4)
    shown = [name for name in TEST_COURSES if name in set(own["experiment"])]
    for axes, experiment in zip(plots.panels(canvas, len(shown), 2), shown, strict=True):
        part = own[own["experiment"] == experiment]
        panels.returns(axes, part, COURSE_STYLES, column="evaluation_return", thin=part["origin"].nunique() > 1)
        panels.extent(axes, part, "env_frames")
        axes.set_title(TEST_COURSES[experiment])
        axes.set_xlabel("environment frames of training")
        axes.set_ylabel("evaluation return")
    plots.legend_above(canvas, plots.variant_handles(own, COURSE_STYLES))
    return canvas


def robustness(scores: pd.DataFrame) -> Figure:
    """Show one panel per change of the ground: the final return of agents trained with hurdles and without."""
    own = scores[scores["experiment"].isin(list(CHANGES))]
    if own.empty:
        return panels.nothing()
    origins, shown = panels.origins_of(own), [name for name in CHANGES if name in set(own["experiment"])]
    canvas = plots.new_figure("full", 1.5)
    for index, (axes, name) in enumerate(zip(plots.panels(canvas, len(shown), 2), shown, strict=True)):
        part = own[own["experiment"] == name]
        panels.rows(axes, panels.by_variant(part, "final_return"), SCHOOLS, origins, colours=SCHOOL_COLOURS)
        axes.set_title(CHANGES[name])
        axes.set_xlabel("final return")
        axes.tick_params(labelleft=index == 0)
        _from_zero(axes)
    if len(origins) > 1:
        plots.legend_above(canvas, plots.origin_handles(origins))
    return canvas


def two_stream(curves: pd.DataFrame, references: pd.DataFrame) -> Figure:
    """Show one panel per course: training return with two subnetworks and with one network."""
    own = curves[curves["experiment"] == STREAMS]
    return panels.learning(own, references, STREAM_STYLES, sorted(set(own["environment"])))


def a3c(curves: pd.DataFrame, wall_clock: pd.DataFrame) -> Figure:
    """Show the training return of DPPO and A3C against frames and against wall time."""
    learned, timed = (table[table["experiment"] == SYSTEMS] for table in (curves, wall_clock))
    if learned.empty or timed.empty:
        return panels.nothing()
    canvas = plots.new_figure("full", 2.4)
    _frames_and_time(plots.panels(canvas, 2, 2), [learned, timed], SYSTEM_STYLES)
    plots.legend_above(canvas, plots.variant_handles(learned, SYSTEM_STYLES))
    return canvas
