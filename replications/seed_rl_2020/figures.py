"""Figures of the SEED RL replication: pure functions of the tables that paper.yaml names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullLocator

from ddrl.analysis.figures import panels, plots
from ddrl.analysis.figures.plots import FAINT, GREY

SYSTEMS = {"impala": "IMPALA", "seed": "SEED RL"}
"""By what the names of variants begin with."""
STYLES: dict[str, tuple[str, Any]] = dict(zip(SYSTEMS, zip(plots.SERIES, plots.DASHES, strict=True), strict=False))
"""Colour and dashes of a system."""
NETWORKS = ("shallow", "deep")
PAPER_SAVES = (0.4, 0.8)
"""Of IMPALA's cost (the paper's abstract)."""
NEAR = 0.12
"""Marks whose logarithms are closer in both speeds than this lie together."""
WITHIN = 0.15
"""Of what was measured, the simulation's predictions are meant to lie."""


def learning(curves: pd.DataFrame, wall_clock: pd.DataFrame, references: pd.DataFrame) -> Figure:
    """One row per task: training return against frames and against wall time."""
    own, timed = (_of(table, "learning") for table in (curves, wall_clock))
    if own.empty:
        return panels.nothing()
    tasks = sorted(set(own["environment"]), reverse=True)
    canvas = plots.new_figure("full", 0.5 + 1.75 * len(tasks))
    grid = canvas.subplots(len(tasks), 2, squeeze=False, sharey="row")
    random = references.set_index("environment")["random"]
    for (left, right), task in zip(grid, tasks, strict=True):
        for axes, table, x in ((left, own, "env_frames"), (right, timed, "seconds")):
            panels.returns(axes, table[table["environment"] == task], STYLES, x)
            if task in random:
                axes.axhline(float(random[task]), color=GREY, lw=0.8, ls=(0, (1, 2)), zorder=1)
            axes.set_xlim(left=0)
            axes.yaxis.set_major_locator(MaxNLocator(5))
            axes.grid(axis="y")
        left.set_title(own["env_label"][own["environment"] == task].iloc[0])
        left.set_ylabel("training return")
        plots.frames_axis(left)
        plots.time_axis(right)
        right.tick_params(labelleft=False)
    grid[-1][0].set_xlabel("environment frames")
    grid[-1][1].set_xlabel("wall time of training")
    _legend(canvas, own)
    return canvas


def _of(table: pd.DataFrame, experiment: str) -> pd.DataFrame:
    return table[table["experiment"] == experiment]


def _legend(canvas: Figure, table: pd.DataFrame, *, marker: str = "") -> None:
    """The systems; where both origins are there, how each is drawn."""
    handles = [
        plots.handle(label, STYLES[name][0], dashes=STYLES[name][1], marker=marker) for name, label in SYSTEMS.items()
    ]
    if table["origin"].nunique() > 1:
        handles.append(plots.thin_handle("reference runs (thin, open marks)", marker=marker))
    plots.legend_above(canvas, handles)


def near_on_policy(scores: pd.DataFrame, efficiency: pd.DataFrame) -> Figure:
    """Sorted final returns over settings; policy lag at the first and the last step of unrolls."""
    sweep, lags = _of(scores, "near_on_policy"), _of(efficiency, "learning").dropna(subset=["policy_lag_first"])
    if sweep.empty and lags.empty:
        return panels.nothing()
    canvas = plots.new_figure("full", 2.6)
    left, right = canvas.subplots(1, 2)
    panels.sorted_settings(left, sweep, sweep["variant"].map(_system), STYLES)
    left.set_title("Stability")
    for (origin, system), part in lags.groupby(["origin", "variant"], sort=True):
        colour, dashes = STYLES[str(system)]
        width = 0.7 if origin == "reference" else 1.1
        for first, last in part[["policy_lag_first", "policy_lag_last"]].to_numpy():
            right.plot([0, 1], [first, last], color=colour, ls=dashes, lw=width, marker="o", ms=3, mfc="white")
    right.set_title("Policy lag within unrolls")
    right.set_xticks([0, 1], ["first step", "last step"])
    right.set_xlim(-0.3, 1.3)
    right.set_ylim(bottom=0)
    right.set_ylabel("lag in updates")
    right.grid(axis="y")
    _legend(canvas, pd.concat([sweep, lags]), marker="o")
    return canvas


def _system(variant: str) -> str:
    return variant.partition("_")[0]


def throughput(efficiency: pd.DataFrame) -> Figure:
    """By network and number of workers: frames per second, CPU seconds a frame, latency of an inference call."""
    own = _throughput_runs(efficiency)
    if own.empty:
        return panels.nothing()
    networks = [name for name in NETWORKS if name in set(own["network"])]
    canvas = plots.new_figure("full", 5.2)
    grid = canvas.subplots(3, len(networks), squeeze=False, sharex="col")
    for column, network in zip(grid.T, networks, strict=True):
        part = own[own["network"] == network]
        for axes, name in zip(column[:2], ("steady_frames_per_second", "cpu_seconds_per_million_frames"), strict=True):
            _by_workers(axes, part, name)
            axes.set_ylim(bottom=0)
        for name in ("round_trip_ms_p50", "round_trip_ms_p99"):
            _by_workers(column[2], part[part["inference"] == "central"], name)
        column[2].set_yscale("log")
        column[2].yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        column[2].yaxis.set_minor_locator(NullLocator())
        column[2].yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        column[2].set_xlabel("workers")
        column[0].set_title(f"{network} network".capitalize())
        counts = sorted(set(part["num_actors"]))
        column[0].set_xlim(min(counts) - 0.4, max(counts) + 0.4)
        column[2].xaxis.set_major_locator(FixedLocator(counts))
    for axes, label in zip(
        grid[:, 0], ("frames per second", "CPU s per million frames", "round trip, ms"), strict=True
    ):
        axes.set_ylabel(label)
    _legend(canvas, own, marker="o")
    return canvas


def _throughput_runs(efficiency: pd.DataFrame) -> pd.DataFrame:
    """Of the systems with one inference device, in their plain layout."""
    own = _of(efficiency, "throughput")
    return own[own["variant"].str.fullmatch(r"[a-z]+_[a-z]+_[0-9]+")].assign(system=own["variant"].map(_system))


def _by_workers(axes: Axes, runs: pd.DataFrame, name: str) -> None:
    """One tick per run and a line through the means of each system and origin."""
    for (origin, system), part in runs.groupby(["origin", "system"], sort=True):
        known = part.dropna(subset=[name])
        colour = STYLES[str(system)][0]
        for count, group in known.groupby("num_actors", sort=True):
            ticks = group[name].to_numpy(dtype=np.float64)
            axes.plot([count] * len(ticks), ticks, "_", color=colour, ms=6, mew=0.9, alpha=0.7)
        means = known.groupby("num_actors")[name].mean()
        panels.marks(axes, means.index.to_numpy(), means.to_numpy(), STYLES[str(system)], thin=origin == "reference")
    axes.grid(axis="y")


def bandwidth(efficiency: pd.DataFrame) -> Figure:
    """Bytes per frame to and from the learner, one bar each, on a logarithmic axis."""
    own = _of(efficiency, "bandwidth").dropna(subset=["wire_bytes_per_frame"])
    if own.empty:
        return panels.nothing()
    newest = own.groupby("variant")["origin"].transform("max")  # this run's, before the reference runs
    own = own[own["origin"] == newest].sort_values("variant")
    labels = dict(zip(own["variant"], own["variant_label"], strict=True))
    canvas = plots.new_figure("full", 0.6 + 0.42 * len(labels))
    axes = canvas.subplots()
    ways = {"to": ("to the learner", plots.SKY), "from": ("from the learner", plots.ORANGE)}
    for y, variant in enumerate(labels):
        for offset, (way, (_, colour)) in zip((-0.2, 0.2), ways.items(), strict=True):
            values = own[f"wire_bytes_per_frame_{way}_learner"][own["variant"] == variant]
            mean = float(values.mean())
            axes.barh(y + offset, mean, height=0.36, color=colour)
            axes.text(mean * 1.1, y + offset, f"{mean:,.0f}", va="center", fontsize=6.5)
    axes.set_xscale("log")
    axes.set_xlim(1, 4 * float(own["wire_bytes_per_frame"].max()))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: plots.frames_text(value))
    axes.set_yticks(range(len(labels)), list(labels.values()))
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("bytes for each environment frame")
    axes.grid(axis="x")
    plots.legend_above(canvas, [plots.handle(label, colour, marker="s") for label, colour in ways.values()])
    return canvas


def cost(efficiency: pd.DataFrame) -> Figure:
    """Dollars for a billion frames by system, network and workers, and the range that the paper states."""
    own = _of(efficiency, "throughput").dropna(subset=["dollars_per_billion_frames"])
    if own.empty:
        return panels.nothing()
    networks = [name for name in NETWORKS if name in set(own["network"])]
    canvas = plots.new_figure("full", 0.9 + 0.22 * own["variant"].nunique())
    sizes = [own["variant"][own["network"] == name].nunique() + 1 for name in networks]
    column = canvas.subplots(len(networks), 1, squeeze=False, height_ratios=sizes)[:, 0]
    for axes, network in zip(column, networks, strict=True):
        part = own[own["network"] == network]
        order = part.drop_duplicates("variant").sort_values(["num_actors", "variant"])
        labels = dict(zip(order["variant"], order["variant_label"], strict=True))
        for y, variant in enumerate(labels):
            for origin, group in part[part["variant"] == variant].groupby("origin", sort=True):
                filled = origin == "run"
                values = group["dollars_per_billion_frames"].to_numpy(dtype=np.float64)
                plots.dot(axes, values, y, colour=STYLES[_system(variant)][0], filled=filled)
        _paper_range(axes, part, list(labels))
        axes.set_yticks(range(len(labels)), [label.replace(f", {network}", "") for label in labels.values()])
        axes.set_ylim(len(labels) - 0.5, -0.5)
        axes.set_xlim(left=0)
        axes.tick_params(axis="y", length=0)
        axes.set_title(f"{network} network".capitalize())
        axes.grid(axis="x")
    column[-1].set_xlabel("dollars for a billion environment frames")
    _legend(canvas, own, marker="o")
    return canvas


def _paper_range(axes: Axes, runs: pd.DataFrame, variants: Sequence[str]) -> None:
    """Beside each of SEED RL: what IMPALA with as many workers costs, less the paper's 40 to 80 %."""
    means = runs.groupby(["variant", "origin"])["dollars_per_billion_frames"].mean()
    for y, variant in enumerate(variants):
        other = variant.replace("seed", "impala").partition("_devices")[0]
        if _system(variant) == "seed" and other in means.index.get_level_values("variant"):
            low, high = sorted(float(means[other].iloc[0]) * (1 - part) for part in PAPER_SAVES)
            axes.fill_betweenx([y - 0.35, y + 0.35], low, high, color=FAINT, alpha=0.7, lw=0, zorder=0)


def simulation(validation: pd.DataFrame, extrapolation: pd.DataFrame) -> Figure:
    """Predicted against measured speeds; predictions for other layouts beside published rates."""
    if validation.empty:
        return panels.nothing()
    canvas = plots.new_figure("full", 3.1)
    left, right = canvas.subplots(1, 2, width_ratios=(1, 1.1))
    _validation(left, validation)
    stated = extrapolation.dropna(subset=["published"]).iloc[::-1]
    for y, row in enumerate(stated.to_dict("records")):
        right.plot([row["published"]], [y], "D", color=plots.PUBLISHED, mfc="none", ms=5)
        right.plot([row["predicted"]], [y], "s", color=plots.INK, ms=3.5)
    right.set_yticks(range(len(stated)), [name.replace(" actors", "") for name in stated["scenario"]], fontsize=6)
    right.set_xscale("log")
    right.xaxis.set_major_locator(LogLocator())
    plots.frames_axis(right)
    if len(stated):
        speeds = stated[["published", "predicted"]].to_numpy(dtype=np.float64)
        right.set_xlim(0.4 * speeds.min(), 2.5 * speeds.max())
    right.set_ylim(-0.6, len(stated) - 0.4)
    right.tick_params(axis="y", length=0)
    right.set_xlabel("frames per second")
    right.set_title("Layouts of the paper")
    right.grid(axis="x")
    handles = [plots.handle(label, STYLES[name][0], marker="o") for name, label in SYSTEMS.items()]
    handles += [plots.handle("predicted", plots.INK, marker="s")]
    handles += [plots.handle("stated", plots.PUBLISHED, marker="D", filled=False)]
    plots.legend_above(canvas, handles)
    return canvas


def _validation(axes: Axes, table: pd.DataFrame) -> None:
    """One mark per system, network and number of workers, which stands beside it; open: the service times' own run."""
    fewest = table.groupby(["origin", "system", "network"])["workers"].transform("min")
    named: list[tuple[str, float, float]] = []
    for row, least in zip(table.to_dict("records"), fewest, strict=True):
        name = next(key for key, label in SYSTEMS.items() if label == row["system"])
        colour = STYLES[name][0]
        face = "white" if row["workers"] == least else colour
        axes.plot([row["measured"]], [row["predicted"]], "o", color=colour, mfc=face, ms=5, mew=1.0)
        place = (str(row["workers"]), float(np.log(row["measured"])), float(np.log(row["predicted"])))
        # Marks that lie together and are of as many workers share a number; another number goes to the other side.
        near = [other for other in named if max(abs(other[1] - place[1]), abs(other[2] - place[2])) < NEAR]
        if all(other[0] != place[0] for other in near):
            offset = (-9, 3) if near else (4, -7)
            axes.annotate(place[0], (row["measured"], row["predicted"]), offset, textcoords="offset points", fontsize=6)
            named.append(place)
    low, high = 0.7 * float(table["measured"].min()), 1.4 * float(table["measured"].max())
    line = np.array([low, high])
    axes.fill_between(line, (1 - WITHIN) * line, (1 + WITHIN) * line, color=FAINT, alpha=0.7, lw=0, zorder=0)
    axes.plot(line, line, color=GREY, lw=0.8, zorder=0)
    for name in ("x", "y"):
        getattr(axes, f"set_{name}scale")("log")
        getattr(axes, f"set_{name}lim")(low, high)
        axis = getattr(axes, f"{name}axis")
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(lambda value, _: plots.frames_text(value))
    axes.set_xlabel("measured frames per second")
    axes.set_ylabel("predicted")
    axes.set_title("Measured here, by workers")
