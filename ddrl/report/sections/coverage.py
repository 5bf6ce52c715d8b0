"""Sections of the suite report about what has been run: cells by verdict, experiments, tasks by variants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from ddrl.report.sections.answers import after_runs
from ddrl.report.sections.cells import ORIGINS
from ddrl.report.sections.document import Drawing, Field, Group, Row, Table, Tables
from ddrl.report.sections.first_page import VERDICTS, Verdicts, verdicts_of
from ddrl.report.sections.numbers import duration, frames, number
from ddrl.report.sections.spans import Inline, code, joined, plain, small, strong, tag
from ddrl.report.sections.tables import Fields, grouped, numeric, right, table_of
from ddrl.report.sections.text import listed, words

STATUSES = {
    "done": "done",
    "partly": "partly done",
    "missing": "missing",
    "reference": "reference only",
    "not_planned": "not planned",
    "not_run": "not run",
}
SCRIPT = "ddrl/report/figures.py"
"""The file that draws the figures of the suite."""


def verdicts_in(coverage: Iterable[Row], kind: str) -> Verdicts:
    """Return how many claims or cells (`kind`) have which verdict on the subject, from rows of the table `coverage`."""
    rows = list(coverage)
    totals = {name: sum(int(row[f"{kind}_{name}"] or 0) for row in rows) for name in VERDICTS[kind]}
    return {name: total for name, total in totals.items() if total}


def cells_by_verdict(tables: Tables, names: dict[str, str], subject: str) -> Table:
    """Return how many published cells of each experiment have which verdict, on the subject and on reference runs."""
    lines: list[Row] = []
    others = grouped(tables["cells_by_verdict"], "paper", "experiment")
    for row in tables["coverage"]:
        found = {subject: dict(verdicts_in([row], "cells"))}
        for other in others.get((row["paper"], row["experiment"]), []):
            if other["origin"] != subject:
                found.setdefault(other["origin"], {})[other["verdict"]] = int(other["cells"])
        lines += [
            row | {"origin": origin, "all": str(sum(own.values()))} | {name: str(count) for name, count in own.items()}
            for origin, own in found.items()
            if own
        ]
    shown = [name for name in VERDICTS["cells"] if any(name in line for line in lines)]
    fields: Fields[Row] = (
        Field("Experiment", lambda row: words(row["experiment"]), "1fr"),
        Field("Origin", lambda row: ORIGINS[row["origin"]]),
        *(numeric(words(name).capitalize(), name) for name in (*shown, "all")),
    )
    return table_of(
        "Published cells by experiment and verdict",
        "tables/coverage.csv, tables/cells_by_verdict.csv",
        fields,
        [
            Group([dict.fromkeys(shown, "–") | line for line in own], names.get(paper, paper))
            for (paper,), own in grouped(lines, "paper").items()
        ],
        "Rows of the reference runs count only the cells that they speak of." if subject == "run" else "",
    )


def papers(summaries: list[dict[str, Any]], coverage: list[Row], findings: list[Row]) -> Table:
    """Return what ran and what held, one row per paper; `findings` are one for each claim, as in the answer."""
    experiments, claims = grouped(coverage, "paper"), grouped(findings, "paper")

    def of_claims(paper: dict[str, Any]) -> Inline:
        return _tags(verdicts_of(claims.get((paper["key"],), [])), "claims")

    def of_cells(paper: dict[str, Any]) -> Inline:
        return _tags(verdicts_in(experiments.get((paper["key"],), []), "cells"), "cells")

    fields: Fields[dict[str, Any]] = (
        Field("Paper", lambda paper: joined([strong(short_name(paper)), small(paper["title"].split(":")[0])]), "1fr"),
        numeric("Runs", "runs", number),
        numeric("Frames", "env_frames_total", frames),
        numeric("Time", "seconds_total", duration),
        Field("Claims", of_claims),
        right("Test after runs", lambda paper: after_runs(claims.get((paper["key"],), []))),
        Field("Cells", of_cells),
        numeric("Holes", "problems", number),
    )
    source = "tables/summary.json, tables/coverage.csv"
    return table_of("Papers, what ran, and what held", source, fields, [Group(summaries)], ruled=True)


def _tags(found: Verdicts, kind: str) -> Inline:
    return joined(tag(name, f"{found[name]} {words(name)}") for name in VERDICTS[kind] if found.get(name))


def short_name(paper: dict[str, Any]) -> str:
    """Return the short name of a paper, or else its key."""
    return str(paper.get("short") or paper["key"])


def verdict_bars(statements: Mapping[str, Verdicts], subject: str) -> Drawing:
    """Return the figure of verdicts by paper; `statements` are the verdicts on claims and cells of all papers."""
    said = [f"{count} {words(name)}" for found in statements.values() for name, count in found.items()]
    return Drawing(
        "figures/verdicts.svg",
        "Verdicts by paper",
        "Each bar is all claims, or all published cells, of a paper; its parts are the verdicts, with their numbers.",
        f"Stacked bars of verdicts per paper; in all, for {ORIGINS[subject]}: {', '.join(said)}.",
        "",
        "tables/claims.csv, tables/cells_by_verdict.csv, tables/coverage.csv",
        SCRIPT,
    )


def experiments(coverage: list[Row], names: dict[str, str]) -> Table:
    """Return what was run of each experiment, and what it says."""
    fields: Fields[Row] = (
        Field("Experiment", _title, "1.4fr"),
        Field("Status", lambda row: tag(row["status"], STATUSES[row["status"]])),
        numeric("Planned", "planned"),
        numeric("Done", "done"),
        numeric("Left out", "left_out"),
        numeric("Reference", "reference"),
        Field("Claims", lambda row: _verdict_counts(row, "claims"), "0.9fr"),
        Field("Cells", lambda row: _verdict_counts(row, "cells"), "0.9fr"),
    )
    return table_of(
        "What has been run: experiments",
        "tables/coverage.csv",
        fields,
        [Group(own, names.get(paper, paper)) for (paper,), own in grouped(coverage, "paper").items()],
        "Planned, done, left out and reference count runs (seeds). Left out: planned, and named under Holes.",
        size=8.2,
    )


def _title(row: Row) -> Inline:
    return plain(row["title"]) if row["title"] else (*plain(words(row["experiment"])), *small(" not written yet"))


def _verdict_counts(row: Row, kind: str) -> Inline:
    found = [f"{count} {words(name)}" for name, count in verdicts_in([row], kind).items()]
    return small(", ".join(found) or "none")


def published_only(rows: list[Row]) -> Table:
    """Return the papers that have no replication yet."""
    fields: Fields[Row] = (
        Field("Folder of replications", lambda row: code(row["paper"])),
        numeric("Cells", "cells"),
        Field("Printed in", lambda row: small(row["items"]), "1fr"),
        Field("Status", lambda row: tag("not_run", "published data only")),
    )
    caption = "Papers of which only the published numbers are here"
    return table_of(caption, "tables/published_only.csv", fields, [Group(rows)], size=8.2)


def heat_maps(tables: Tables, names: dict[str, str]) -> list[Drawing]:
    """Return the heat map of each paper: what it compares by tasks, and how many seeds there are of each."""
    absent = grouped((row for row in tables["coverage"] if row["status"] == "not_run"), "paper")
    return [
        _heat_map(paper, names.get(paper, paper), rows, absent.get((paper,), []))
        for (paper,), rows in grouped(tables["matrix"], "paper").items()
    ]


def _heat_map(paper: str, name: str, rows: list[Row], absent: list[Row]) -> Drawing:
    statuses = Counter(row["status"] for row in rows)
    said = ", ".join(f"{statuses[status]} {text}" for status, text in STATUSES.items() if status in statuses)
    missing = listed(words(row["experiment"]) for row in absent)
    return Drawing(
        f"figures/coverage_{paper}.svg",
        f"What has been run of {name}",
        "Rows are what is compared, by experiment; columns are tasks, and those that are alike in every row share one. "
        "A number counts seeds, after a stroke those that are planned."
        + (f" Not written yet: {missing}." if missing else ""),
        f"Heat map of {name}, variants by tasks. Places by status: {said}.",
        "",
        "tables/matrix.csv",
        SCRIPT,
    )
