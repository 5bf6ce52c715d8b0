"""Figures of the R2D2 replication: pure functions of the tables that paper.yaml names."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from ddrl.analysis.figures import panels, plots
from ddrl.analysis.figures.plots import BLUE, DASHES, GREEN, ORANGE, PURPLE, SKY, VERMILLION, Style

AGENTS = {"r2d2": "R2D2", "ape_x": "Ape-X"}
MEMORY = {"r2d2": "R2D2", "feed_forward": "feed-forward"}
ABLATIONS = {
    "r2d2": "R2D2",
    "clipped": "clipped",
    "discount": "discount 0.99",
    "feed_forward": "feed-forward",
    "life_loss_reset": "life loss resets",
    "life_loss_roll": "life loss, rolling",
}
ACTORS = {"times_1": "the fewest actors", "times_4": "four times as many"}
STRATEGIES = {
    "zero_0": "zero state",
    "zero_20": "zero state, burn-in 20",
    "zero_40": "zero state, burn-in 40",
    "stored_0": "stored state",
    "stored_20": "stored state, burn-in 20",
    "stored_40": "stored state, burn-in 40",
}
BEGINNINGS = {
    "zero_0": "zero state",
    "zero_8": "zero state, burn-in 8",
    "stored_0": "stored state",
    "stored_8": "stored state, burn-in 8",
}
EXPERTS = {
    "r2d2": "R2D2",
    "r2d2_plus": "R2D2+",
    "impala_shallow": "IMPALA, shallow",
    "impala_deep": "IMPALA, deep",
}
STYLES: dict[str, Style] = {
    "r2d2": (BLUE, "-"),
    "r2d2_plus": (BLUE, DASHES[1]),
    "ape_x": (GREEN, DASHES[1]),
    "impala_shallow": (VERMILLION, DASHES[1]),
    "impala_deep": (VERMILLION, "-"),
    "clipped": (PURPLE, DASHES[1]),
    "discount": (PURPLE, DASHES[2]),
    "feed_forward": (ORANGE, DASHES[1]),
    "life_loss_reset": (SKY, DASHES[1]),
    "life_loss_roll": (SKY, DASHES[2]),
    "times_1": (BLUE, "-"),
    "times_4": (BLUE, DASHES[1]),
    **{f"stored_{steps}": (BLUE, dashes) for steps, dashes in zip((0, 8, 20, 40), DASHES, strict=False)},
    **{f"zero_{steps}": (SKY, dashes) for steps, dashes in zip((0, 8, 20, 40), DASHES, strict=False)},
}
"""Colour and dashes of the systems, and of R2D2's ablations; its own strategy is the stored state."""
NOTHING = "No training episode of this experiment has ended."


def atari(curves: pd.DataFrame, references: pd.DataFrame) -> Figure:
    """One panel per game: training return of both agents."""
    return _learning(curves, references, "atari", AGENTS)


def memory(curves: pd.DataFrame, references: pd.DataFrame) -> Figure:
    """One panel per task: training return with and without memory."""
    return _learning(curves, references, "memory", MEMORY)


def beyond_sequences(curves: pd.DataFrame, references: pd.DataFrame) -> Figure:
    """Training return by how replayed sequences begin."""
    return _learning(curves, references, "beyond_sequences", BEGINNINGS)


def dmlab30(curves: pd.DataFrame, references: pd.DataFrame) -> Figure:
    """One panel per first-person task: training return of R2D2 and IMPALA."""
    return _learning(curves, references, "dmlab30", EXPERTS)


def ablations(curves: pd.DataFrame, references: pd.DataFrame) -> Figure:
    """One panel per game: training return of R2D2 and its ablations."""
    return _learning(curves, references, "ablations", ABLATIONS)


def _learning(curves: pd.DataFrame, references: pd.DataFrame, experiment: str, labels: Mapping[str, str]) -> Figure:
    own = curves[curves["experiment"] == experiment]
    if own.empty:
        return plots.blank(plots.new_figure("full", 1.0), NOTHING)
    tasks = sorted(set(own["environment"]), reverse=True)
    return panels.learning(own, references, {name: STYLES[name] for name in labels}, tasks, labels)


def staleness(efficiency: pd.DataFrame) -> Figure:
    """The Q discrepancy at the first and at the last trained step, by strategy."""
    own = efficiency[(efficiency["experiment"] == "staleness") & efficiency["q_discrepancy_last"].notna()]
    if own.empty:
        return plots.blank(plots.new_figure("full", 1.0), NOTHING)
    tasks = sorted(set(own["environment"]))
    shown = [name for name in STRATEGIES if name in set(own["variant"])]
    canvas = plots.new_figure("full", 0.8 + len(tasks) * (0.35 + 0.2 * len(shown)))
    grid = canvas.subplots(len(tasks), 2, squeeze=False, sharex=True)
    origins, labels = panels.origins_of(own), {name: STRATEGIES[name] for name in shown}
    colours = {name: STYLES[name][0] for name in shown}
    for (left, right), task in zip(grid, tasks, strict=True):
        part = own[own["environment"] == task]
        for axes, moment in ((left, "first"), (right, "last")):
            panels.rows(axes, panels.by_variant(part, f"q_discrepancy_{moment}"), labels, origins, colours=colours)
            axes.set_title(f"{part['env_label'].iloc[0]}, {moment} step")
            axes.grid(axis="x")
        right.tick_params(labelleft=False)
    # Intervals of few seeds reach below 0, which no discrepancy does.
    grid[0][0].set_xlim(0, 1.15 * own[["q_discrepancy_first", "q_discrepancy_last"]].max(axis=None))
    for axes in grid[-1]:
        axes.set_xlabel("Q discrepancy, of the largest value")
    if len(origins) > 1:
        plots.legend_above(canvas, plots.origin_handles(origins))
    return canvas


def parameter_lag(policy_lag: pd.DataFrame) -> Figure:
    """Mean lag of replayed steps against frames, by the number of actors."""
    own = policy_lag[policy_lag["experiment"] == "parameter_lag"]
    if own.empty:
        return plots.blank(plots.new_figure("column", 1.0), NOTHING)
    tasks, styles = sorted(set(own["environment"])), {name: STYLES[name] for name in ACTORS}
    canvas = plots.new_figure("column", 0.5 + 1.9 * len(tasks))
    for axes, task in zip(canvas.subplots(len(tasks), 1, squeeze=False)[:, 0], tasks, strict=True):
        part = own[own["environment"] == task]
        panels.returns(axes, part, styles, column="policy_lag_mean")
        axes.set_title(part["env_label"].iloc[0])
        plots.frames_axis(axes)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.grid(axis="y")
        axes.set_ylabel("lag in updates")
        axes.set_xlabel("environment frames")
    plots.legend_above(canvas, plots.variant_handles(own, styles, ACTORS))
    return canvas
