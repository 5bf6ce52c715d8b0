"""Figures of the controls: pure functions of the tables that paper.yaml names."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ddrl.analysis.figures import panels, plots
from ddrl.analysis.figures.plots import BLUE, DASHES, FAINT, GREEN, GREY, INK, ORANGE, PURPLE, SKY, VERMILLION, Style
from ddrl.analysis.statistics.printed import PrintedMean

PPO: Style = (VERMILLION, DASHES[1])
A2C: Style = (BLUE, "-")
DQN: Style = (SKY, DASHES[2])
STYLES = {"ppo": PPO, "a2c": A2C, "dqn": DQN}
"""Style of a variant, by the three letters that its name begins with."""
COLUMNS = 4
"""Panels in a row."""
COLOURS = {
    "equivalent": GREEN,
    "consistent": PURPLE,
    "above": BLUE,
    "below": VERMILLION,
    "inconclusive": ORANGE,
    "not_comparable": GREY,
}
"""Colour of a verdict."""
FURTHEST = 10.0
"""Differences, in margins, beyond which a mark is drawn at the edge."""
ROW_INCHES = 0.13
"""Height of a row of the forest plot."""


def cleanrl_classic(curves: pd.DataFrame, published: pd.DataFrame) -> Figure:
    """Show classic control with the settings of CleanRL's PPO, one panel a task."""
    return _learning(curves, published, ["cleanrl_classic"])


def cleanrl_dqn(curves: pd.DataFrame, published: pd.DataFrame) -> Figure:
    """Show classic control with the settings of CleanRL's DQN, one panel a task."""
    return _learning(curves, published, ["cleanrl_dqn"])


def cleanrl_mujoco(curves: pd.DataFrame, published: pd.DataFrame) -> Figure:
    """Show MuJoCo with the settings of CleanRL's PPO, one panel a task."""
    return _learning(curves, published, ["cleanrl_mujoco"])


def cleanrl_dm_control(curves: pd.DataFrame, published: pd.DataFrame) -> Figure:
    """Show the dm_control suite with the settings of CleanRL's PPO, one panel a task."""
    return _learning(curves, published, ["cleanrl_dm_control"])


def zoo(curves: pd.DataFrame, published: pd.DataFrame) -> Figure:
    """Show the settings of the stable-baselines3 zoo, one panel a task and algorithm."""
    return _learning(curves, published, ["zoo_classic", "zoo_dqn", "zoo_lunar_lander", "zoo_minigrid", "zoo_mujoco"])


def tianshou(curves: pd.DataFrame, published: pd.DataFrame) -> Figure:
    """Show the settings of Tianshou, one panel a task and algorithm."""
    return _learning(curves, published, ["tianshou_mujoco"])


def differences(cells: pd.DataFrame) -> Figure:
    """Show our mean less the published one of every cell that has both and a margin, in margins."""
    shown = cells[cells["ours"].notna() & (cells["margin"] > 0)]
    if shown.empty:
        return panels.nothing()
    shown = shown.sort_values(["system", "task", "cell", "origin"], kind="stable").reset_index(drop=True)
    canvas = plots.new_figure("full", 0.7 + ROW_INCHES * len(shown))
    axes = canvas.add_subplot()
    axes.axvspan(-1, 1, color=FAINT, alpha=0.5, lw=0)
    axes.axvline(0, color=GREY, lw=0.6)
    for place, row in enumerate(shown.to_dict("records")):
        _row(axes, place, row)
    axes.set_yticks(range(len(shown)), [_label(row) for row in shown.to_dict("records")], fontsize=5)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xlim(-FURTHEST * 1.05, FURTHEST * 1.05)
    axes.set_xlabel("difference in margins")
    axes.tick_params(axis="y", length=0)
    known = [name for name in COLOURS if name in set(shown["verdict"])]
    handles = [plots.handle(name.replace("_", " "), COLOURS[name], marker="o") for name in known]
    origins = panels.origins_of(shown)
    plots.legend_above(canvas, [*handles, *(plots.origin_handles(origins) if len(origins) > 1 else [])])
    return canvas


def _label(row: Mapping[Hashable, object]) -> str:
    """Return system and task, and what tells the tables of one system apart."""
    table = str(row["item"]).partition(", ")[2]
    return f"{row['system']}: {row['task']} ({table})" if table else f"{row['system']}: {row['task']}"


def _row(axes: Axes, place: int, row: Mapping[Hashable, object]) -> None:
    """Draw one cell: its difference with the 90 % interval that decides it, in margins and cut at the edge."""
    margin = float(str(row["margin"]))
    values = [float(str(row[name])) / margin for name in ("difference_low", "difference", "difference_high")]
    low, middle, high = np.clip(values, -FURTHEST, FURTHEST)
    colour = COLOURS.get(str(row["verdict"]), INK)
    if np.isfinite(low) and np.isfinite(high):
        axes.plot([low, high], [place, place], color=colour, lw=1.0, solid_capstyle="butt")
    face = colour if plots.is_filled(str(row["origin"])) else "white"
    axes.plot([middle], [place], "o", color=colour, ms=3.2, mfc=face, mew=0.9)


def _learning(curves: pd.DataFrame, published: pd.DataFrame, experiments: Sequence[str]) -> Figure:
    """Draw one panel a variant and task with the training return, and the published returns as bands."""
    own = curves[curves["experiment"].isin(experiments)]
    if own.empty:
        return panels.nothing()
    numbers = published[published["experiment"].isin(experiments)]
    pairs = sorted(set(zip(own["environment"], own["variant"], strict=True)))
    columns = min(COLUMNS, len(pairs))
    canvas = plots.new_figure("full", 0.5 + 1.45 * -(-len(pairs) // columns))
    styles = {name: STYLES[name[:3]] for name in set(own["variant"])}
    for index, (axes, (task, variant)) in enumerate(zip(plots.panels(canvas, len(pairs), columns), pairs, strict=True)):
        part = own[(own["environment"] == task) & (own["variant"] == variant)]
        rows = numbers[(numbers["environment"] == task) & (numbers["compared_variant"] == variant)]
        for look, row in zip((GREY, ORANGE, GREEN, PURPLE, INK), rows.to_dict("records"), strict=False):
            _level(axes, row, look)
        panels.returns(axes, part, styles)
        panels.extent(axes, part, "env_frames")
        algorithm = f"\n{part['variant_label'].iloc[0]}" if own["variant_label"].nunique() > 1 else ""
        axes.set_title(f"{part['env_label'].iloc[0]}{algorithm}", fontsize=6)
        axes.yaxis.set_major_locator(MaxNLocator(4))
        if index % columns == 0:
            axes.set_ylabel("training return")
    named = own.drop_duplicates("variant_label")
    plots.legend_above(canvas, plots.variant_handles(named, {name: styles[name] for name in named["variant"]}))
    return canvas


def _level(axes: Axes, row: Mapping[Hashable, object], colour: str) -> None:
    """Draw a published mean as a line, and the 95 % interval of its runs as a band where that is known."""
    seeds = None if pd.isna(row["seeds"]) else int(str(row["seeds"]))  # type: ignore[call-overload]
    value = float(str(row["value"]))
    interval = PrintedMean(value, seeds, float(str(row["deviation"]))).interval(0.95)
    if np.isfinite(interval.low):
        axes.axhspan(interval.low, interval.high, color=colour, alpha=0.15, lw=0)
    axes.axhline(value, color=colour, lw=0.8, ls=(0, (4, 2)))
