"""Figures of the IMPACT replication: pure functions of the tables that paper.yaml names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ddrl.analysis.figures import panels, plots
from ddrl.analysis.figures.plots import BLUE, DASHES, FAINT, GREEN, GREY, NAMES, ORANGE, PURPLE, VERMILLION, Style

ALGORITHMS = ("impact", "ppo", "impala")
STYLES: dict[str, Style] = {
    "impact": (BLUE, "-"),
    "ppo": (VERMILLION, DASHES[1]),
    "impala": (GREEN, DASHES[2]),
    "r3": (BLUE, "-"),
    "r1": (PURPLE, DASHES[1]),
    "r2": (ORANGE, DASHES[2]),
}
"""Colour and dashes of the systems, and of the importance ratios, of which IMPACT's own is r3."""
RATIOS = ("r3", "r1", "r2")
PERIODS = ("n_1", "n_2", "n_3", "n_4", *(f"multiple_{part}" for part in ("1_16", "1_4", "1", "4", "16")))
"""Variants of the target frequency, by the number of updates between target updates."""
FEWEST = "n_"
"""Variants of the target frequency with so few updates between target updates that the paper's agent fails."""
RLLIB = "RLlib's results"
"""Legend entry of what only some panels have."""
FAR_APART = 5
"""From this ratio of budgets on, this run and the reference runs are drawn on a logarithmic axis."""


def continuous_control(curves: pd.DataFrame, wall_clock: pd.DataFrame) -> Figure:
    """One row per task: return against steps and against time of training."""
    return _by_frames_and_time(curves, wall_clock, "continuous", _of_names(ALGORITHMS), "environment steps")


def continuous_author(curves: pd.DataFrame, wall_clock: pd.DataFrame) -> Figure:
    """Return the same figure of the runs with the settings of the paper's first author."""
    return _by_frames_and_time(curves, wall_clock, "continuous_author", _of_names(ALGORITHMS), "environment steps")


def discrete_control(curves: pd.DataFrame, wall_clock: pd.DataFrame, published: pd.DataFrame) -> Figure:
    """One row per game: return against frames and against wall time, with RLlib's results where ours reach as far."""
    return _games(curves, wall_clock, published, "discrete")


def discrete_author(curves: pd.DataFrame, wall_clock: pd.DataFrame, published: pd.DataFrame) -> Figure:
    """Return the same figure of the runs with the settings of the paper's first author."""
    return _games(curves, wall_clock, published, "discrete_author")


def rllib_atari(curves: pd.DataFrame, wall_clock: pd.DataFrame, published: pd.DataFrame) -> Figure:
    """Return the same figure of the runs with the settings of RLlib's reference results."""
    return _games(curves, wall_clock, published, "rllib_atari")


def _games(curves: pd.DataFrame, wall_clock: pd.DataFrame, published: pd.DataFrame, experiment: str) -> Figure:
    styles = _of_names(ALGORITHMS)

    def marks(axes: Axes, environment: str, frames: float) -> None:
        rows = published[(published["environment"] == environment) & (published["budget_frames"] <= frames)]
        for variant, part in rows.groupby("compared_variant", sort=True):
            look = {"color": styles[str(variant)][0], "mfc": "none", "ms": 3.2, "mew": 0.7, "zorder": 4}
            axes.plot(part["budget_frames"], part["value"], "D", clip_on=False, label=RLLIB, **look)

    return _by_frames_and_time(curves, wall_clock, experiment, styles, "environment frames", marks)


def circular_buffer(curves: pd.DataFrame, wall_clock: pd.DataFrame) -> Figure:
    """K traversals of each batch: return against steps and against time of training."""
    styles = panels.in_order(_ordered(curves, "circular_buffer"))
    return _by_frames_and_time(curves, wall_clock, "circular_buffer", styles, "environment steps")


def _of_names(variants: Sequence[str]) -> dict[str, Style]:
    return {name: STYLES[name] for name in variants}


def _ordered(table: pd.DataFrame, experiment: str) -> list[str]:
    """The variants of an experiment by the number that their names end with."""
    names = set(table["variant"][table["experiment"] == experiment])
    return sorted(names, key=lambda name: int(name.rpartition("_")[2]))


def _by_frames_and_time(
    curves: pd.DataFrame,
    wall_clock: pd.DataFrame,
    experiment: str,
    styles: Mapping[str, Style],
    unit: str,
    marks: Callable[[Axes, str, float], None] | None = None,
) -> Figure:
    """One row per task with two panels: training return against frames, and against seconds of training."""
    own = curves[curves["experiment"] == experiment]
    timed = wall_clock[wall_clock["experiment"] == experiment]
    tasks = list(dict.fromkeys(sorted(set(own["environment"]))))
    if not tasks:
        return panels.nothing()
    canvas = plots.new_figure("full", 0.5 + 1.75 * len(tasks))
    grid = canvas.subplots(len(tasks), 2, squeeze=False, sharey="row")
    for (left, right), task in zip(grid, tasks, strict=True):
        part = own[own["environment"] == task]
        _pair(left, right, part, timed[timed["environment"] == task], styles)
        if marks is not None:
            marks(left, task, float(part["env_frames"].max()))
        left.set_title(part["env_label"].iloc[0])
    grid[-1][0].set_xlabel(unit)
    grid[-1][1].set_xlabel(_clock(timed))
    handles = plots.variant_handles(own, styles)
    if any(line.get_label() == RLLIB for axes in canvas.axes for line in axes.lines):
        handles.append(plots.handle(RLLIB, GREY, marker="D", filled=False))
    plots.legend_above(canvas, handles, columns=_columns(handles))
    return canvas


def _pair(left: Axes, right: Axes, curves: pd.DataFrame, clock: pd.DataFrame, styles: Mapping[str, Style]) -> None:
    """Training return of one task against frames and, on the same scale, against seconds of training."""
    _lines(left, curves, styles, "env_frames")
    _lines(right, clock, styles, "seconds")
    left.set_ylabel("training return")
    plots.frames_axis(left)
    plots.time_axis(right)
    right.tick_params(labelleft=False)


def _ablation(
    grid: GridSpec, row: int, curves: pd.DataFrame, clock: pd.DataFrame, styles: Mapping[str, Style], title: str
) -> None:
    """The two panels of an experiment of one task, in the row below its key in `row`."""
    canvas = grid.figure
    key, left = canvas.add_subplot(grid[row, :]), canvas.add_subplot(grid[row + 1, 0])
    right = canvas.add_subplot(grid[row + 1, 1], sharey=left)
    _pair(left, right, curves, clock, styles)
    left.set_title(title)
    left.set_xlabel("environment steps")
    right.set_xlabel(_clock(clock))
    handles = plots.variant_handles(curves, styles)
    key.set_axis_off()
    key.legend(handles=handles, loc="center left", ncols=_columns(handles), borderaxespad=0, columnspacing=1.6)


def _clock(timed: pd.DataFrame) -> str:
    """What the seconds are: runs of one thread are timed by their CPU time (`ddrl.analysis.runs.run_data.clock_of`)."""
    clocks = set(timed["clock"])
    return {("cpu",): "CPU time on one core", ("wall",): "wall time of training"}.get(tuple(clocks), "time of training")


def _lines(axes: Axes, table: pd.DataFrame, styles: Mapping[str, Style], x: str) -> None:
    """One line per variant and origin: this run's in full, the reference runs' thin and pale."""
    ends = table.groupby("origin")[x].max()
    both = len(ends) > 1
    panels.returns(axes, table, styles, x, thin=both)
    if both and ends.max() > FAR_APART * ends.min():
        axes.set_xscale("log")
        axes.set_xlim(left=max(1e-3, float(table[x].min())))
        if x == "env_frames":
            axes.axvline(float(ends["run"]), color=GREY, lw=0.6, ls=(0, (1, 2)))
            place: dict[str, Any] = {
                "xytext": (2, -1),
                "textcoords": "offset points",
                "va": "top",
                "fontsize": 6,
                "color": GREY,
            }
            axes.annotate("end of this run", (float(ends["run"]), 1), xycoords=("data", "axes fraction"), **place)
    else:
        axes.set_xlim(left=0)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.grid(axis="y")


def _columns(handles: Sequence[Line2D]) -> int:
    """At most six, in rows of equal length."""
    rows = -(-len(handles) // 6)
    return -(-len(handles) // rows)


def target_network(curves: pd.DataFrame, wall_clock: pd.DataFrame, scores: pd.DataFrame) -> Figure:
    """Three ratios and the periods of target updates: return against steps and time; final return by the period."""
    clipping, frequency = (_of(curves, name) for name in ("target_clipping", "target_frequency"))
    if clipping.empty and frequency.empty:
        return panels.nothing()
    heights = [*([0.25, 1.6] if len(clipping) else []), *([0.45, 1.6, 1.6] if len(frequency) else [])]
    canvas = plots.new_figure("full", 1.15 * sum(heights))
    grid = canvas.add_gridspec(len(heights), 2, height_ratios=heights)
    if len(clipping):
        clock = _of(wall_clock, "target_clipping")
        _ablation(grid, 0, clipping, clock, _of_names(RATIOS), "Importance ratio")
    if len(frequency):
        styles = _of_periods(name for name in PERIODS if name in set(frequency["variant"]))
        clock = _of(wall_clock, "target_frequency")
        _ablation(grid, len(heights) - 3, frequency, clock, styles, "Period of target updates")
        _periods(canvas.add_subplot(grid[-1, :]), scores[scores["experiment"] == "target_frequency"])
    return canvas


def _of_periods(variants: Iterable[str]) -> dict[str, Style]:
    """The periods with which the paper's agent fails are dashed, in one colour; the multiples of N K are in order."""
    variants = list(variants)
    few = [name for name in variants if name.startswith(FEWEST)]
    failing = {name: (PURPLE, dashes) for name, dashes in zip(few, plots.DASHES[1:], strict=False)}
    return failing | panels.in_order([name for name in variants if name not in few])


def _of(table: pd.DataFrame, experiment: str) -> pd.DataFrame:
    """The rows of an experiment, of the first task where it has several."""
    own = table[table["experiment"] == experiment]
    return own[own["environment"] == own["environment"].min()]


def _periods(axes: Axes, scores: pd.DataFrame) -> None:
    """Final return against n; its values stand in the variants' labels and are placed in their order."""
    known = [name for name in PERIODS if name in set(scores["variant"])]
    labels = dict(zip(scores["variant"], scores["variant_label"], strict=True))
    for x, name in enumerate(known):
        for origin, part in scores[scores["variant"] == name].groupby("origin", sort=True):
            values = part["final_return"].to_numpy(dtype=np.float64)
            plots.dot(axes, values, x, colour=BLUE, filled=plots.is_filled(str(origin)), vertical=True)
    few = sum(name.startswith(FEWEST) for name in known)
    if 0 < few < len(known):
        axes.axvspan(-0.5, few - 0.5, color=FAINT, alpha=0.5, lw=0)
    if "multiple_1" in known:
        axes.axvline(known.index("multiple_1"), color=GREY, lw=0.8, ls=(0, (1, 2)), zorder=1)
    axes.set_xticks(range(len(known)), [labels[name].replace("n = ", "") for name in known])
    axes.set_xlim(-0.5, len(known) - 0.5)
    axes.tick_params(axis="x", length=0)
    axes.set_title("Where it ends")
    origins = sorted(set(scores["origin"]))
    _origins(axes, [(origin, NAMES[origin]) for origin in origins] if len(origins) > 1 else [])
    axes.set_xlabel("updates n between target updates")
    axes.set_ylabel("final return")
    axes.grid(axis="y")


def _origins(axes: Axes, labels: Sequence[tuple[str, str]]) -> None:
    """What the fill of dots stands for, above the panel on the right: (origin, label) of each."""
    handles = [plots.handle(label, BLUE, marker="o", filled=plots.is_filled(origin)) for origin, label in labels]
    place = {"loc": "lower right", "bbox_to_anchor": (1, 1), "borderaxespad": 0.1, "handletextpad": 0.1}
    axes.legend(handles=handles, ncols=max(1, len(handles)), fontsize=6, **place)


def workers(curves: pd.DataFrame, wall_clock: pd.DataFrame, runs: pd.DataFrame) -> Figure:
    """By the number of workers: return against steps and against wall time, and their speed."""
    own = runs[runs["experiment"] == "workers"]
    if own.empty:
        return panels.nothing()
    canvas = plots.new_figure("full", 4.0)
    grid = canvas.add_gridspec(3, 2, height_ratios=[0.25, 1.6, 1.6])
    learning, styles = _of(curves, "workers"), panels.in_order(_ordered(own, "workers"))
    _ablation(grid, 0, learning, _of(wall_clock, "workers"), styles, "Learning")
    _speeds(canvas.add_subplot(grid[2, :]), own)
    return canvas


def _speeds(axes: Axes, runs: pd.DataFrame) -> None:
    """Frames per second of training against workers, both logarithmic."""
    counts, machines = sorted(set(runs["num_actors"])), []
    for (origin, machine), part in runs.groupby(["origin", "cpu"], sort=True):
        plots.speeds(axes, part, BLUE, counts, filled=plots.is_filled(str(origin)))
        machines.append((str(origin), f"{NAMES[str(origin)]}: {machine}"))
    plots.speed_axes(axes, counts, "workers")
    _origins(axes, machines)
