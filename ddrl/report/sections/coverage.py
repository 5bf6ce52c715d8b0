"""Sections of the suite report about what has been run: cells by verdict, experiments, tasks by variants."""

from __future__ import annotations

from typing import Any

from ddrl.report.sections.cells import CELL_VERDICTS, CLAIM_VERDICTS, ORIGINS
from ddrl.report.sections.document import Block, Figure, Group, Line, Row, Table, Tables
from ddrl.report.sections.numbers import duration, frames, number
from ddrl.report.sections.spans import Inline, Span, code, joined, plain, small, strong, tag
from ddrl.report.sections.tables import Field, cells_of, columns, grouped, lines_of, numeric, right, titles
from ddrl.report.sections.text import counted, words

STATUSES = {
    "done": "done",
    "partly": "partly done",
    "missing": "missing",
    "reference": "reference only",
    "not_planned": "not planned",
    "not_run": "not run",
}
MOST_VARIANTS = 8
"""The most variants that a page has room for in columns."""


def own_cells(coverage: list[Row]) -> list[Row]:
    """Return one row for each published cell with its verdict on the subject, from the numbers of cells."""
    return [
        {"verdict": name} for name in CELL_VERDICTS for row in coverage for _ in range(int(row[f"cells_{name}"] or 0))
    ]


def cells_by_verdict(tables: Tables, names: dict[str, str], subject: str) -> Table:
    """Return how many published cells of each experiment have which verdict, on the subject and on reference runs."""
    found: dict[tuple[str, str, str], dict[str, int]] = {}
    others = grouped(tables["cells_by_verdict"], "paper", "experiment")
    for row in tables["coverage"]:
        own = {name: int(row[f"cells_{name}"]) for name in CELL_VERDICTS if row[f"cells_{name}"] not in ("", "0")}
        if own:
            found[row["paper"], row["experiment"], subject] = own
        for other in others.get((row["paper"], row["experiment"]), []):
            if other["origin"] != subject:
                key = (row["paper"], row["experiment"], other["origin"])
                found.setdefault(key, {})[other["verdict"]] = int(other["cells"])
    shown = [name for name in CELL_VERDICTS if any(name in verdicts for verdicts in found.values())]
    groups: dict[str, list[Line]] = {}
    for (paper, experiment, origin), verdicts in found.items():
        numbers = [*(str(verdicts.get(name, "–")) for name in shown), str(sum(verdicts.values()))]
        groups.setdefault(paper, []).append(cells_of(words(experiment), ORIGINS[origin], *numbers))
    return Table(
        "Published cells by experiment and verdict",
        "tables/coverage.csv, tables/cells_by_verdict.csv",
        columns(("Experiment", "1fr"), "Origin", *right(*(words(name).capitalize() for name in shown), "All")),
        [Group(lines, names.get(paper, paper)) for paper, lines in groups.items()],
        "Rows of the reference runs count only the cells that they speak of." if subject == "run" else "",
    )


def papers(summaries: list[dict[str, Any]], coverage: list[Row]) -> Table:
    """Return what ran and what held, one row per paper."""
    experiments = grouped(coverage, "paper")

    def tags(paper: dict[str, Any], kind: str, verdicts: dict[str, str]) -> Inline:
        own = experiments.get((paper["key"],), [])
        totals = {name: sum(int(row[f"{kind}_{name}"] or 0) for row in own) for name in verdicts}
        return joined(tag(name, f"{total} {words(name)}") for name, total in totals.items() if total)

    def title(paper: dict[str, Any]) -> Inline:
        return joined([strong(paper.get("short") or paper["key"]), small(paper["title"].split(":")[0])])

    fields = (
        Field("Paper", title, "1fr"),
        numeric("Runs", "runs", number),
        numeric("Frames", "env_frames_total", frames),
        numeric("Time", "seconds_total", lambda seconds: duration(float(seconds))),
        Field("Claims", lambda paper: tags(paper, "claims", CLAIM_VERDICTS)),
        Field("Cells", lambda paper: tags(paper, "cells", CELL_VERDICTS)),
        numeric("Holes", "problems", number),
    )
    source = "tables/summary.json, tables/coverage.csv"
    groups = [Group(lines_of(fields, summaries))]
    return Table("Papers, what ran, and what held", source, titles(fields), groups, ruled=True)


def verdict_bars(tables: Tables, subject: str) -> Figure:
    """Return the figure of verdicts by paper."""
    claims = [row["verdict"] for row in tables["claims"] if row["origin"] == subject]
    cells = [row["verdict"] for row in own_cells(tables["coverage"])]
    said = [f"{found.count(name)} {words(name)}" for found in (claims, cells) for name in dict.fromkeys(found)]
    return Figure(
        "figures/verdicts.svg",
        "Verdicts by paper",
        "Each bar is all claims, or all published cells, of a paper; its parts are the verdicts, with their numbers.",
        f"Stacked bars of verdicts per paper; in all, for {ORIGINS[subject]}: {', '.join(said)}.",
        "",
        "tables/claims.csv, tables/cells_by_verdict.csv, tables/coverage.csv",
    )


def coverage(tables: Tables, names: dict[str, str]) -> tuple[Block, ...]:
    """Return what was run of each experiment: a table, a figure, and a table of tasks by variants each."""
    if not tables["coverage"]:
        return ()
    fields = (
        Field("Experiment", _title, "1.4fr"),
        Field("Status", lambda row: tag(row["status"], STATUSES[row["status"]])),
        numeric("Planned", "planned"),
        numeric("Done", "done"),
        numeric("Left out", "left_out"),
        numeric("Reference", "reference"),
        Field("Claims", lambda row: small(_verdict_counts(row, "claims", CLAIM_VERDICTS)), "0.9fr"),
        Field("Cells", lambda row: small(_verdict_counts(row, "cells", CELL_VERDICTS)), "0.9fr"),
    )
    table = Table(
        "What has been run: experiments",
        "tables/coverage.csv",
        titles(fields),
        [
            Group(lines_of(fields, own), names.get(paper, paper))
            for (paper,), own in grouped(tables["coverage"], "paper").items()
        ],
        "Planned, done, left out and reference count runs (seeds). Left out: planned, and named under Holes.",
        size=8.2,
    )
    matrices = [
        _matrix(names.get(paper, paper), experiment, own)
        for (paper, experiment), own in grouped(tables["matrix"], "paper", "experiment").items()
    ]
    return (table, _coverage_figure(tables), *matrices, _published_only(tables.get("published_only", [])))


def _title(row: Row) -> Inline:
    return plain(row["title"]) if row["title"] else (*plain(words(row["experiment"])), *small(" not written yet"))


def _published_only(rows: list[Row]) -> Table:
    """Return the papers that have no replication yet."""
    fields = (
        Field("Folder of replications", lambda row: code(row["paper"])),
        numeric("Cells", "cells"),
        Field("Printed in", lambda row: small(row["items"]), "1fr"),
        Field("Status", lambda row: tag("not_run", "published data only")),
    )
    caption = "Papers of which only the published numbers are here"
    return Table(caption, "tables/published_only.csv", titles(fields), [Group(lines_of(fields, rows))], size=8.2)


def _verdict_counts(row: Row, kind: str, verdicts: dict[str, str]) -> str:
    found = [f"{row[f'{kind}_{name}']} {words(name)}" for name in verdicts if row[f"{kind}_{name}"] not in ("", "0")]
    return ", ".join(found) or "none"


def _coverage_figure(tables: Tables) -> Figure:
    statuses = [row["status"] for row in tables["matrix"]]
    numbers = [f"{statuses.count(name)} {label}" for name, label in STATUSES.items() if name in statuses]
    absent = sum(row["status"] == "not_run" for row in tables["coverage"])
    return Figure(
        "figures/coverage.svg",
        "Coverage matrix",
        "Variants by tasks: what is done, what is planned, and what is not. A dashed row is an experiment that a "
        "claim or a cell needs and that has not been written yet.",
        f"Matrix of variants and tasks. Places by status: {', '.join(numbers)}; "
        f"{counted(absent, 'experiment')} not run.",
        "",
        "tables/matrix.csv, tables/coverage.csv",
    )


def _matrix(paper: str, experiment: str, rows: list[Row]) -> Table:
    """Return tasks by variants, or variants by tasks where there are too many variants for columns."""
    variants = list(dict.fromkeys(row["variant_label"] for row in rows))
    places = {(row["env_label"], row["variant_label"]): row for row in rows}
    touched = {task for (task, _), row in places.items() if row["status"] != "not_planned"}
    tasks = dict.fromkeys(row["env_label"] for row in rows)
    planned, rest = ([task for task in tasks if (task in touched) is wanted] for wanted in (True, False))
    if len(variants) > max(MOST_VARIANTS, len(planned)):
        first, others = "Variant", planned
        lines = [cells_of(name, *(_place(places.get((task, name))) for task in planned)) for name in variants]
    else:
        first, others = "Task", variants
        lines = [cells_of(task, *(_place(places.get((task, name))) for name in variants)) for task in planned]
    note = "Seeds done of seeds planned; “ref” counts committed reference runs."
    return Table(
        f"What has been run: {words(experiment)} ({paper})",
        "tables/matrix.csv",
        columns((first, "1.3fr"), *((name, "1fr") for name in others)),
        [Group(lines)],
        f"{note} Not planned at this scale: {', '.join(rest)}." if rest else note,
        size=8.0,
    )


def _place(row: Row | None) -> Inline:
    """Return the seeds done of one variant on one task, and its reference runs; nothing without a row."""
    if row is None:
        return ()
    counted_here = row["status"] in ("done", "partly", "missing")
    own = tag(row["status"], f"{row['done']}/{row['planned']}") if counted_here else ()
    reference = tag("reference", f"{row['reference']} ref") if int(row["reference"]) else ()
    return joined([own, reference], (Span(" "),)) or plain("–")
