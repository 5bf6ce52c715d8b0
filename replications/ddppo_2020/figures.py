"""Figures of the DD-PPO replication: pure functions of the tables that paper.yaml names."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator, PercentFormatter

from ddrl.analysis.figures import panels, plots
from ddrl.analysis.figures.plots import BLUE, DASHES, GREY, INK, ORANGE, PUBLISHED, VERMILLION, Style

SCALING, PREEMPTION, SENSORS = "scaling", "preemption_learning", "sensors"
SPEED = "steady_frames_per_second"
COUNTS = {"one": 1, "two": 2, "four": 4, "eight": 8, "many": 128, "most": 256}
"""Workers, by the beginning of a variant's name."""
WORK = {"equal": "equal work", "unequal": "unequal work", "preempted": "unequal work, preempted"}
"""Label, by the end of a variant's name."""
WORK_STYLES: dict[str, Style] = {
    "equal": (ORANGE, DASHES[2]),
    "unequal": (VERMILLION, DASHES[1]),
    "preempted": (BLUE, "-"),
}
LINES = {"equal": ("equal", 1.0), "unequal": ("unequal", 1.0), "preempted": ("unequal", 0.6)}
"""Work and threshold of a simulated line."""
SHIFTS = {"equal": 0.94, "unequal": 1.0, "preempted": 1.06}
"""Marks of as many workers stand side by side."""
TICKS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
UNROLLS: dict[str, Style] = {"preempted": (BLUE, "-"), "whole": (VERMILLION, DASHES[1])}
EYES: dict[str, Style] = {"depth": (BLUE, "-"), "blind": (VERMILLION, DASHES[1])}
EYE_LABELS = {"depth": "depth", "blind": "blind"}
EARLY = 0.04
"""The part of the frames after which the paper has 90 % of the final SPL."""


def scaling(efficiency: pd.DataFrame, predictions: pd.DataFrame, published: pd.DataFrame) -> Figure:
    """Show speed-ups over one worker by the number of workers, and simulated speeds by the threshold of preemption."""
    if predictions.empty:
        return panels.nothing()
    canvas = plots.new_figure("full", 3.1)
    left, right = canvas.subplots(1, 2, width_ratios=(1.25, 1))
    runs = efficiency[(efficiency["experiment"] == SCALING) & efficiency[SPEED].notna()]
    drawn = _speed_ups(left, runs, predictions)
    printed = published[(published["experiment"] == SCALING) & (published["metric"] == "speed_up")]
    workers = printed["variant"].str.removesuffix(" GPUs").astype("float64")
    left.plot(workers, printed["value"], "D", color=PUBLISHED, ms=5, mfc="none", mew=1.1, zorder=5)
    _thresholds(right, predictions)
    handles = [plots.handle(text, WORK_STYLES[name][0], dashes=WORK_STYLES[name][1]) for name, text in WORK.items()]
    handles += plots.origin_handles(drawn)
    handles.append(plots.handle("published, GPUs", PUBLISHED, marker="D", filled=False))
    plots.legend_above(canvas, handles)
    return canvas


def _speed_ups(axes: Axes, runs: pd.DataFrame, predictions: pd.DataFrame) -> list[str]:
    """Draw simulated lines, and the runs' speeds over the mean speed of one worker with the same work.

    Return the origins that have runs of one worker; no speed of another origin can be drawn.
    """
    axes.plot(TICKS, TICKS, color=GREY, lw=0.8, ls=(0, (1, 2)), zorder=1)
    for name, (work, threshold) in LINES.items():
        line = predictions[(predictions["work"] == work) & (predictions["threshold"] == threshold)]
        colour, dashes = WORK_STYLES[name]
        axes.plot(line["workers"], line["speed_up"], color=colour, ls=dashes, lw=1.2)
    parts = runs["variant"].str.split("_", expand=True).reindex(columns=[0, 1])
    own = runs.assign(workers=parts[0].map(COUNTS), work=parts[1]).dropna(subset=["workers"])
    for origin, of_origin in own.groupby("origin", sort=True):
        for name in WORK:
            alone = of_origin[(of_origin["workers"] == 1) & (of_origin["work"] == name.replace("preempted", "unequal"))]
            part = of_origin[of_origin["work"] == name]
            for count, group in part.groupby("workers"):
                values = group[SPEED].to_numpy(dtype=float) / float(alone[SPEED].mean())
                place, filled = SHIFTS[name] * float(count), plots.is_filled(str(origin))
                if len(alone):
                    plots.dot(axes, values, place, colour=WORK_STYLES[name][0], filled=filled, vertical=True)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(FixedLocator(TICKS))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("workers")
    axes.set_ylabel("times the speed of one")
    axes.set_title("Speed")
    axes.grid(axis="y")
    return panels.origins_of(own[own["workers"] == 1])


def _thresholds(axes: Axes, predictions: pd.DataFrame) -> None:
    """Draw the simulated speed with unequal work, as a share of that with equal work, by the threshold."""
    equal = predictions[predictions["work"] == "equal"].set_index("workers")["speed_up"]
    unequal = predictions[predictions["work"] == "unequal"]
    swept = [count for count, part in unequal.groupby("workers") if len(part) > 2]
    for count, colour in zip(swept, plots.graded(len(swept)), strict=True):
        line = unequal[unequal["workers"] == count].sort_values("threshold")
        share = line["speed_up"] / equal[count]
        axes.plot(line["threshold"], share, color=colour, lw=1.2, marker="o", ms=2.5)
        place, offset = (line["threshold"].iloc[0], share.iloc[0]), -10 if count == max(swept) else 5
        style: dict[str, Any] = {"textcoords": "offset points", "fontsize": 6.5, "color": INK}
        axes.annotate(f"{count} workers", place, (0, offset), **style)
    axes.axvspan(0.6, 0.8, color=plots.FAINT, alpha=0.6, lw=0, zorder=0)
    axes.text(0.7, 0.04, "the paper's range", ha="center", fontsize=6.5, color=INK)
    axes.set_ylim(0, 1.05)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel("share of workers that end an unroll")
    axes.set_ylabel("of the speed with equal work")
    axes.set_title("Thresholds, simulated")
    axes.grid(axis="y")


def preemption(evaluations: pd.DataFrame, wall_clock: pd.DataFrame) -> Figure:
    """Show SPL against frames and training return against wall time, with preempted and with whole unrolls."""
    learned, timed = (table[table["experiment"] == PREEMPTION] for table in (evaluations, wall_clock))
    if learned.empty:
        return panels.nothing()
    canvas = plots.new_figure("full", 2.4)
    left, right = plots.panels(canvas, 2, 2)
    _spl(left, learned, UNROLLS)
    panels.returns_over(right, timed, UNROLLS, "seconds", thin=timed["origin"].nunique() > 1)
    right.set_title("Training")
    right.set_xlabel("wall time of training")
    right.set_ylabel("training return")
    plots.legend_above(canvas, plots.variant_handles(learned, UNROLLS))
    return canvas


def _spl(axes: Axes, evaluations: pd.DataFrame, styles: dict[str, Style]) -> None:
    """Draw SPL of evaluations during training against frames."""
    thin = evaluations["origin"].nunique() > 1
    panels.returns(axes, evaluations, styles, column="evaluation_return", thin=thin)
    panels.extent(axes, evaluations, "env_frames")
    axes.set_ylim(bottom=0)
    axes.set_title(f"{evaluations['env_label'].iloc[0]} mazes, a proxy")
    axes.set_xlabel("environment frames of training")
    axes.set_ylabel("SPL of evaluations")


def sensors(evaluations: pd.DataFrame, scores: pd.DataFrame) -> Figure:
    """Show SPL during training, and of the final episodes, of agents that see and of blind ones."""
    learned, ended = (table[table["experiment"] == SENSORS] for table in (evaluations, scores))
    if learned.empty or ended.empty:
        return panels.nothing()
    canvas = plots.new_figure("full", 2.4)
    left, right = canvas.subplots(1, 2, width_ratios=(1.4, 1))
    _spl(left, learned, EYES)
    left.axvline(EARLY * float(learned["env_frames"].max()), color=GREY, lw=0.8, ls=(0, (1, 2)), zorder=1)
    origins = panels.origins_of(ended)
    panels.rows(right, panels.by_variant(ended, "final_return"), EYE_LABELS, origins, colours={"blind": VERMILLION})
    right.set_xlim(0, max(0.1, 1.05 * right.get_xlim()[1]))
    right.xaxis.set_major_locator(MaxNLocator(5))
    right.set_title("Final episodes")
    right.set_xlabel("SPL")
    right.grid(axis="x")
    plots.legend_above(canvas, plots.variant_handles(learned, EYES))
    return canvas
