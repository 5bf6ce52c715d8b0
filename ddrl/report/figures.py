"""The figures of the suite report, each drawn from its tables alone.

Usage: `python -m ddrl.report.figures --tables results/smoke/suite/tables --output results/smoke/suite/figures`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Hashable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.patches import Patch, Rectangle

from ddrl.analysis.figures import plots
from ddrl.analysis.tables.build import read
from ddrl.papers import claim_verdicts
from ddrl.report.sections.text import words
from ddrl.system.exit_code import exit_code

VERDICTS: Mapping[str, str] = {
    "equivalent": plots.GREEN,
    "consistent": plots.SKY,
    "above": plots.BLUE,
    "below": plots.PURPLE,
    "not_comparable": "#aeb4bd",
    **{name: verdict.colour for name, verdict in claim_verdicts.VERDICTS.items()},
}
"""Colours, in the order of the parts of a bar; every part also shows its number, and the legend names it."""
LIGHT = ("consistent", "not_comparable", *(name for name, known in claim_verdicts.VERDICTS.items() if not known.dark))
STATUSES: Mapping[str, tuple[str, str, str]] = {  # label, colour of a place, colour of its number
    "done": ("every planned seed done", plots.BLUE, "white"),
    "partly": ("some seeds done", plots.SKY, plots.INK),
    "missing": ("planned, none done", plots.ORANGE, plots.INK),
    "reference": ("reference runs alone", plots.GREEN, "white"),
    "not_planned": ("not planned at this scale", plots.FAINT, plots.INK),
}
FEWEST_COLUMNS = 14
"""With fewer tasks the columns are as wide as if there were so many."""
MOST_TASKS = 2
"""As many tasks that share a column are named; of more, one is, and how many others there are."""


def draw_figures(tables: Path, output: Path) -> list[Path]:
    """Draw all figures as SVG and PNG; return the files. Raise `UserError` for a missing table."""
    read_in = read(tables, ("claims", "cells_by_verdict", "coverage", "matrix"))
    with plots.style():
        verdict_bars = verdicts(read_in["claims"], read_in["cells_by_verdict"], read_in["coverage"])
        drawn = plots.save(verdict_bars, output, "verdicts")
        for paper, own in read_in["matrix"].groupby("paper", sort=True):
            drawn += plots.save(heat_map(own), output, f"coverage_{paper}")
    return drawn


def verdicts(claims: pd.DataFrame, cells: pd.DataFrame, coverage: pd.DataFrame) -> Canvas:
    """Draw one bar per paper, origin and kind of statement: the verdicts as parts of all claims, or of all cells."""
    counted = {
        "claims": claims.groupby(["paper", "origin", "verdict"])["claim"].nunique(),
        "published cells": cells.groupby(["paper", "origin", "verdict"])["cells"].sum(),
    }
    totals = {
        "claims": claims.groupby("paper")["claim"].nunique(),
        "published cells": coverage.groupby("paper")["cells"].sum(),
    }
    bars = []
    for paper in coverage["paper"].unique():
        for kind, counts in counted.items():
            for origin in ("run", "reference"):
                if (paper, origin) in counts.droplevel("verdict").index:
                    bars.append((paper, kind, origin, counts[paper, origin], int(totals[kind][paper])))
    canvas = plots.new_figure("full", 0.55 + 0.3 * len(bars))
    axes = canvas.subplots()
    for y, (_, _, _, counts, total) in enumerate(bars):
        _bar(axes, -y, counts, total)
    labels = [f"{paper}\n{kind}, {plots.NAMES[origin]}" for paper, kind, origin, _, _ in bars]
    axes.set_yticks([-y for y in range(len(bars))], labels, fontsize=6.5)
    axes.set_xlim(0, 1)
    axes.set_xticks([])
    _hide_lines(axes)
    shown = {"not_run"}.union(*(counts.index for _, _, _, counts, _ in bars))
    # Supported and equivalent share a colour: claims have the one, cells the other.
    handles = [Patch(color=colour, label=words(name)) for name, colour in VERDICTS.items() if name in shown]
    canvas.legend(handles=handles, loc="outside upper left", ncols=min(6, len(handles)), handlelength=1.0, fontsize=7)
    return canvas


def _bar(axes: Axes, y: float, counts: pd.Series[int], total: int) -> None:
    """Draw one bar. Statements without a row count as not run."""
    parts = {name: int(counts.get(name, 0)) for name in VERDICTS}
    parts["not_run"] += max(0, total - sum(parts.values()))
    left = 0.0
    for name, count in parts.items():
        share = count / max(1, sum(parts.values()))
        axes.barh(y, share, left=left, height=0.62, color=VERDICTS[name], edgecolor="white", linewidth=0.6)
        if count:
            colour = plots.INK if name in LIGHT else "white"
            place = left + share / 2
            axes.text(place, y, str(count), ha="center", va="center", fontsize=6.5, color=colour)
        left += share


def heat_map(matrix: pd.DataFrame) -> Canvas:
    """Draw one paper's variants (rows, by experiment) by tasks (columns), with the seeds of each place.

    Tasks that are alike in every row share a column.
    """
    rows = matrix.drop_duplicates(["experiment", "variant"])
    labels = [f"{words(name)}: {label}" for name, label in zip(rows["experiment"], rows["variant_label"], strict=True)]
    places = {
        (experiment, variant): y for y, (experiment, variant) in enumerate(rows[["experiment", "variant"]].to_numpy())
    }
    columns = _columns(matrix)
    canvas = plots.new_figure("full", 1.5 + 0.17 * len(places))
    axes = canvas.subplots()
    for x, (_, part) in enumerate(columns):
        for cell in part.to_dict("records"):
            y = places[cell["experiment"], cell["variant"]]
            _, colour, ink = STATUSES[cell["status"]]
            axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colour, edgecolor="white", linewidth=0.8))
            axes.text(x, y, _seeds(cell), ha="center", va="center", fontsize=6, color=ink)
    starts = [y for y, (before, after) in enumerate(pairwise(rows["experiment"]), 1) if before != after]
    axes.hlines([y - 0.5 for y in starts], -0.5, len(columns) - 0.5, color=plots.GREY, lw=0.5)
    axes.set_yticks(range(len(labels)), labels, fontsize=6.5)
    axes.set_xticks(range(len(columns)), [title for title, _ in columns], rotation=50, ha="left", fontsize=6.5)
    axes.xaxis.tick_top()
    axes.set_ylim(len(places) - 0.5, -0.5)
    axes.set_xlim(-0.5, max(FEWEST_COLUMNS, len(columns)) - 0.5)
    _hide_lines(axes)
    shown = [STATUSES[name] for name in STATUSES if name in set(matrix["status"])]
    handles = [Patch(color=colour, label=label) for label, colour, _ in shown]
    canvas.legend(handles=handles, loc="outside lower left", ncols=len(handles), handlelength=1.0, fontsize=7)
    return canvas


def _columns(matrix: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Return title and one task's rows of each column; tasks of a kind that are alike in every row share one."""
    found: dict[tuple[str, ...], list[pd.DataFrame]] = {}
    for environment, part in matrix.groupby("environment", sort=False):
        kind = str(environment).partition("/")[0]
        same = part[["experiment", "variant", "status", "done", "planned", "reference"]]
        found.setdefault((kind, *map(str, same.to_numpy().ravel())), []).append(part)
    return [(_title(kind, parts), parts[0]) for (kind, *_), parts in found.items()]


def _title(kind: str, parts: Sequence[pd.DataFrame]) -> str:
    names = [str(part["env_label"].iloc[0]) for part in parts]
    if len(names) <= MOST_TASKS:
        return ", ".join(names)
    return f"{names[0]} and {len(names) - 1} others ({kind})"


def _seeds(cell: Mapping[Hashable, Any]) -> str:
    """Return the seeds that there are, after a stroke those that are planned; nothing where none is planned."""
    if cell["planned"]:
        return f"{cell['done']}/{cell['planned']}"
    return str(cell["reference"] or "")


def _hide_lines(axes: Axes) -> None:
    axes.tick_params(length=0)
    axes.spines[["left", "bottom"]].set_visible(False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw the figures; return the exit code (0, or 2 for bad input)."""
    parser = argparse.ArgumentParser(prog="python -m ddrl.report.figures", description="The suite's figures.")
    parser.add_argument("--tables", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parsed = parser.parse_args(arguments)

    def command() -> None:
        for path in draw_figures(parsed.tables, parsed.output):
            print(path)

    return exit_code(command)


if __name__ == "__main__":
    sys.exit(main())
