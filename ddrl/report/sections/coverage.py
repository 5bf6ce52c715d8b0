"""Sections of the suite report about what has been run: cells by verdict, experiments, tasks by variants."""

from __future__ import annotations

from ddrl.report.sections.cells import CELL_VERDICTS, CLAIM_VERDICTS, ORIGINS
from ddrl.report.sections.document import Block, Figure, Group, Line, Row, Table, Tables
from ddrl.report.sections.spans import Inline, Span, code, joined, plain, small, tag
from ddrl.report.sections.tables import cells_of, columns, grouped, right
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


def coverage(tables: Tables, names: dict[str, str]) -> tuple[Block, ...]:
    """Return what was run of each experiment: a table, a figure, and a table of tasks by variants each."""
    if not tables["coverage"]:
        return ()
    table = Table(
        "What has been run: experiments",
        "tables/coverage.csv",
        columns(
            ("Experiment", "1.4fr"),
            "Status",
            *right("Planned", "Done", "Left out", "Reference"),
            ("Claims", "0.9fr"),
            ("Cells", "0.9fr"),
        ),
        [
            Group([_experiment(row) for row in own], names.get(paper, paper))
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


def _experiment(row: Row) -> Line:
    title = plain(row["title"]) if row["title"] else (*plain(words(row["experiment"])), *small(" not written yet"))
    return cells_of(
        title,
        tag(row["status"], STATUSES[row["status"]]),
        *(row[name] for name in ("planned", "done", "left_out", "reference")),
        small(_verdict_counts(row, "claims", CLAIM_VERDICTS)),
        small(_verdict_counts(row, "cells", CELL_VERDICTS)),
    )


def _published_only(rows: list[Row]) -> Table:
    """Return the papers that have no replication yet."""
    lines = [
        cells_of(code(row["paper"]), row["cells"], small(row["items"]), tag("not_run", "published data only"))
        for row in rows
    ]
    return Table(
        "Papers of which only the published numbers are here",
        "tables/published_only.csv",
        columns("Folder of replications", *right("Cells"), ("Printed in", "1fr"), "Status"),
        [Group(lines)],
        size=8.2,
    )


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
