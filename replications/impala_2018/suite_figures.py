"""Figures of one agent for many tasks: its mean capped score over frames and time, and what it does on each task."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ddrl.analysis.figures import panels, plots
from ddrl.analysis.figures.plots import BLUE, DASHES, FAINT, ORANGE, PURPLE, VERMILLION, Style
from ddrl.analysis.runs.suite_scores import mean_over_tasks
from ddrl.analysis.statistics.normalise import capped, human_normalised

SUITE, SUBSET = "dmlab30", "dmlab30_subset"
AGENTS = {
    "a3c_deep": "A3C, deep",
    "shallow": "IMPALA, shallow",
    "deep": "IMPALA, deep",
    "deep_pbt": "IMPALA, deep, PBT",
    "deep_pbt_8_learners": "IMPALA, deep, PBT, 8 learners",
    "experts_shallow": "experts, shallow",
    "experts_deep": "experts, deep",
}
STYLES: dict[str, Style] = {
    "a3c_deep": (VERMILLION, DASHES[1]),
    "shallow": (BLUE, DASHES[1]),
    "deep": (BLUE, "-"),
    "deep_pbt": (PURPLE, "-"),
    "deep_pbt_8_learners": (PURPLE, DASHES[1]),
    "experts_shallow": (ORANGE, DASHES[1]),
    "experts_deep": (ORANGE, "-"),
}
"""Colour and dashes of the agents; those of IMPALA and A3C are the systems' own."""
MARKERS = dict(zip(AGENTS, "sodDP^v", strict=True))
EXPERTS = ("experts_shallow", "experts_deep")
"""One run for each task: they stand at the frames of all of them together."""
POINTS = 100
_LINE = ["origin", "variant", "seed"]


def capped_scores(curves: pd.DataFrame, wall_clock: pd.DataFrame, references: pd.DataFrame) -> Figure:
    """The mean over tasks of capped human-normalised training returns, against frames of all tasks, and against time.

    Only of agents that have played every task that any has; experts, which train beside each other, have no time.
    """
    return _capped_scores(*(table[table["experiment"] == SUITE] for table in (curves, wall_clock)), references)


def capped_scores_on_a_subset(curves: pd.DataFrame, wall_clock: pd.DataFrame, references: pd.DataFrame) -> Figure:
    """As `capped_scores`, of the agents for a subset of the tasks."""
    return _capped_scores(*(table[table["experiment"] == SUBSET] for table in (curves, wall_clock)), references)


def _capped_scores(curves: pd.DataFrame, wall_clock: pd.DataFrame, references: pd.DataFrame) -> Figure:
    frames = _scores(curves, references, "env_frames")
    if frames.empty and len(curves):
        return panels.nothing(why="No agent has had two episodes on every task yet.")
    if frames.empty:
        return panels.nothing()
    together = frames["variant"].isin(EXPERTS)
    frames.loc[together, "env_frames"] *= frames["tasks"]
    times = _scores(wall_clock[~wall_clock["variant"].isin(EXPERTS)], references, "seconds")
    styles = {name: STYLES[name] for name in AGENTS if name in set(frames["variant"])}
    canvas = plots.new_figure("full", 2.6)
    left, right = plots.panels(canvas, 2, 2, sharey=True)
    for axes, table, x in ((left, frames, "env_frames"), (right, times, "seconds")):
        if len(table):
            panels.returns(axes, table, styles, x, column="score")
            panels.extent(axes, table, x)
        axes.grid(axis="y")
    left.set_xlabel("environment frames, all tasks together")
    right.set_xlabel("wall time of training")
    left.set_ylabel("mean capped score, %")
    labelled = frames.assign(variant_label=frames["variant"].map(AGENTS))
    plots.legend_above(canvas, plots.variant_handles(labelled, styles), columns=4)
    return canvas


def _scores(curves: pd.DataFrame, references: pd.DataFrame, x: str) -> pd.DataFrame:
    """origin, variant, seed, `x`, score in percent, tasks: of each agent with every task, on a grid of its own."""
    own = curves[curves["variant"].isin(list(AGENTS))]
    own = own.merge(references[["environment", "random", "human"]], on="environment")
    own = own.assign(score=100 * capped(human_normalised(own["episode_return"], own["random"], own["human"])))
    own = own[own["score"].notna()]
    tasks = own.groupby("origin")["environment"].nunique()
    parts = [pd.DataFrame(columns=[*_LINE, x, "score", "tasks"])]
    for (origin, variant), group in own.groupby(["origin", "variant"], sort=True):
        runs = {seed: [part for _, part in run.groupby("environment")] for seed, run in group.groupby("seed")}
        whole = {seed: each for seed, each in runs.items() if len(each) == tasks[origin]}
        each = [part[x] for own_parts in whole.values() for part in own_parts]
        # From where every task has had an episode to where the first record ends.
        first, last = max((part.min() for part in each), default=0), min((part.max() for part in each), default=-1)
        if last > first:
            grid = np.linspace(first, last, POINTS)
            head = {"origin": origin, "variant": variant, "tasks": tasks[origin]}
            for seed, own_parts in whole.items():
                score = mean_over_tasks(own_parts, grid, x, "score")
                parts.append(pd.DataFrame({x: grid, "score": score}).assign(**head, seed=seed))
    return pd.concat(parts[1:] or parts, ignore_index=True)


def task_scores(scores: pd.DataFrame) -> Figure:
    """One row per task: final human-normalised score of each agent; lines at random play and at 100 %."""
    return _task_scores(scores[scores["experiment"] == SUITE])


def task_scores_on_a_subset(scores: pd.DataFrame) -> Figure:
    """As `task_scores`, of the agents for a subset of the tasks."""
    return _task_scores(scores[scores["experiment"] == SUBSET])


def _task_scores(scores: pd.DataFrame) -> Figure:
    own = scores[scores["human_normalised_score"].notna()]
    if own.empty:
        return panels.nothing()
    tasks = own.groupby("environment")["human_normalised_score"].max().sort_values().index.tolist()
    canvas = plots.new_figure("full", 0.8 + 0.17 * len(tasks))
    (axes,) = plots.panels(canvas, 1, 1)
    variants = [name for name in AGENTS if name in set(own["variant"])]
    origins = panels.origins_of(own)
    step = 0.44 / max(1, len(variants))
    for (origin, variant, task), part in own.groupby(["origin", "variant", "environment"], sort=True):
        values = 100 * part["human_normalised_score"].to_numpy(dtype=np.float64)
        place = tasks.index(task) + step * (variants.index(variant) - (len(variants) - 1) / 2)
        colour, _ = STYLES[str(variant)]
        plots.dot(axes, values, place, colour=colour, marker=MARKERS[str(variant)], filled=plots.is_filled(str(origin)))
    _task_rows(axes, [own["env_label"][own["environment"] == task].iloc[0] for task in tasks])
    handles = plots.origin_handles(origins, marker="s")
    filled = plots.is_filled(origins[0])
    handles += [plots.handle(AGENTS[name], STYLES[name][0], marker=MARKERS[name], filled=filled) for name in variants]
    plots.legend_above(canvas, handles, columns=4)
    return canvas


def _task_rows(axes: Axes, labels: list[str]) -> None:
    axes.set_yticks(range(len(labels)), labels, fontsize=6.5)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(-0.6, len(labels) - 0.4)
    for place in range(len(labels) - 1):
        axes.axhline(place + 0.5, color=FAINT, lw=0.5)
    low, high = axes.get_xlim()
    axes.set_xlim(max(low, -150.0), min(max(high, 110.0), 250.0))
    for level in (0, 100):
        axes.axvline(level, color=plots.GREY, lw=0.8, ls=(0, (1, 2)), zorder=1)
    axes.set_xlabel("human-normalised score, % (0: random play; 100: the reference score)")


POPULATION = "population_based_training"


def schedules(lineage: pd.DataFrame) -> Figure:
    """What population-based training made of each hyperparameter: every member over its frames, the best coloured."""
    own = lineage[(lineage["experiment"].isin([SUITE, POPULATION])) & (lineage["variant"].isin(["pbt", "deep_pbt"]))]
    if own.empty:
        return panels.nothing()
    shown = own[own["origin"] == panels.origins_of(own)[-1]]
    seed = shown["seed"].min()
    shown = shown[(shown["seed"] == seed) & (shown["experiment"] == shown["experiment"].iloc[0])]
    names = sorted(set(shown["hyperparameter"]))
    final = shown[shown["kind"] == "final"]
    best = final.loc[final["fitness"].idxmax(), "member"] if final["fitness"].notna().any() else None
    canvas = plots.new_figure("full", 2.3)
    for axes, name in zip(plots.panels(canvas, len(names), 3), names, strict=True):
        for member, part in shown[shown["hyperparameter"] == name].groupby("member"):
            dark = member == best
            colour = PURPLE if dark else plots.GREY
            frames = [0, *part["env_frames"].tolist()]
            values = [*part["before"].tolist(), part["before"].iloc[-1]]
            axes.step(frames, values, where="post", color=colour, lw=1.4 if dark else 0.7, zorder=3 if dark else 2)
            copied = part[part["copied"]]
            axes.plot(copied["env_frames"], copied["after"], ".", color=colour, ms=4, mew=0, zorder=4)
        axes.set_yscale("log")
        axes.set_title(name.removeprefix("optimizer.").replace("_", " "))
        axes.set_xlabel("frames of a member")
        plots.frames_axis(axes)
        axes.grid(axis="y")
    handles = [
        plots.handle("member with the best final fitness", PURPLE, dashes="-"),
        plots.handle("others", plots.GREY, dashes="-"),
    ]
    handles.append(plots.handle("copied another member", plots.GREY, marker="."))
    plots.legend_above(canvas, handles)
    return canvas
