"""Sections about claims, in the report of one paper and in that of the suite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ddrl.report.sections.cells import ORIGINS, flags_of, needed, system_name, verdict_tag
from ddrl.report.sections.document import Block, Group, Line, Row, Table, Text
from ddrl.report.sections.numbers import equals, frames, interval, number, p_value, with_unit
from ddrl.report.sections.spans import Inline, Span, joined, plain, small, strong, tag
from ddrl.report.sections.tables import cell, cells_of, columns, right
from ddrl.report.sections.text import counted, listed, sentence, unbroken, words

INTRODUCTION = (
    "What the paper says, in our words, as a test on our own runs. Seeds are the unit of replication; "
    "intervals and p are over seeds. In brackets stands p after Holm’s correction for all claims of the paper "
    "that were tested on runs of the same origin; a verdict rests on its own interval, without that correction."
)


def claims(rows: list[Row], published_rows: list[Row], subject: str, experiments: dict[str, Any]) -> list[Block]:
    """Return the claims in the order of the paper's file, each with one finding per origin; then those without a run.

    `published_rows` is the table of published cells, which holds the numbers of a claim.
    """
    groups = by_claim(rows)
    published = {row["cell"]: row for row in published_rows}
    with_run = [found for found in groups if any(row["verdict"] != "not_run" for row in found)]
    without_run = [found[0] for found in groups if found not in with_run]
    return [
        *([Text(plain(INTRODUCTION))] if with_run else []),
        Table(
            "Claims of the paper and what our runs say of them",
            "tables/claims.csv",
            columns(("Claim", "1.15fr"), ("Evidence", "1.25fr"), *right("Verdict")),
            [Group([line for found in with_run for line in _claim(found, published, subject)])],
            ruled=True,
        ),
        Table(
            "Claims of the paper that no run of ours speaks of",
            "tables/claims.csv",
            columns(("Claim", "1.3fr"), ("Published", "1.5fr"), ("Experiment", "0.8fr"), *right("Verdict")),
            [Group([_without_run(row, published, experiments) for row in without_run])],
            size=8.2,
            ruled=True,
        ),
    ]


def by_claim(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the findings of each claim, in the order of the paper's file."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.get("paper", ""), row["claim"]), []).append(row)
    return list(groups.values())


def below_one_head(head: Inline, findings: Sequence[tuple[Row, Inline]]) -> list[Line]:
    """Return a line of evidence and verdict for each finding, with `head` as the first cell of all lines together."""
    lines = [(cell(said), cell(verdict_tag(row))) for row, said in findings]
    return [(cell(head, len(lines)), *lines[0]), *lines[1:]]


def whose(row: Row, subject: str) -> Inline:
    """Return the name of the runs that a finding is about; nothing where all are about the reference runs."""
    return small(f"{ORIGINS[row['origin']]}: ") if row["origin"] != subject or subject == "run" else ()


def evidence(row: Row) -> str:
    """Return what a verdict rests on: effect, interval, p, effect size, seeds, budget and flags."""
    facts = [
        f"effect {number(row['effect'])} {row['effect_unit']}".strip() if row["effect"] else "",
        f"95\u00a0% interval {interval(row['ci95_low'], row['ci95_high'])}" if row["ci95_low"] else "",
        p_value("p", row.get("p", ""), row.get("p_holm", "")),
        equals("g", number(row.get("hedges_g", ""))),
        counted(int(float(row["seeds"])), "seed") if row["seeds"] else "",
        f"{frames(row['env_frames'])} frames" if row["env_frames"] else "",
        needed(row),
        *flags_of(row),
    ]
    return "; ".join(filter(None, facts))


def _claim(findings: list[Row], published: dict[str, Row], subject: str) -> list[Line]:
    first = findings[0]
    source = joined([plain(first["text"]), small(unbroken(first["source"]))], (Span(" "),))
    values = _published(first, published)
    head = joined([strong(first["title"]), source, small(f"Published: {values}.") if values else ()])
    return below_one_head(head, [(row, (*whose(row, subject), *_finding(row))) for row in findings])


def _finding(row: Row) -> Inline:
    several = row.get("comparisons", "").count("[") > 1
    # The facts are those of the comparison that decides, which the detail names.
    others = small(f"All comparisons: {row['comparisons']}.") if several else ()
    return joined([plain(evidence(row)), small(sentence(row["detail"])), others])


def _without_run(row: Row, published: dict[str, Row], experiments: dict[str, Any]) -> Line:
    known = experiments.get(row["experiment"])
    planned = known["title"] if known else f"{words(row['experiment'])}: not written yet"
    title = joined([plain(row["title"]), small(unbroken(row["source"]))])
    return cells_of(title, small(_published(row, published) or "–"), small(planned), tag("not_run", "not run"))


def _published(row: Row, published: dict[str, Row]) -> str:
    """Return the numbers that the paper prints for a claim; for a number in its text also which quantity it is."""
    values: dict[str, list[str]] = {}
    for cell_name in row.get("published", "").split(";"):
        if found := published.get(cell_name):
            quantity = f"{words(found['metric'])} " if found["statistic"] == "stated" else ""
            value = quantity + with_unit(found["value"], found["unit"])
            values.setdefault(system_name(found, "variant"), []).append(value)
    return "; ".join(f"{name}: {listed(same)}" for name, same in values.items())


def ledger(rows: list[Row], names: dict[str, str], subject: str) -> Table:
    """Return every claim of every paper, each with one finding per origin."""
    groups: dict[str, list[Line]] = {}
    for findings in by_claim(rows):
        shown = [row for row in findings if row["verdict"] != "not_run"] or findings[:1]
        head = joined([plain(shown[0]["title"]), small(unbroken(shown[0]["source"]))])
        lines = below_one_head(head, [(row, _evidence_or_detail(row, subject)) for row in shown])
        groups.setdefault(shown[0]["paper"], []).extend(lines)
    return Table(
        "Claims ledger",
        "tables/claims.csv",
        columns(("Claim", "1.2fr"), ("Evidence", "1.1fr"), *right("Verdict")),
        [Group(lines, names.get(paper, paper)) for paper, lines in groups.items()],
        "Intervals are 95\u00a0% over seeds, g is Hedges’ standardised difference, in brackets stands p after Holm’s "
        "correction for the claims of the same paper. The report of each paper says "
        "what the claims mean and what decided them.",
        size=8.2,
        ruled=True,
    )


def _evidence_or_detail(row: Row, subject: str) -> Inline:
    """Return the evidence of a claim that was tested, or the detail where there is none."""
    detail = small(sentence(row["detail"]))
    if row["verdict"] == "not_run":
        return detail
    if not evidence(row):
        return (*whose(row, subject), *detail)
    several = row.get("decided_by") and ";" in row["comparisons"]
    nearest = small(f"{row['decided_by']}, the nearest to contradicting the claim") if several else ()
    return joined([(*whose(row, subject), *plain(evidence(row))), nearest])
