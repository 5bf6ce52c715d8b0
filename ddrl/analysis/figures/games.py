"""Draws figures of papers that train on single games: learning curves and final scores beside the published ones.

Games are environments, one panel or one group of rows each. A paper gives its variants and how its published scores
are drawn; their rows have the columns environment, compared_variant, value and mark (a key of the marks).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator

from ddrl.analysis.figures import plots
from ddrl.analysis.figures.panels import nothing, origins_of
from ddrl.analysis.figures.plots import BLUE, FAINT, GREY, NAMES, PUBLISHED

DENSE = 12
"""With more games than this they are drawn small."""
EVERY_PERCENT = (-100, -50, 0, 50, 100, 300, 1000, 3000, 10_000, 30_000, 100_000)
NOTHING = "Nothing to draw: no episode has ended in training, or no Atari run has finished."


@dataclass(frozen=True)
class Variant:
    """The look of a variant of the one system that these figures are about."""

    label: str
    marker: str = "o"
    dashes: Any = "-"

    def within_text(self) -> str:
        """Return the label for the middle of a text: feed-forward, but LSTM."""
        return self.label if self.label.isupper() else self.label.lower()


@dataclass(frozen=True)
class Mark:
    """The look of a published score: a mark at the frames it took, or a line across the panel if none are printed."""

    label: str
    """Text in the legend."""
    frames: float | None
    marker: str = "o"
    filled: bool = True
    short: str = ""
    """Text before the number of a score that lies above its panel."""


@dataclass(frozen=True)
class Panels:
    """Sizes of the learning curves, in inches, and the end of the axis of frames (without `end`: behind our frames)."""

    end: float | None = None
    height: float = 1.72
    head: float = 0.5
    ticks: int | None = 5
    """Most ticks on the axis of frames, if there are few games."""


def learning_curves(
    curves: pd.DataFrame,
    references: pd.DataFrame,
    published: pd.DataFrame,
    variants: Mapping[str, Variant],
    marks: Mapping[str, Mark],
    panels: Panels,
) -> Canvas:
    """Draw one panel per game: training return against frames, published scores, random and human play."""
    games = sorted(set(curves["environment"]))
    if not games:
        return nothing(why=NOTHING)
    dense = len(games) > DENSE
    columns, height = (6, 0.84) if dense else (3, panels.height)
    canvas = plots.new_figure("full", panels.head + height * -(-len(games) // columns))
    drawn: set[str] = set()
    for axes, game in zip(plots.panels(canvas, len(games), columns), games, strict=True):
        own = curves[curves["environment"] == game]
        axes.set_title(own["env_label"].iloc[0], fontsize=5.5 if dense else None, pad=2 if dense else None)
        for (origin, variant), part in own.groupby(["origin", "variant"], sort=True):
            width = 1.4 if plots.is_filled(str(origin)) else 0.9
            plots.band(axes, part, "episode_return", colour=BLUE, dashes=variants[variant].dashes, width=width)
        scores = published[published["environment"] == game]
        _game_axes(axes, own, references[references["environment"] == game], scores["value"], panels, dense)
        drawn |= _marks(axes, scores, marks)
    handles = _curve_handles(curves, variants)
    for mark in [marks[name] for name in marks if name in drawn]:
        look: dict[str, Any] = (
            {"dashes": "-"} if mark.frames is None else {"marker": mark.marker, "filled": mark.filled}
        )
        handles.append(plots.handle(mark.label, PUBLISHED, **look))
    plots.legend_above(canvas, handles)
    canvas.supxlabel("environment frames", fontsize=7.5)
    canvas.supylabel("episode return", fontsize=7.5)
    return canvas


def _curve_handles(curves: pd.DataFrame, variants: Mapping[str, Variant]) -> list[Line2D]:
    """Return legend entries for the dashes of variants, and for the width of origins where there are several."""
    there = set(curves["variant"])
    handles = [plots.handle(look.label, BLUE, dashes=look.dashes) for name, look in variants.items() if name in there]
    return [*handles, plots.thin_handle()] if len(origins_of(curves)) > 1 else handles


def _game_axes(
    axes: Axes, own: pd.DataFrame, reference: pd.DataFrame, published: pd.Series, panels: Panels, dense: bool
) -> None:
    """Set up the axes, with lines at random and human play."""
    axes.set_xscale("log")
    start = max(1_000.0, own["env_frames"].min() / 1.5)
    axes.set_xlim(start, panels.end or 1.5 * own["env_frames"].max())
    if dense or panels.ticks:
        axes.xaxis.set_major_locator(LogLocator(numticks=3 if dense else panels.ticks))
    plots.frames_axis(axes)
    known = reference[["random", "human"]].iloc[0].dropna() if len(reference) else pd.Series(dtype="float64")
    levels = {str(name): float(level) for name, level in known.items()}
    values = [*own["episode_return"].dropna(), *levels.values()]
    low, high = min([*values, *published]), max(values)
    # A score that would flatten the curves is an arrow with its number. With many small panels there is no room for
    # numbers: every published score is within its panel.
    reachable = [value for value in published if dense or value <= low + 2.0 * (high - low)]
    high = max([high, *reachable])
    room = high - low or 1.0
    axes.set_ylim(low - 0.13 * room, high + (0.12 if len(reachable) == len(published) else 0.25) * room)
    for name, level in levels.items():
        axes.axhline(level, color=GREY, lw=0.8, ls=(0, (1, 2)), zorder=1)
        if not dense:
            side, place = ("bottom", 1.5) if name == "human" else ("top", -1.5)
            style: dict[str, Any] = {"fontsize": 6, "color": GREY, "va": side, "textcoords": "offset points"}
            # On the right, where lines have gone up from random play.
            style |= {"ha": "right", "xycoords": ("axes fraction", "data")}
            axes.annotate(name, (1, level), xytext=(-2, place), **style)
    if dense:
        axes.tick_params(labelsize=4.5, length=1.5, pad=1)
        axes.yaxis.set_major_locator(MaxNLocator(3))
        axes.yaxis.set_major_formatter(lambda value, _: plots.frames_text(value) if value >= 10_000 else f"{value:g}")


def _marks(axes: Axes, scores: pd.DataFrame, marks: Mapping[str, Mark]) -> set[str]:
    """Draw the published scores of a game; those above the panel are an arrow with the number. Return the others."""
    top = axes.get_ylim()[1]
    above = []
    within = scores[scores["value"] <= top]
    for row in scores.sort_values("compared_variant", ascending=False, kind="stable").to_dict("records"):
        mark = marks[row["mark"]]
        if row["value"] > top:
            number = f"{row['value']:,.0f}".replace(",", "\N{NO-BREAK SPACE}").replace("-", "\N{MINUS SIGN}")
            above.append(f"{mark.short} {number}".strip())
        elif mark.frames is None:
            axes.axhline(row["value"], color=PUBLISHED, lw=1.0, zorder=1.5)
        else:
            style: dict[str, Any] = {"ms": 4.5, "mfc": PUBLISHED if mark.filled else "white", "zorder": 5}
            axes.plot([mark.frames], [row["value"]], mark.marker, color=PUBLISHED, clip_on=False, **style)
    if above:
        text = ", ".join(above) + " \N{UPWARDS ARROW}"
        style = {"ha": "right", "va": "top", "fontsize": 6.5, "color": PUBLISHED}
        axes.annotate(text, (1, 1), xycoords="axes fraction", xytext=(0, -1), textcoords="offset points", **style)
    return set(within["mark"])


@dataclass(frozen=True)
class Rows:
    """Sizes of the normalised scores, in inches."""

    height: float = 0.34
    dense: float = 0.12
    """Height of a row: with few games `height`, with many `dense`."""
    head: float = 0.8
    lift: float = 4.0
    """Points from a dot up to the frames of this run, and down to those of a reference run."""


def normalised_scores(
    scores: pd.DataFrame,
    published: pd.DataFrame,
    references: pd.DataFrame,
    variants: Mapping[str, Variant],
    marks: Mapping[str, Mark],
    rows: Rows,
) -> Canvas:
    """Draw one row per game and variant: our final human-normalised scores beside the published ones."""
    own = scores[scores["human_normalised_score"].notna()]
    if own.empty:
        return nothing(why=NOTHING)
    of_their_own = _of_their_own(marks, variants)
    variants = {name: look for name, look in variants.items() if name in set(own["variant"])}
    labels = dict(sorted(zip(own["environment"], own["env_label"], strict=True), reverse=True))
    places = [(game, variant) for game in labels for variant in reversed(list(variants))]
    dense, several = len(labels) > DENSE, len(variants) > 1
    canvas = plots.new_figure("full", rows.head + (rows.dense if dense else rows.height) * len(places))
    axes = canvas.subplots()
    axes.set_xscale("symlog", linthresh=100, linscale=1.2)
    targets = _percent(published[published["environment"].isin(set(labels))], references)
    targets = targets[targets["compared_variant"].isin(set(variants))]
    for y, (game, variant) in enumerate(places):
        if (y // len(variants)) % 2 == 0:
            axes.axhspan(y - 0.5, y + 0.5, color=FAINT, alpha=0.35, lw=0)
        here = targets[(targets["environment"] == game) & (targets["compared_variant"] == variant)]
        for name, percent in zip(here["mark"], here["percent"], strict=True):
            face = PUBLISHED if marks[name].filled or not of_their_own else "white"
            axes.plot([percent], [y], marks[name].marker, color=PUBLISHED, ms=5, mfc=face, zorder=4)
        part = own[(own["environment"] == game) & (own["variant"] == variant)]
        for origin, runs in part.groupby("origin", sort=True):
            values = 100 * runs["human_normalised_score"].to_numpy(dtype=np.float64)
            look: dict[str, Any] = {"marker": variants[variant].marker, "filled": plots.is_filled(str(origin))}
            plots.dot(axes, values, y, colour=BLUE, **look)
            if not dense:
                _budget(axes, float(values.mean()), y, float(runs["env_frames"].min()), str(origin), rows.lift)
        if several and not dense:
            style: dict[str, Any] = {"ha": "right", "va": "center", "fontsize": 6.5, "color": GREY}
            style |= {"xycoords": ("axes fraction", "data"), "xytext": (-4, 0), "textcoords": "offset points"}
            axes.annotate(variants[variant].within_text(), (0, y), **style)
    axes.set_yticks([(index + 0.5) * len(variants) - 0.5 for index in range(len(labels))], list(labels.values()))
    axes.tick_params(axis="y", length=0, labelsize=5.5 if dense else 7)
    if several:
        axes.tick_params(axis="y", pad=4 if dense else 6 + 4 * max(len(look.label) for look in variants.values()))
    axes.set_ylim(-0.6, len(places) - 0.4)
    axes.spines["left"].set_visible(False)
    _percent_axis(axes, [*(100 * own["human_normalised_score"]), *targets["percent"]])
    shown = [mark for name, mark in marks.items() if name in set(targets["mark"])]
    plots.legend_above(canvas, _score_handles(own, list(variants.values()), shown, of_their_own))
    return canvas


def _score_handles(
    own: pd.DataFrame, variants: Sequence[Variant], marks: Sequence[Mark], of_their_own: bool
) -> list[Line2D]:
    """Return legend entries: filling by origin, shapes by variant, published scores if their shapes are their own."""
    origins, several = origins_of(own), len(variants) > 1
    general = "s" if several else variants[0].marker
    handles = [plots.handle(NAMES[name], BLUE, marker=general, filled=plots.is_filled(name)) for name in origins]
    if of_their_own:
        handles += [plots.handle(m.label, PUBLISHED, marker=m.marker, filled=m.filled) for m in marks]
    elif marks:
        handles.append(plots.handle(NAMES["published"], PUBLISHED, marker=general))
    filled = plots.is_filled(origins[0])
    shapes = [plots.handle(look.within_text(), BLUE, marker=look.marker, filled=filled) for look in variants]
    return [*handles, *shapes] if several else handles


def _of_their_own(marks: Mapping[str, Mark], variants: Mapping[str, Variant]) -> bool:
    """Return whether published scores have other shapes than the variants, so that the legend must name each."""
    return len(marks) > 1 and {mark.marker for mark in marks.values()} != {look.marker for look in variants.values()}


def _percent(published: pd.DataFrame, references: pd.DataFrame) -> pd.DataFrame:
    """Return the published scores with a column percent: human-normalised. Leave out games without both references."""
    joined = published.merge(references[["environment", "random", "human"]].dropna(), on="environment")
    percent = 100 * (joined["value"] - joined["random"]) / (joined["human"] - joined["random"])
    return joined.assign(percent=percent)


def _budget(axes: Axes, x: float, y: float, frames: float, origin: str, lift: float) -> None:
    """Write the number of frames, above the dot of this run and below that of the reference runs."""
    place = (4, lift if origin == "run" else -lift)
    style: dict[str, Any] = {"va": "center", "fontsize": 5.5, "color": GREY, "textcoords": "offset points"}
    axes.annotate(plots.frames_text(frames), (x, y), xytext=place, **style)


def _percent_axis(axes: Axes, values: Sequence[float]) -> None:
    """Set ticks at round percentages within reach, and lines at random play and at a human tester."""
    low, high = 1.2 * min(0.0, *values) - 15, 1.7 * max(100.0, *values)
    axes.set_xlim(low, high)
    shown = [tick for tick in EVERY_PERCENT if low <= tick <= high]
    texts = [f"{tick:,}".replace("-", "\N{MINUS SIGN}").replace(",", "\N{THIN SPACE}") for tick in shown]
    axes.set_xticks(shown, texts)
    axes.minorticks_off()
    axes.set_xlabel("human-normalised score, % (linear up to 100, logarithmic beyond)")
    for level in (0, 100):
        axes.axvline(level, color=GREY, lw=0.8, ls=(0, (1, 2)), zorder=1)
