"""The figures of the suite report, each drawn from its tables alone.

Usage: `python -m ddrl.report.figures --tables results/smoke/suite/tables --output results/smoke/suite/figures`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.patches import Patch

from ddrl.analysis.figures import plots
from ddrl.analysis.tables.build import read
from ddrl.report.sections.text import words
from ddrl.system.exit_code import exit_code

VERDICTS: Mapping[str, str] = {
    "supported": "#2f7a50",
    "equivalent": "#2f7a50",
    "consistent": "#3d8792",
    "above": "#5b7fbd",
    "below": "#c26a56",
    "contradicted": "#b34a33",
    "inconclusive": "#e0b95c",
    "not_comparable": "#aeb4bd",
    "not_run": "#e7e9ec",
}
"""Colours, in the order of the parts of a bar; every part also shows its number, and the legend names it."""
LIGHT = ("inconclusive", "not_comparable", "not_run")
STATUSES: Mapping[str, tuple[str, str, bool]] = {  # label, marker, filled
    "done": ("every planned seed done", "s", True),
    "partly": ("some seeds done", "^", True),
    "missing": ("planned, none done", "s", False),
    "not_planned": ("not planned at this scale", ".", True),
}


def draw_figures(tables: Path, output: Path) -> list[Path]:
    """Draw both figures as SVG and PNG; return the files. Raise `UserError` for a missing table."""
    read_in = read(tables, ("claims", "cells_by_verdict", "coverage", "matrix"))
    with plots.style():
        verdict_bars = verdicts(read_in["claims"], read_in["cells_by_verdict"], read_in["coverage"])
        drawn = plots.save(verdict_bars, output, "verdicts")
        return drawn + plots.save(coverage(read_in["matrix"], read_in["coverage"]), output, "coverage")


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


def coverage(matrix: pd.DataFrame, experiments: pd.DataFrame) -> Canvas:
    """Draw one panel per paper: variants by tasks, with a mark for what was run; a dashed line where nothing was."""
    papers = list(dict.fromkeys(experiments["paper"]))
    panels = [
        _panel_rows(matrix[matrix["paper"] == paper], experiments[experiments["paper"] == paper]) for paper in papers
    ]
    heights = [len(rows) + 6.0 for rows in panels]
    canvas = plots.new_figure("full", 0.5 + 0.135 * sum(heights))
    grid = canvas.subplots(len(papers), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, paper, rows in zip(grid, papers, panels, strict=True):
        _coverage_panel(axes, matrix[matrix["paper"] == paper], rows)
        axes.set_title(paper)
    handles = [
        plots.handle(label, plots.GREY if marker == "." else plots.OWN, marker=marker, filled=filled)
        for label, marker, filled in STATUSES.values()
    ]
    handles.append(plots.handle("reference run", plots.REFERENCE, marker="D", filled=False))
    canvas.legend(
        handles=handles, loc="outside upper left", ncols=5, handletextpad=0.2, columnspacing=1.2, fontsize=6.5
    )
    return canvas


def _panel_rows(matrix: pd.DataFrame, experiments: pd.DataFrame) -> list[tuple[str, str, str]]:
    """Return (experiment, variant, label) from top to bottom; the variant is empty for an experiment without runs."""
    rows = []
    for experiment in experiments["experiment"]:
        own = matrix[matrix["experiment"] == experiment].drop_duplicates("variant")
        found = zip(own["variant"], own["variant_label"], strict=True)
        rows += [(experiment, variant, f"{words(experiment)}: {label}") for variant, label in found]
        if own.empty:
            rows.append((experiment, "", f"{words(experiment)}: not run"))
    return rows


def _coverage_panel(axes: Axes, matrix: pd.DataFrame, rows: Sequence[tuple[str, str, str]]) -> None:
    tasks = list(dict.fromkeys(zip(matrix["environment"], matrix["env_label"], strict=True)))
    column = {environment: x for x, (environment, _) in enumerate(tasks)}
    size = min(5.0, 190 / max(1, len(tasks)))
    place = {(experiment, variant): -y for y, (experiment, variant, _) in enumerate(rows)}
    for cell in matrix.to_dict("records"):
        x, y = column[cell["environment"]], place[cell["experiment"], cell["variant"]]
        if cell["status"] in STATUSES:
            _, marker, filled = STATUSES[cell["status"]]
            colour = plots.FAINT if marker == "." else plots.OWN
            face = colour if filled else "white"
            axes.plot([x], [y], marker, color=colour, ms=size if marker != "." else 2, mfc=face, mew=0.7)
        if cell["reference"]:
            axes.plot([x], [y], "D", color=plots.REFERENCE, ms=1.5 * size, mfc="none", mew=0.8)
    for y, (_, variant, _) in enumerate(rows):
        if not variant:
            axes.plot([0, len(tasks) - 1], [-y, -y], color=plots.FAINT, lw=0.8, ls=(0, (2, 2)))
    axes.set_yticks([-y for y in range(len(rows))], [label for _, _, label in rows], fontsize=6)
    axes.set_xticks(range(len(tasks)), [label for _, label in tasks], rotation=90, fontsize=5)
    axes.set_ylim(-len(rows) + 0.4, 0.6)
    axes.set_xlim(-0.8, len(tasks) - 0.2)
    _hide_lines(axes)


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
