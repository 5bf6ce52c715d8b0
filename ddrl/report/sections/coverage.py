"""What has been run and what was found, in the suite report: cells by verdict, experiments, tasks by variants."""

from __future__ import annotations

from ddrl.report.sections.cells import CELL_VERDICTS, CLAIM_VERDICTS, ORIGINS
from ddrl.report.sections.document import (
    Block,
    Cell,
    Figure,
    Group,
    Inline,
    Row,
    Span,
    Table,
    Tables,
    cells_of,
    code,
    columns,
    joined,
    plain,
    small,
    tag,
)
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
"""That columns of a page have room for."""


def own_cells(coverage: list[Row]) -> list[Row]:
    """One row per published cell with its verdict on the subject, from their counts."""
    return [
        {"verdict": name} for name in CELL_VERDICTS for row in coverage for _ in range(int(row[f"cells_{name}"] or 0))
    ]


def cells_by_verdict(tables: Tables, names: dict[str, str], subject: str) -> tuple[Block, ...]:
    """How many published cells of each experiment have which verdict, on the subject and on the reference runs."""
    found: dict[tuple[str, str, str], dict[str, int]] = {}
    for row in tables["coverage"]:
        own = {name: int(row[f"cells_{name}"]) for name in CELL_VERDICTS if row[f"cells_{name}"] not in ("", "0")}
        if own:
            found[row["paper"], row["experiment"], subject] = own
        for other in tables["cells_by_verdict"]:
            same = (other["paper"], other["experiment"]) == (row["paper"], row["experiment"])
            if same and other["origin"] != subject:
                key = (row["paper"], row["experiment"], other["origin"])
                found.setdefault(key, {})[other["verdict"]] = int(other["cells"])
    shown = [name for name in CELL_VERDICTS if any(name in verdicts for verdicts in found.values())]
    groups: dict[str, list[tuple[Cell, ...]]] = {}
    for (paper, experiment, origin), verdicts in found.items():
        line = (str(verdicts.get(name, "–")) for name in shown)
        groups.setdefault(paper, []).append(
            cells_of(words(experiment), ORIGINS[origin], *line, str(sum(verdicts.values())))
        )
    if not groups:
        return ()
    stated = columns(
        ("Experiment", "1fr"),
        "Origin",
        *((words(name).capitalize(), "auto", "right") for name in shown),
        ("All", "auto", "right"),
    )
    table = Table(
        "Published cells by experiment and verdict",
        "tables/coverage.csv, tables/cells_by_verdict.csv",
        stated,
        tuple(Group(tuple(lines), names.get(paper, paper)) for paper, lines in groups.items()),
        "Rows of the reference runs count only the cells that they speak of." if subject == "run" else "",
    )
    return (table,)


def coverage(tables: Tables, names: dict[str, str]) -> tuple[Block, ...]:
    groups: dict[str, list[tuple[Cell, ...]]] = {}
    for row in tables["coverage"]:
        title = plain(row["title"]) if row["title"] else (*plain(words(row["experiment"])), *small(" not written yet"))
        line = cells_of(
            title,
            tag(row["status"], STATUSES[row["status"]]),
            *(row[name] for name in ("planned", "done", "left_out", "reference")),
            small(_verdict_counts(row, "claims", tuple(CLAIM_VERDICTS))),
            small(_verdict_counts(row, "cells", tuple(CELL_VERDICTS))),
        )
        groups.setdefault(row["paper"], []).append(line)
    if not groups:
        return ()
    table = Table(
        "What has been run: experiments",
        "tables/coverage.csv",
        columns(
            ("Experiment", "1.4fr"),
            "Status",
            ("Planned", "auto", "right"),
            ("Done", "auto", "right"),
            ("Left out", "auto", "right"),
            ("Reference", "auto", "right"),
            ("Claims", "0.9fr"),
            ("Cells", "0.9fr"),
        ),
        tuple(Group(tuple(lines), names.get(paper, paper)) for paper, lines in groups.items()),
        "Planned, done, left out and reference count runs (seeds). Left out: planned, and named under Holes.",
        size=8.2,
    )
    only = _published_only(tables.get("published_only", []))
    return (table, _coverage_figure(tables), *_matrices(tables["matrix"], names), *only)


def _published_only(rows: list[Row]) -> tuple[Table, ...]:
    """Papers that wait for their replication."""
    lines = tuple(
        cells_of(code(row["paper"]), row["cells"], small(row["items"]), tag("not_run", "published data only"))
        for row in rows
    )
    if not lines:
        return ()
    table = Table(
        "Papers of which only the published numbers are here",
        "tables/published_only.csv",
        columns(("Folder of replications", "auto"), ("Cells", "auto", "right"), ("Printed in", "1fr"), "Status"),
        (Group(lines),),
        size=8.2,
    )
    return (table,)


def _verdict_counts(row: Row, kind: str, verdicts: tuple[str, ...]) -> str:
    found = [f"{row[f'{kind}_{name}']} {words(name)}" for name in verdicts if row[f"{kind}_{name}"] not in ("", "0")]
    return ", ".join(found) or "none"


def _coverage_figure(tables: Tables) -> Figure:
    statuses = [row["status"] for row in tables["matrix"]]
    said = [f"{statuses.count(name)} {label}" for name, label in STATUSES.items() if name in statuses]
    absent = sum(row["status"] == "not_run" for row in tables["coverage"])
    return Figure(
        "figures/coverage.svg",
        "Coverage matrix",
        "Variants by tasks: what is done, what is planned, and what is not. A dashed row is an experiment that a "
        "claim or a cell needs and that has not been written yet.",
        f"Matrix of variants and tasks. Places by status: {', '.join(said)}; {counted(absent, 'experiment')} not run.",
        "",
        "tables/matrix.csv, tables/coverage.csv",
    )


def _matrices(rows: list[Row], names: dict[str, str]) -> list[Table]:
    """One table per experiment: tasks by variants."""
    experiments: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        experiments.setdefault((row["paper"], row["experiment"]), []).append(row)
    return [_matrix(names.get(paper, paper), name, own) for (paper, name), own in experiments.items()]


def _matrix(paper: str, experiment: str, rows: list[Row]) -> Table:
    """Tasks by variants; variants by tasks where there are too many of them for columns."""
    variants = list(dict.fromkeys(row["variant_label"] for row in rows))
    tasks: dict[str, dict[str, Row]] = {}
    for row in rows:
        tasks.setdefault(row["env_label"], {})[row["variant_label"]] = row
    touched = {
        task: found for task, found in tasks.items() if any(row["status"] != "not_planned" for row in found.values())
    }
    places = {
        (task, name): _place(found[name]) if name in found else ""
        for task, found in touched.items()
        for name in variants
    }
    if len(variants) > max(MOST_VARIANTS, len(touched)):
        first, others = "Variant", list(touched)
        lines = tuple(cells_of(name, *(places[task, name] for task in touched)) for name in variants)
    else:
        first, others = "Task", variants
        lines = tuple(cells_of(task, *(places[task, name] for name in variants)) for task in touched)
    rest = [task for task in tasks if task not in touched]
    note = "Seeds done of seeds planned; “ref” counts committed reference runs."
    return Table(
        f"What has been run: {words(experiment)} ({paper})",
        "tables/matrix.csv",
        columns((first, "1.3fr"), *((name, "1fr") for name in others)),
        (Group(lines),),
        f"{note} Not planned at this scale: {', '.join(rest)}." if rest else note,
        size=8.0,
    )


def _place(row: Row) -> Inline:
    counted_here = row["status"] in ("done", "partly", "missing")
    own = tag(row["status"], f"{row['done']}/{row['planned']}") if counted_here else ()
    reference = tag("reference", f"{row['reference']} ref") if int(row["reference"]) else ()
    return joined([own, reference], (Span(" "),)) or plain("–")
