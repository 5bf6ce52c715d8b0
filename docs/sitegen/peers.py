"""Our code beside other libraries, from the committed evidence and the committed measurements of speeds."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from io import StringIO

from ddrl.papers.table_names import REFERENCE
from ddrl.report.sections.numbers import frames, interval, number, ratio
from ddrl.report.sections.peers import (
    RETURNS,
    measured_what,
    measured_where,
    not_the_same,
    shown_learning,
    undecidable,
)
from ddrl.report.sections.tables import grouped
from docs.sitegen import evidence
from docs.sitegen.links import ROOT
from docs.sitegen.markdown import plain, table

SPEED_TITLES = (
    *("system", "threads", "frames/s", "CPU s for 1,000 frames", "MiB"),
    *("gradient steps a step", "samples a step", "to the best peer"),
)


def learning(key: str) -> str:
    """Return the returns of our code and of other libraries in the experiments of one paper."""
    rows = [dict(row) for row in evidence.rows(key, "peer_learning")]
    shown = [row for row in shown_learning(rows, REFERENCE) if row["verdict"] != "not_run"]
    waiting = [row for row in shown_learning(rows, REFERENCE) if row["verdict"] == "not_run"]
    parts = []
    if shown:
        titles = ["task", "library", "return", "ours", "theirs", "ratio", "seeds", "frames", "verdict", "not the same"]
        parts.append(table(titles, map(_learned, shown), right=[3, 4, 7]))
        margin = ratio(float(shown[0]["margin"]))
        parts.append(
            f"The ratio is ours over theirs, of the return above random play, with its 90 % interval. The margin is "
            f"{margin}."
        )
    if waiting:
        names = dict.fromkeys(f"{row['library']} on {row['env_label']} ({row['algorithm'].upper()})" for row in waiting)
        parts.append(f"No committed run yet: {plain(', '.join(names))}.")
    return "\n\n".join(parts) or "No committed run of another library yet."


def _learned(row: Mapping[str, str]) -> list[str]:
    limits = f" {interval(row['ci90_low'], row['ci90_high'])}".replace("[", "\\[") if row["ci90_low"] else ""
    reason = f"<br>{plain(row['detail'])}" if undecidable(row) else ""
    return [
        f"{plain(row['env_label'])}, {row['algorithm'].upper()}",
        plain(row["library"]),
        RETURNS[row["metric"]],
        number(row["ours"]),
        number(row["theirs"]),
        f"{number(row['ratio'])}{limits}",
        f"{number(row['seeds'])} / {number(row['peer_seeds'])}",
        frames(row["env_frames"]),
        evidence.tag(row["verdict"]) + reason,
        plain(not_the_same(row)),
    ]


def speeds() -> str:
    """Return the committed speeds, a table for each measurement."""
    from ddrl.analysis.tables.peer_speed import peer_speed
    from ddrl.system.csv_cells import table_as_csv

    found, _ = peer_speed("", ROOT / "results", REFERENCE)
    rows = list(csv.DictReader(StringIO(table_as_csv(found), newline="")))
    parts = []
    for own in grouped(rows, "file").values():
        parts.append(f"**{plain(measured_what(own[0]).partition(',')[0])}**")
        parts.append(table(SPEED_TITLES, map(_measured, own), right=range(1, len(SPEED_TITLES))))
        parts.append(f"<small>{plain(measured_where(own[0]))}; {plain(own[0]['file'])}</small>")
    return "\n\n".join(parts) or "No committed measurement yet."


def _measured(row: Mapping[str, str]) -> list[str]:
    best = number(row["to_best_peer"])
    spread = interval(row["to_best_peer_lowest"], row["to_best_peer_highest"]) if best else ""
    return [
        f"**{plain(row['title'])}**<br><small>{plain(row['versions'])}</small>",
        number(row["threads"]),
        f"{number(row['frames_per_second'])} {interval(row['lowest'], row['highest'])}".replace("[", "\\["),
        number(row["cpu_seconds_per_1000_frames"]),
        number(row["peak_memory_mib"]),
        number(row["gradient_steps_per_step"]),
        number(row["trained_samples_per_step"]),
        f"{best} {spread}".strip().replace("[", "\\["),
    ]
