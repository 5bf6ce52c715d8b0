"""Figures of the Ape-X replication: pure functions of the tables that paper.yaml names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullLocator

from ddrl.analysis import plots
from ddrl.analysis.plots import COLOURS, FAINT, GREY, NAMES, PUBLISHED, Style

ATARI, ACTORS, CAPACITY = "atari", "actors", "capacity"
TIMES = ("times_1", "times_2", "times_4", "times_8")
STORED = "stored_8_times"
PARTS = ("eighth", "quarter", "half", "whole")
"""Capacities, the smallest first."""
PAPER_FRAMES = 22_800_000_000
DENSE = 12
"""More games than this are drawn small."""
FAR_APART = 5
"""From this ratio of budgets on, an axis of frames or times is logarithmic."""
EVERY_PERCENT = (-100, -50, 0, 50, 100, 300, 1000, 3000, 10_000, 30_000, 100_000)


def learning_curves(curves: pd.DataFrame, references: pd.DataFrame, published: pd.DataFrame) -> Figure:
    """One panel per game: training return against frames, published score at 22.8 billion, random and human."""
    curves = curves[curves["experiment"] == ATARI]
    games = sorted(set(curves["environment"]))
    if not games:
        return plots.blank(plots.new_figure("full", 1.0), "No Atari run has finished.")
    dense = len(games) > DENSE
    columns, height = (6, 0.84) if dense else (min(3, max(2, len(games))), 1.9)
    canvas = plots.new_figure("full", 0.5 + height * -(-len(games) // columns))
    for axes, game in zip(plots.panels(canvas, len(games), columns), games, strict=True):
        own = curves[curves["environment"] == game]
        axes.set_title(own["env_label"].iloc[0], fontsize=5.5 if dense else None, pad=2 if dense else None)
        for origin, part in own.groupby("origin", sort=True):
            plots.band(axes, part, "episode_return", colour=COLOURS[str(origin)])
        scores = _scores_of(published)
        score = scores["value"][scores["environment"] == game]
        _game_axes(axes, own, references[references["environment"] == game], score, dense)
    origins = [name for name in ("run", "reference") if name in set(curves["origin"])]
    handles = [plots.handle(NAMES[name], COLOURS[name], dashes="-") for name in origins]
    plots.legend_above(canvas, [*handles, plots.handle(NAMES["published"], PUBLISHED, marker="o")])
    canvas.supxlabel("environment frames", fontsize=7.5)
    canvas.supylabel("episode return", fontsize=7.5)
    return canvas


def _scores_of(published: pd.DataFrame) -> pd.DataFrame:
    """The published scores of single games; points of other curves have budgets of their own."""
    own = published[(published["experiment"] == ATARI) & (published["environment"] != "")]
    return own[own["budget_frames"] == PAPER_FRAMES]


def _game_axes(axes: Axes, own: pd.DataFrame, reference: pd.DataFrame, score: pd.Series, dense: bool) -> None:
    """Axes, lines at random and human play, and the published score."""
    axes.set_xscale("log")
    start = max(1_000.0, own["env_frames"].min() / 1.5)
    axes.set_xlim(start, PAPER_FRAMES * 2.5)
    axes.xaxis.set_major_locator(LogLocator(numticks=3 if dense else 5))
    plots.frames_axis(axes)
    levels = {name: float(reference[name].iloc[0]) for name in ("random", "human")} if len(reference) else {}
    values = [*own["episode_return"].dropna(), *levels.values()]
    low, high = min([*values, *score]), max(values)
    # A score that would flatten the curve is an arrow with its number; small panels have no room for numbers.
    within = dense or all(value <= low + 2.0 * (high - low) for value in score)
    high = max([high, *score]) if within else high
    room = high - low or 1.0
    axes.set_ylim(low - 0.13 * room, high + (0.12 if within else 0.25) * room)
    for name, level in levels.items():
        axes.axhline(level, color=GREY, lw=0.8, ls=(0, (1, 2)), zorder=1)
        if not dense:
            side, place = ("bottom", 1.5) if name == "human" else ("top", -1.5)
            style = {"fontsize": 6, "color": GREY, "va": side, "textcoords": "offset points"}
            axes.annotate(name, (start, level), xytext=(2, place), **style)
    if dense:
        axes.tick_params(labelsize=4.5, length=1.5, pad=1)
        axes.yaxis.set_major_locator(MaxNLocator(3))
        axes.yaxis.set_major_formatter(lambda value, _: plots.frames_text(value) if value >= 10_000 else f"{value:g}")
    if within:
        axes.plot([PAPER_FRAMES] * len(score), score, "o", color=PUBLISHED, ms=4.5, clip_on=False, zorder=5)
        return
    text = f"{score.iloc[0]:,.0f} \N{UPWARDS ARROW}".replace(",", "\N{NO-BREAK SPACE}")
    style = {"ha": "right", "va": "top", "fontsize": 6.5, "color": PUBLISHED}
    axes.annotate(text, (1, 1), xycoords="axes fraction", xytext=(0, -1), textcoords="offset points", **style)


def normalised_scores(scores: pd.DataFrame, published: pd.DataFrame, references: pd.DataFrame) -> Figure:
    """One row per game: our final human-normalised scores beside the published one."""
    own = scores[(scores["experiment"] == ATARI) & scores["human_normalised_score"].notna()]
    if own.empty:
        return plots.blank(plots.new_figure("full", 1.0), "No Atari run has finished.")
    games = sorted(set(own["environment"]), reverse=True)
    labels = dict(zip(own["environment"], own["env_label"], strict=True))
    dense = len(games) > DENSE
    canvas = plots.new_figure("full", 0.8 + (0.12 if dense else 0.34) * len(games))
    axes = canvas.subplots()
    axes.set_xscale("symlog", linthresh=100, linscale=1.2)
    targets = _percent(_scores_of(published), references)
    reached = [0.0, 100.0]
    for y, game in enumerate(games):
        if y % 2 == 0:
            axes.axhspan(y - 0.5, y + 0.5, color=FAINT, alpha=0.35, lw=0)
        if game in targets:
            axes.plot([targets[game]], [y], "o", color=PUBLISHED, ms=5, zorder=4)
            reached.append(targets[game])
        for origin, part in own[own["environment"] == game].groupby("origin", sort=True):
            values = 100 * part["human_normalised_score"].to_numpy(dtype=np.float64)
            plots.dot(axes, values, y, colour=COLOURS[str(origin)])
            reached += values.tolist()
            if not dense:
                _budget(axes, float(values.mean()), y, float(part["env_frames"].min()), str(origin))
    axes.set_yticks(range(len(games)), [labels[game] for game in games])
    axes.tick_params(axis="y", length=0, labelsize=5.5 if dense else 7)
    axes.set_ylim(-0.6, len(games) - 0.4)
    axes.spines["left"].set_visible(False)
    _percent_axis(axes, min(reached), max(reached))
    origins = [name for name in ("run", "reference") if name in set(own["origin"])]
    plots.legend_above(
        canvas, [plots.handle(NAMES[name], COLOURS[name], marker="o") for name in (*origins, "published")]
    )
    return canvas


def _percent(scores: pd.DataFrame, references: pd.DataFrame) -> dict[str, float]:
    """Environment -> published score, human-normalised, in percent."""
    joined = scores.merge(references[["environment", "random", "human"]], on="environment")
    percent = 100 * (joined["value"] - joined["random"]) / (joined["human"] - joined["random"])
    return dict(zip(joined["environment"], percent, strict=True))


def _budget(axes: Axes, x: float, y: float, frames: float, origin: str) -> None:
    """How many frames, above the dot of this run and below that of the reference runs."""
    place = (4, 4 if origin == "run" else -4)
    style = {"va": "center", "fontsize": 5.5, "color": COLOURS[origin], "textcoords": "offset points"}
    axes.annotate(plots.frames_text(frames), (x, y), xytext=place, **style)


def _percent_axis(axes: Axes, low: float, high: float) -> None:
    """Ticks at round percentages within reach, lines at random play and at a human tester."""
    low, high = 1.2 * low - 15, 1.7 * high
    axes.set_xlim(low, high)
    shown = [tick for tick in EVERY_PERCENT if low <= tick <= high]
    texts = [f"{tick:,}".replace("-", "\N{MINUS SIGN}").replace(",", "\N{THIN SPACE}") for tick in shown]
    axes.set_xticks(shown, texts)
    axes.minorticks_off()
    axes.set_xlabel("human-normalised score, % (linear up to 100, logarithmic beyond)")
    for level in (0, 100):
        axes.axvline(level, color=GREY, lw=0.8, ls=(0, (1, 2)), zorder=1)


def actors(curves: pd.DataFrame, wall_clock: pd.DataFrame, runs: pd.DataFrame) -> Figure:
    """By the number of actors: return against frames and against wall time, one row per task; below, their speed."""
    chosen = [table[(table["experiment"] == ACTORS) & table["variant"].isin(TIMES)] for table in (curves, wall_clock)]
    own = runs[(runs["experiment"] == ACTORS) & runs["variant"].isin(TIMES)]
    if own.empty:
        return plots.blank(plots.new_figure("full", 1.0), "No run of this experiment has finished.")
    tasks = sorted(set(chosen[0]["environment"]))
    canvas = plots.new_figure("full", 0.5 + 1.75 * (len(tasks) + 1))
    grid = canvas.add_gridspec(len(tasks) + 1, 2)
    styles, thin = _in_order(TIMES), chosen[0]["origin"].nunique() > 1
    for row, task in enumerate(tasks):
        left = canvas.add_subplot(grid[row, 0])
        right = canvas.add_subplot(grid[row, 1], sharey=left)
        right.tick_params(labelleft=False)
        frames, clock = (table[table["environment"] == task] for table in chosen)
        _lines(left, frames, styles, "env_frames", thin)
        _lines(right, clock, styles, "seconds", thin)
        left.set_title(own["env_label"][own["environment"] == task].iloc[0])
        left.set_ylabel("training return")
        left.set_xlabel("environment frames" if row == len(tasks) - 1 else "")
        right.set_xlabel("wall time of training" if row == len(tasks) - 1 else "")
    _speeds(canvas.add_subplot(grid[len(tasks), :]), own)
    plots.legend_above(canvas, plots.variant_handles(chosen[0], styles))
    return canvas


def replay(curves: pd.DataFrame, wall_clock: pd.DataFrame) -> Figure:
    """Left: return against frames by capacity. Right: against time, whether fresh experience makes up for actors."""
    few = dict(zip((TIMES[0], STORED, TIMES[-1]), zip(plots.SERIES, plots.DASHES, strict=True), strict=False))
    left = curves[curves["experiment"] == CAPACITY]
    right = wall_clock[(wall_clock["experiment"] == ACTORS) & wall_clock["variant"].isin(list(few))]
    sides = ((left, _in_order(PARTS), "Capacity"), (right, few, "Stored 8 times"))
    rows = max(table["environment"].nunique() for table, _, _ in sides)
    if not rows:
        return plots.blank(plots.new_figure("full", 1.0), "No run of these experiments has finished.")
    canvas = plots.new_figure("full", 0.6 + 1.9 * rows)
    grid = canvas.add_gridspec(rows + 1, 2, height_ratios=[0.3, *[1.9] * rows])
    for column, (table, styles, name) in enumerate(sides):
        _key(canvas.add_subplot(grid[0, column]), table, styles)
        for row, task in enumerate(sorted(set(table["environment"])), start=1):
            axes, own = canvas.add_subplot(grid[row, column]), table[table["environment"] == task]
            _lines(axes, own, styles, "seconds" if column else "env_frames", table["origin"].nunique() > 1)
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
        axes.legend(handles=handles, ncols=-(-len(handles) // 2), fontsize=6.5, **place)


def _in_order(variants: Sequence[str]) -> dict[str, Style]:
    return {name: (colour, "-") for name, colour in zip(variants, plots.graded(len(variants)), strict=True)}


def _lines(axes: Axes, table: pd.DataFrame, styles: Mapping[str, Style], x: str, thin: bool) -> None:
    """One line per variant and origin, reference runs `thin` where the figure has both; and the axis of `x`."""
    for (origin, variant), part in table.groupby(["origin", "variant"], sort=True):
        colour, dashes = styles[str(variant)]
        width = 0.9 if thin and origin == "reference" else 1.4
        plots.band(axes, part, "episode_return", colour=colour, dashes=dashes, x=x, width=width)
    ends = table.groupby(["origin", "variant"])[x].max()
    if len(ends) and ends.max() > FAR_APART * ends.min():
        axes.set_xscale("log")
        axes.set_xlim(left=max(1e-3, float(table[x].min())))
    else:
        axes.set_xlim(left=0)
    (plots.frames_axis if x == "env_frames" else plots.time_axis)(axes)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.grid(axis="y")


def _speeds(axes: Axes, runs: pd.DataFrame) -> None:
    """Frames per second of training against actors, both logarithmic; dotted: proportional to the fewest actors."""
    counts, handles = sorted(set(runs["num_actors"])), []
    for (origin, machine, task), part in runs.groupby(["origin", "cpu", "env_label"], sort=True):
        colour = COLOURS[str(origin)]
        plots.speeds(axes, part, colour, counts)
        handles.append(plots.handle(f"{NAMES[str(origin)]}, {task}: {machine}", colour, marker="o"))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(FixedLocator(counts))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(lambda value, _: plots.frames_text(value) if value >= 1000 else f"{value:g}")
    axes.set_title("Speed")
    place = {"loc": "lower right", "bbox_to_anchor": (1, 1), "borderaxespad": 0.1, "handletextpad": 0.1}
    axes.legend(handles=handles, fontsize=6, **place)
    axes.set_xlabel("actors")
    axes.set_ylabel("frames per second")
    axes.grid(axis="y")
