"""Figures of the GA3C replication: pure functions of the tables that paper.yaml names."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from ddrl.analysis.figures import games, panels, plots
from ddrl.analysis.figures.games import Mark, Panels, Rows, Variant
from ddrl.analysis.figures.plots import BLUE, DASHES, PUBLISHED, VERMILLION

ATARI, THROUGHPUT, ADJUSTMENT = "atari", "throughput", "adjustment"
SPEED = "steady_frames_per_second"
AGENTS = {"ga3c": Variant("GA3C")}
COLOURS = {
    f"{name}_{size}": colour for name, colour in (("ga3c", BLUE), ("a3c", VERMILLION)) for size in ("small", "large")
}
"""Of the systems of the throughput experiment."""
MARKS = {"ga3c": Mark("published, after one day on a GPU", None)}
PANELS = Panels(height=1.9)
SYSTEMS = {
    "a3c_small": "A3C, small",
    "ga3c_small": "GA3C, small",
    "a3c_large": "A3C, large",
    "ga3c_large": "GA3C, large",
}
GAINS = {"ga3c_small": "small network", "ga3c_large": "large network"}
"""What is held against A3C with the same network."""
AGAINST = {"ga3c_small": "a3c_small", "ga3c_large": "a3c_large"}
WAYS = {"dynamic": "found while training", "fixed": "set by hand"}


def learning_curves(curves: pd.DataFrame, references: pd.DataFrame, published: pd.DataFrame) -> Figure:
    """One panel per game: training return against frames, the published score as a line, random and human play."""
    own = curves[curves["experiment"] == ATARI]
    return games.learning_curves(own, references, _scores_of(published), AGENTS, MARKS, PANELS)


def _scores_of(published: pd.DataFrame) -> pd.DataFrame:
    """The published scores of single games."""
    own = published[(published["experiment"] == ATARI) & (published["environment"] != "")]
    return own[own["metric"] == "episode_return"].assign(mark="ga3c")


def normalised_scores(scores: pd.DataFrame, published: pd.DataFrame, references: pd.DataFrame) -> Figure:
    """One row per game: our final human-normalised scores beside the published one."""
    own = scores[scores["experiment"] == ATARI]
    return games.normalised_scores(own, _scores_of(published), references, AGENTS, MARKS, Rows())


def throughput(efficiency: pd.DataFrame, published: pd.DataFrame) -> Figure:
    """One row per task: frames per second of both systems with two networks; how many times A3C's speed GA3C has."""
    own = efficiency[(efficiency["experiment"] == THROUGHPUT) & efficiency["variant"].isin(list(SYSTEMS))]
    own = own.dropna(subset=[SPEED])
    if own.empty:
        return panels.nothing()
    tasks, origins = sorted(set(own["environment"]), reverse=True), panels.origins_of(own)
    canvas = plots.new_figure("full", 0.7 + 1.6 * len(tasks))
    rows = published[(published["experiment"] == THROUGHPUT) & (published["metric"] == "speed_up")]
    for (left, right), task in zip(canvas.subplots(len(tasks), 2, squeeze=False), tasks, strict=True):
        part = own[own["environment"] == task]
        panels.rows(left, panels.by_variant(part, SPEED), SYSTEMS, origins, colours=COLOURS)
        panels.rows(right, panels.ratios(part, SPEED, AGAINST), GAINS, origins, spread=0.6)
        for row, variant in enumerate(GAINS):
            printed = rows[rows["compared_variant"] == variant].sort_values("cell")
            panels.published_row(right, printed["value"].tolist(), row, _machines(printed))
        panels.one_line(right)
        for axes in (left, right):
            panels.logarithmic(axes)
        left.set_title(part["env_label"].iloc[0])
        right.set_title("GA3C against A3C")
        left.set_xlabel("frames per second")
        right.set_xlabel("times the frames per second of A3C")
    handles = plots.origin_handles(origins)
    if len(rows):
        handles.append(plots.handle("published, Systems I to III", PUBLISHED, marker="D", filled=False))
    plots.legend_above(canvas, handles)
    return canvas


def _machines(published: pd.DataFrame) -> list[str]:
    """I, II or III: which of the paper's systems each value is of."""
    return [str(text).partition(":")[0].removeprefix("System ") for text in published["hardware"]]


def adjustment(wall_clock: pd.DataFrame, efficiency: pd.DataFrame) -> Figure:
    """One row per task: return against wall time with numbers found while training and set by hand; their speed."""
    own = wall_clock[(wall_clock["experiment"] == ADJUSTMENT) & wall_clock["variant"].isin(list(WAYS))]
    runs = efficiency[(efficiency["experiment"] == ADJUSTMENT) & efficiency["variant"].isin(list(WAYS))]
    if own.empty:
        return panels.nothing()
    tasks, styles = (
        sorted(set(own["environment"]), reverse=True),
        dict(zip(WAYS, ((BLUE, "-"), (BLUE, DASHES[1])), strict=True)),
    )
    origins = panels.origins_of(own, runs)
    canvas = plots.new_figure("full", 0.7 + 1.7 * len(tasks))
    for (left, right), task in zip(canvas.subplots(len(tasks), 2, squeeze=False), tasks, strict=True):
        part = own[own["environment"] == task]
        panels.returns_over(left, part, styles, "seconds", thin=len(origins) > 1)
        panels.rows(right, panels.by_variant(runs[runs["environment"] == task], SPEED), WAYS, origins)
        right.set_xlim(left=0)
        # Of many ticks the last one's label would reach over the edge.
        right.locator_params(axis="x", nbins=4)
        right.grid(axis="x")
        left.set_title(part["env_label"].iloc[0])
        right.set_title("Speed")
        left.set_ylabel("training return")
        left.set_xlabel("wall time of training")
        right.set_xlabel("frames per second")
    handles = plots.variant_handles(own, styles, WAYS)
    plots.legend_above(canvas, [*handles, *plots.origin_handles(origins)], columns=4)
    return canvas
