"""Figures of the APPO replication: pure functions of the tables that paper.yaml names."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ddrl.analysis.figures import panels, plots
from ddrl.analysis.figures.plots import BLUE, DASHES, GREEN, ORANGE, PUBLISHED, VERMILLION, Style

SPEEDS = {"throughput": "Atari", "throughput_first_person": "VizDoom"}
"""Experiment of the first figure -> the published domain that is drawn beside it."""
GROUPS, SCHEDULES, LAGS, DMLAB = "double_buffering", "sample_efficiency", "policy_lag", "dmlab30"
SPEED, WAITING = "steady_frames_per_second", "environment_wait_fraction"
SYSTEMS = {"appo": "APPO", "seed_rl": "SEED RL", "impala": "IMPALA", "ppo": "PPO, synchronous"}
COLOURS = {"appo": BLUE, "seed_rl": GREEN, "impala": VERMILLION, "ppo": ORANGE}
OTHERS = {name: f"over {label}" for name, label in SYSTEMS.items() if name != "appo"}
"""Systems that APPO's speed is divided by."""
PRINTED = {
    "over SEED RL V-trace": "seed_rl",
    "over RLlib IMPALA": "impala",
    "over DeepMind IMPALA": "impala",
    "over rlpyt PPO": "ppo",
}
"""Variant of a published ratio -> the system of ours that stands for the other one."""
GROUP_LABELS = {"one_group": "one group", "two_groups": "two groups"}
GROUP_COLOURS = {"one_group": VERMILLION, "two_groups": BLUE}
SCHEDULE_STYLES: dict[str, Style] = {"asynchronous": (BLUE, "-"), "synchronous": (VERMILLION, DASHES[1])}
LAG_LABELS = {"lag_0": "no lag", "lag_20": "20 gradient steps", "lag_100": "100 gradient steps"}
LAG_STYLES: dict[str, Style] = {"lag_0": (BLUE, "-"), "lag_20": (GREEN, DASHES[1]), "lag_100": (VERMILLION, DASHES[2])}
AGENTS = {"appo_pbt": "APPO, PBT", "appo": "APPO", "impala": "IMPALA"}
MEAN = "mean_capped_human_normalised_score"


def throughput(efficiency: pd.DataFrame, published: pd.DataFrame) -> Figure:
    """Show one row per task: frames per second of each system, and how many times that of the others APPO's is."""
    own = efficiency[efficiency["experiment"].isin(list(SPEEDS)) & efficiency["variant"].isin(list(SYSTEMS))]
    own = own.dropna(subset=[SPEED])
    if own.empty:
        return panels.nothing()
    tasks, origins = sorted(set(own["environment"])), panels.origins_of(own)
    canvas = plots.new_figure("full", 0.7 + 1.75 * len(tasks))
    for (left, right), task in zip(canvas.subplots(len(tasks), 2, squeeze=False), tasks, strict=True):
        part = own[own["environment"] == task]
        panels.rows(left, panels.by_variant(part, SPEED), SYSTEMS, origins, colours=COLOURS)
        panels.rows(right, _gains(part), OTHERS, origins, spread=0.5, colours=COLOURS)
        (experiment,) = set(part["experiment"])
        printed = published[(published["experiment"] == experiment) & (published["task"] == SPEEDS[experiment])]
        for row, name in enumerate(OTHERS):
            of_other = printed[printed["variant"].map(PRINTED) == name].sort_values("cell")
            panels.published_row(right, of_other["value"].tolist(), row, _machines(of_other))
        panels.one_line(right)
        panels.logarithmic(right)
        _from_zero(left)
        left.set_title(part["env_label"].iloc[0])
        right.set_title("APPO against the others")
        left.set_xlabel("frames per second")
        right.set_xlabel("times the frames per second")
    handles = plots.origin_handles(origins)
    if (published["metric"] == "speed_up").any():
        handles.append(plots.handle("published, machines 1 and 2", PUBLISHED, marker="D", filled=False))
    plots.legend_above(canvas, handles)
    return canvas


def _gains(runs: pd.DataFrame) -> panels.Samples:
    """Return by (origin, other system) how many times as fast APPO is, seed by seed."""
    found = {}
    for other in OTHERS:
        ratios = panels.ratios(runs, SPEED, {"appo": other})
        found.update({(origin, other): values for (origin, _), values in ratios.items()})
    return found


def _machines(published: pd.DataFrame) -> list[str]:
    """Return 1 or 2: which of the paper's machines each value is of."""
    return [str(text).partition(":")[0].removeprefix("System ") for text in published["hardware"]]


def double_buffering(efficiency: pd.DataFrame) -> Figure:
    """Show one row per task: the share of time in which no environment steps, and frames per second, by groups."""
    own = efficiency[efficiency["experiment"] == GROUPS].dropna(subset=[WAITING])
    if own.empty:
        return panels.nothing()
    tasks, origins = sorted(set(own["environment"])), panels.origins_of(own)
    canvas = plots.new_figure("full", 0.7 + 1.3 * len(tasks))
    for (left, right), task in zip(canvas.subplots(len(tasks), 2, squeeze=False), tasks, strict=True):
        part = own[own["environment"] == task]
        for axes, column in ((left, WAITING), (right, SPEED)):
            panels.rows(axes, panels.by_variant(part, column), GROUP_LABELS, origins, colours=GROUP_COLOURS)
            _from_zero(axes)
        left.set_title(part["env_label"].iloc[0])
        right.set_title("Speed")
        left.set_xlabel("share of time in which no environment steps")
        right.set_xlabel("frames per second")
    if len(origins) > 1:
        plots.legend_above(canvas, plots.origin_handles(origins))
    return canvas


def _from_zero(axes: Axes) -> None:
    """Let a linear axis begin at 0 and end a little beyond the largest value."""
    axes.set_xlim(0, 1.05 * axes.get_xlim()[1])
    axes.locator_params(axis="x", nbins=5)
    axes.grid(axis="x")


def sample_efficiency(curves: pd.DataFrame, references: pd.DataFrame) -> Figure:
    """Show one panel per task: training return of asynchronous and of synchronous APPO."""
    return _learning(curves[curves["experiment"] == SCHEDULES], references, SCHEDULE_STYLES)


def policy_lag(curves: pd.DataFrame, references: pd.DataFrame) -> Figure:
    """Show one panel per task: training return with a policy lag of 0, 20 and 100 gradient steps."""
    return _learning(curves[curves["experiment"] == LAGS], references, LAG_STYLES, LAG_LABELS)


def _learning(
    own: pd.DataFrame, references: pd.DataFrame, styles: dict[str, Style], labels: dict[str, str] | None = None
) -> Figure:
    """Draw training returns, one panel per task; names of tasks are short enough for three in a row."""
    if own.empty:
        return panels.nothing()
    short = own.assign(env_label=own["env_label"].str.removeprefix("Vizdoom "))
    return panels.learning(short, references, styles, sorted(set(own["environment"])), labels)


def capped_scores(scores: pd.DataFrame, published: pd.DataFrame) -> Figure:
    """Show the mean capped score of each agent over its tasks, in percent, with the published means on DMLab-30."""
    own = scores[(scores["experiment"] == DMLAB) & scores["human_normalised_score"].notna()]
    if own.empty:
        return panels.nothing()
    capped = own.assign(value=100 * own["human_normalised_score"].clip(upper=1.0))
    means = capped.groupby(["origin", "variant", "seed"], as_index=False)["value"].mean()
    origins = panels.origins_of(means)
    canvas = plots.new_figure("full", 0.8 + 0.35 * len(AGENTS))
    axes: Axes = canvas.subplots()
    panels.rows(axes, panels.by_variant(means, "value"), AGENTS, origins, colours={"impala": VERMILLION})
    printed = published[(published["experiment"] == DMLAB) & (published["metric"] == MEAN)]
    for system, name in (("APPO", "appo_pbt"), ("IMPALA", "impala")):
        of_system = printed["value"][printed["system"] == system]
        panels.published_row(axes, of_system.tolist(), list(AGENTS).index(name))
    axes.set_xlabel("mean capped human-normalised score in percent")
    axes.grid(axis="x")
    handles = plots.origin_handles(origins)
    if len(printed):
        handles.append(plots.handle("published, on DMLab-30", PUBLISHED, marker="D", filled=False))
    plots.legend_above(canvas, handles)
    return canvas
