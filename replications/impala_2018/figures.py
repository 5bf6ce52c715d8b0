"""Figures of the IMPALA replication: pure functions of the tables that paper.yaml names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ddrl.analysis.figures import games, panels, plots
from ddrl.analysis.figures.games import Mark, Panels, Rows, Variant
from ddrl.analysis.figures.plots import BLUE, DASHES, FAINT, GREEN, GREY, INK, PUBLISHED, VERMILLION, Style
from ddrl.papers.experiments import system_of
from replications.impala_2018.suite_figures import (
    capped_scores,
    capped_scores_on_a_subset,
    schedules,
    task_scores,
    task_scores_on_a_subset,
)
from replications.impala_2018.tables import BASE, ROLES, SPEED, STANDS_FOR, THROUGHPUT

__all__ = ["capped_scores", "capped_scores_on_a_subset", "schedules", "task_scores", "task_scores_on_a_subset"]
"""Figures of this paper that stand in a file of their own."""
ATARI, CORRECTION = "atari", "off_policy_correction"
SINGLE_TASK, SWEEP = "single_task", "hyperparameter_sweep"
NETWORKS = {"shallow": Variant("Shallow", "o", "-"), "deep": Variant("Deep", "D", DASHES[1])}
CORRECTIONS = {
    "v_trace": "V-trace",
    "one_step_is": "1-step IS",
    "epsilon_correction": "ε-correction",
    "no_correction": "No correction",
}
THROUGHPUTS = {
    "a3c": "A3C",
    "a2c_sync_step": "A2C, sync. steps",
    "a2c_sync_step_gpu": "A2C, sync. steps, GPU",
    "a2c_sync_trajectory": "A2C, sync. trajectories",
    "a2c_dynamic_batching": "A2C, dynamic batching",
    "impala": "IMPALA",
    "impala_dynamic_batching": "IMPALA, dynamic batching",
}
STYLES: dict[str, Style] = {
    "impala": (BLUE, "-"),
    "a3c": (VERMILLION, DASHES[1]),
    "batched_a2c": (GREEN, DASHES[2]),
}
"""Colour and dashes of the systems."""
COLOURS = {name: STYLES["batched_a2c" if name.startswith("a2c") else name.partition("_")[0]][0] for name in THROUGHPUTS}
SYSTEMS = {"impala": "IMPALA", "a3c": "A3C", "batched_a2c": "Batched A2C"}
LAG = "policy_lag_mean"
BAR = 0.56
"""Height of a bar, or of the bars of both origins together."""
WINDOWS = 25
"""Of a run's frames: a record of a first-person task is of one or two episodes."""
PAPER_FRAMES = 200_000_000
MARKS = {
    "shallow": Mark("published, shallow", PAPER_FRAMES, "o", filled=True, short="shallow"),
    "deep": Mark("published, deep", PAPER_FRAMES, "D", filled=False, short="deep"),
}
PANELS = Panels(end=2.2 * PAPER_FRAMES, height=1.72, head=0.45, ticks=None)
ROWS = Rows(height=0.21, dense=0.07, head=0.75, lift=3.5)


def learning_curves(curves: pd.DataFrame, references: pd.DataFrame, published: pd.DataFrame) -> Figure:
    """One panel per game: training return against frames, published final scores at 200 million, random and human."""
    own = curves[curves["experiment"] == ATARI]
    return games.learning_curves(own, references, _scores_of(published), NETWORKS, MARKS, PANELS)


def _scores_of(published: pd.DataFrame) -> pd.DataFrame:
    """The published final scores of single games, each marked as its network."""
    own = published[(published["experiment"] == ATARI) & (published["environment"] != "")]
    return own.assign(mark=own["compared_variant"])


def normalised_scores(scores: pd.DataFrame, published: pd.DataFrame, references: pd.DataFrame) -> Figure:
    """One row per game and network: our final human-normalised scores beside the published ones."""
    own = scores[scores["experiment"] == ATARI]
    return games.normalised_scores(own, _scores_of(published), references, NETWORKS, MARKS, ROWS)


def correction_dot_plot(scores: pd.DataFrame, published: pd.DataFrame) -> Figure:
    """The four corrections, without replay (discs) and with (triangles): our tasks, then the paper's Table 2."""
    own = scores[scores["experiment"] == CORRECTION]
    tasks = sorted(set(own["environment"]))
    count = len(tasks) + 1
    canvas = plots.new_figure("full", 0.5 + 2.0 * -(-count // 3))
    grid = plots.panels(canvas, count, 3, sharey=True)
    for axes, task in zip(grid, tasks, strict=False):
        part = own[own["environment"] == task]
        axes.set_title(part["env_label"].iloc[0])
        _correction_rows(axes)
        origins = sorted(set(part["origin"]), reverse=True)
        for (origin, variant), runs in part.groupby(["origin", "variant"], sort=True):
            place = _correction_y(variant) + 0.14 * (origins.index(origin) - (len(origins) - 1) / 2)
            values = runs["final_return"].to_numpy(dtype=np.float64)
            look: dict[str, Any] = {"marker": _correction_mark(variant), "filled": plots.is_filled(origin)}
            plots.dot(axes, values, place, colour=BLUE, **look)
        # Intervals of few and uneven seeds reach beyond what is possible: they are cut at the edge.
        low, high = part["final_return"].min(), part["final_return"].max()
        room = 0.1 * (high - low or 1.0)
        axes.set_xlim(low - room, high + room)
        axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.set_xlabel("final return")
    _published_corrections(grid[-1], published)
    origins = [name for name in ("run", "reference") if name in set(own["origin"])]
    handles = [
        *plots.origin_handles(origins, marker="s"),
        plots.handle("published", PUBLISHED, marker="D", filled=False),
        plots.handle("without replay", BLUE, marker=_correction_mark("")),
        plots.handle("with replay", BLUE, marker=_correction_mark("_replay")),
    ]
    plots.legend_above(canvas, handles)
    return canvas


def _correction_mark(variant: str) -> str:
    return "^" if variant.endswith("_replay") else "o"


def _correction_y(variant: str) -> float:
    """Row of a correction, the replayed one just below."""
    names = list(CORRECTIONS)
    return -names.index(variant.removesuffix("_replay")) - (0.2 if variant.endswith("_replay") else -0.2)


def _correction_rows(axes: Axes) -> None:
    axes.set_yticks([-index for index in range(len(CORRECTIONS))], list(CORRECTIONS.values()))
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")
    axes.set_ylim(-len(CORRECTIONS) + 0.45, 0.55)
    for index in range(1, len(CORRECTIONS)):
        axes.axhline(0.5 - index, color=FAINT, lw=0.6)


def _published_corrections(axes: Axes, published: pd.DataFrame) -> None:
    """Table 2, each score divided by the best of its task."""
    rows = published[published["experiment"] == CORRECTION].copy()
    rows["relative"] = rows["value"] / rows.groupby("task")["value"].transform("max")
    _correction_rows(axes)
    for variant, part in rows.groupby("compared_variant", sort=True):
        y = _correction_y(variant)
        axes.plot(part["relative"], np.full(len(part), y), ".", color=PUBLISHED, ms=3.5, alpha=0.45, mew=0)
        axes.plot([part["relative"].mean()], [y], "D", color=PUBLISHED, ms=4.5, mfc="none", mew=1.1)
    axes.set_xlim(0, 1.05)
    axes.set_title("Published, DeepMind Lab")
    axes.set_xlabel("score / best score of its task")


def policy_lag(policy_lag: pd.DataFrame) -> Figure:
    """One panel per experiment: mean lag of a batch as a line, and a band up to the largest."""
    shown = [name for name in (ATARI, CORRECTION) if name in set(policy_lag["experiment"])]
    if not shown:
        return panels.nothing()
    canvas = plots.new_figure("full", 2.2)
    for axes, experiment in zip(plots.panels(canvas, len(shown), 2), shown, strict=True):
        part = policy_lag[policy_lag["experiment"] == experiment]
        group = ["origin", "variant"] if experiment == ATARI else ["origin", "replay"]
        part = part.assign(replay=part["variant"].str.endswith("_replay"))
        for (origin, which), runs in part.groupby(group, sort=True):
            _lag_band(axes, runs, 1.4 if plots.is_filled(origin) else 0.9, _lag_line(experiment, which)[1])
        lines = [_lag_line(experiment, which) for which in sorted(set(part[group[1]]), reverse=experiment == ATARI)]
        axes.legend(
            handles=[plots.handle(label, BLUE, dashes=dashes) for label, dashes in lines],
            loc="upper left",
            handlelength=1.8,
        )
        axes.set_title({ATARI: "Atari experts", CORRECTION: "Off-policy corrections"}[experiment])
        if experiment == ATARI:
            axes.set_xscale("log")
        plots.frames_axis(axes)
        axes.set_ylim(0, 1.35 * axes.get_ylim()[1])
        axes.grid(axis="y")
        axes.set_xlabel("environment frames")
    canvas.axes[0].set_ylabel("policy lag, updates")
    if policy_lag["origin"].nunique() > 1:
        plots.legend_above(canvas, [plots.thin_handle()])
    return canvas


def _lag_line(experiment: str, which: str | bool) -> tuple[str, object]:
    """Label and dashes of a line."""
    if experiment == ATARI:
        return NETWORKS[str(which)].label.lower(), NETWORKS[str(which)].dashes
    return ("with replay", NETWORKS["deep"].dashes) if which else ("without replay", "-")


def _lag_band(axes: Axes, runs: pd.DataFrame, width: float, dashes: object) -> None:
    """Mean over runs of the mean lag, on a shared grid; the band reaches to the largest of all."""
    frames = np.unique(np.geomspace(max(1, runs["env_frames"].min()), runs["env_frames"].max(), 120).astype(np.int64))
    means, largest = [], []
    for _, run in runs.groupby(["variant", "environment", "seed"], sort=True):
        inside = (frames >= run["env_frames"].min()) & (frames <= run["env_frames"].max())
        for name, lines in (("policy_lag_mean", means), ("policy_lag_max", largest)):
            lines.append(np.where(inside, np.interp(frames, run["env_frames"], run[name]), np.nan))
    mean = np.nanmean(means, axis=0)
    axes.fill_between(frames, mean, np.nanmax(largest, axis=0), color=BLUE, alpha=0.15, lw=0)
    axes.plot(frames, mean, color=BLUE, ls=dashes, lw=width)


def throughput(efficiency: pd.DataFrame, published: pd.DataFrame) -> Figure:
    """One column per task: frames per second, their ratio to A3C's beside Table 1, CPU seconds by role, policy lag."""
    own = efficiency[(efficiency["experiment"] == THROUGHPUT) & efficiency["variant"].isin(list(THROUGHPUTS))]
    if own.empty:
        return panels.nothing()
    tasks, origins = sorted(set(own["environment"]), reverse=True), panels.origins_of(own)
    labels = {name: text for name, text in THROUGHPUTS.items() if name in set(own["variant"])}
    canvas = plots.new_figure("full", 6.4)
    for column, task in zip(canvas.subplots(4, len(tasks), squeeze=False, sharey="row").T, tasks, strict=True):
        part = own[own["environment"] == task]
        column[0].set_title(part["env_label"].iloc[0])
        _speeds(column[0], column[1], part, published, labels, origins)
        panels.rows(column[2], {}, labels, origins)
        _cpu_bars(column[2], part, list(labels), origins)
        panels.rows(column[3], panels.by_variant(part, LAG), labels, origins, 0.36, COLOURS)
        column[3].set_xlabel("mean policy lag, updates")
        for axes in column:
            axes.grid(axis="x")
            axes.set_xlim(left=0)
            axes.xaxis.set_major_locator(MaxNLocator(5))
    handles = plots.origin_handles(origins)
    if any(line.get_marker() == "D" for axes in canvas.axes for line in axes.lines):
        handles.append(plots.handle("published, Table 1", PUBLISHED, marker="D", filled=False))
    shades = zip(ROLES, plots.graded(len(ROLES)), strict=True)
    handles += [plots.handle(f"CPU: {role}", shade, marker="s") for role, shade in shades]
    plots.legend_above(canvas, handles, columns=4)
    return canvas


def _speeds(
    speed: Axes,
    ratio: Axes,
    runs: pd.DataFrame,
    published: pd.DataFrame,
    labels: Mapping[str, str],
    origins: Sequence[str],
) -> None:
    """Frames per second of one task, and below what they are to A3C's, beside Table 1."""
    panels.rows(speed, panels.by_variant(runs, SPEED), labels, origins, 0.36, COLOURS)
    speed.set_xlabel("frames per second")
    pairs = {name: BASE for name in labels if name != BASE}
    compared = {name: labels[name] for name in pairs}
    panels.rows(ratio, panels.ratios(runs, SPEED, pairs), compared, origins, 0.36, COLOURS)
    panels.one_line(ratio)
    stands_for = STANDS_FOR.get(str(runs["environment"].iloc[0]))
    ratio.set_xlabel("times as many as A3C" + (f"\n(published: {stands_for})" if stands_for else ""))
    table = published[(published["experiment"] == THROUGHPUT) & (published["item"] == "Table 1")]
    theirs = table[table["task"] == stands_for].set_index("compared_variant")["value"]
    for row, variant in enumerate(pairs):
        if {variant, BASE} <= set(theirs.index):
            panels.published_row(ratio, [float(theirs[variant]) / float(theirs[BASE])], row)


def _cpu_bars(axes: Axes, runs: pd.DataFrame, variants: Sequence[str], origins: Sequence[str]) -> None:
    """Mean CPU seconds of a million frames by what the threads do, light to dark; of reference runs in grey frames."""
    columns = [f"{role}_thread_cpu_seconds_per_million_frames" for role in ROLES]
    known, height = runs.dropna(subset=columns, how="all"), BAR / len(origins)
    for (origin, variant), part in known.groupby(["origin", "variant"], sort=True):
        y = height * (origins.index(str(origin)) - (len(origins) - 1) / 2) - list(variants).index(str(variant))
        left = 0.0
        for column, shade in zip(columns, plots.graded(len(columns)), strict=True):
            width = float(part[column].fillna(0.0).mean())
            axes.barh(y, width, 0.9 * height, left=left, color=shade, lw=0)
            left += width
        axes.barh(y, left, 0.9 * height, fill=False, edgecolor=INK if plots.is_filled(str(origin)) else GREY, lw=0.8)
    if known.empty:
        axes.text(0.5, 0.5, "not recorded", ha="center", color=GREY, transform=axes.transAxes)
    axes.set_xlabel("CPU seconds per million frames")


def single_task(curves: pd.DataFrame, references: pd.DataFrame) -> Figure:
    """One panel per task: training return of IMPALA, A3C and batched A2C against frames."""
    own = curves[curves["experiment"] == SINGLE_TASK]
    return panels.systems(panels.in_windows(own, WINDOWS), references, SYSTEMS, STYLES)


def hyperparameters(scores: pd.DataFrame) -> Figure:
    """One panel per task: final returns of the settings of a sweep, from best to worst, a line per system."""
    own = scores[scores["experiment"] == SWEEP]
    own = own.assign(system=own["variant"].map(system_of))
    own = own[own["system"].isin(list(SYSTEMS))]
    if own.empty:
        return panels.nothing()
    tasks = sorted(set(own["environment"]), reverse=True)
    canvas = plots.new_figure("full", 0.5 + 2.0 * -(-len(tasks) // 3))
    for axes, task in zip(plots.panels(canvas, len(tasks), 3), tasks, strict=True):
        part = own[own["environment"] == task]
        panels.sorted_settings(axes, part, part["system"], STYLES)
        axes.set_title(part["env_label"].iloc[0])
        axes.yaxis.set_major_locator(MaxNLocator(5))
    there = {name: SYSTEMS[name] for name in SYSTEMS if name in set(own["system"])}
    filled = "run" in set(own["origin"])
    handles = [
        plots.handle(text, STYLES[name][0], dashes=STYLES[name][1], marker="o", filled=filled)
        for name, text in there.items()
    ]
    if own["origin"].nunique() > 1:
        handles.append(plots.thin_handle("reference runs (thin, open marks)", marker="o"))
    plots.legend_above(canvas, handles)
    return canvas
