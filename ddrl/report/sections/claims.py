"""Sections about claims, in the report of one paper and in that of the suite."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import compress
from typing import Any

from ddrl.papers.claim_verdicts import said, seeds_said
from ddrl.report.sections.cells import ORIGINS, flags_of, system_name
from ddrl.report.sections.document import Block, Cell, Field, Group, Row, Table, Text
from ddrl.report.sections.numbers import equals, frames, interval, number, p_value, with_unit
from ddrl.report.sections.spans import Inline, Span, joined, more, plain, small, strong, tag
from ddrl.report.sections.tables import Fields, grouped, right, table_of
from ddrl.report.sections.text import counted, listed, sentence, unbroken, words

SENTENCES = re.compile(r"(?<=\.) (?=[A-Z])")
LONG = 200
"""Letters of a sentence that the PDF leaves to the files of the results: it lists numbers of many tasks."""
SOURCE = "tables/claims.csv"
INTRODUCTION = (
    "What the paper says, in our words, as a test on our own runs. Seeds are the unit of replication; "
    "intervals and p are over seeds. The interval that is shown is the claim’s own, at 95\u00a0%. The verdict rests on "
    "the p of its decision after Holm’s correction for the family, which is all claims of the paper that were tested "
    "on runs of the same origin: it is at most 5\u00a0% for every claim that is decided."
)


def claims(rows: list[Row], published_rows: list[Row], subject: str, younger: int = 0) -> list[Block]:
    """Return the claims with a run in the order of the paper's file, each with one finding per origin.

    `published_rows` is the table of published cells, which holds the numbers of a claim; `younger` is how many rules
    for all claims are younger than runs.
    """
    tested, _ = _by_run(rows)
    published = {row["cell"]: row for row in published_rows}
    fields: Fields[Row] = (
        _tall(lambda row: _claim(row, published), "1fr"),
        Field("Evidence", lambda row: (*_whose(row, subject), *_finding(row)), "1.4fr"),
        right("Verdict", _verdict),
    )
    caption = "Claims of the paper and what our runs say of them"
    table = table_of(caption, SOURCE, fields, [_lines(tested)], size=8.2, ruled=True)
    late = f"{counted(younger, 'rule')} for all claims came after some of the runs; the appendix lists what changed."
    said = [Text(plain(text)) for text in (INTRODUCTION, late if younger else "") if text]
    return [*said, table] if tested else []


def without_run(rows: list[Row], published_rows: list[Row], experiments: dict[str, Any]) -> list[Table]:
    """Return the claims that no run speaks of, with the experiment that each waits for."""
    _, untested = _by_run(rows)
    published = {row["cell"]: row for row in published_rows}
    fields: Fields[Row] = (
        Field("Claim", _title, "1.3fr"),
        Field("Published", lambda row: small(_published(row, published) or "–"), "1.5fr"),
        Field("Experiment", lambda row: small(_planned(row, experiments)), "0.8fr"),
    )
    groups = [Group([found[0] for found in untested])]
    return [table_of("Claims of the paper that no run speaks of", SOURCE, fields, groups, size=8.2, ruled=True)]


def _by_run(rows: Iterable[Row]) -> tuple[list[list[Row]], list[list[Row]]]:
    """Return the findings on each claim that a run speaks of, and on each other one."""
    groups = [*grouped(rows, "claim").values()]
    tested = [any(row["verdict"] != "not_run" for row in found) for found in groups]
    return [*compress(groups, tested)], [found for found, known in zip(groups, tested, strict=True) if not known]


def _tall(claim: Callable[[Row], Inline], width: str) -> Field[Row]:
    """Return the column of claims, each as high as all of its lines (`_lines`)."""
    return Field("Claim", lambda row: Cell(claim(row), int(row["lines"])) if row["lines"] else None, width)


def _lines(claims: Iterable[list[Row]], title: str = "") -> Group[Row]:
    """Return the findings on each claim; the first one's column `lines` counts them, that of the others is empty."""
    lines = [row | {"lines": "" if number else str(len(found))} for found in claims for number, row in enumerate(found)]
    return Group(lines, title)


def _verdict(row: Row) -> Inline:
    """Return the verdict of a row as a tag, and below it what a claim needs that is not testable."""
    verdict, _, lacking = said(row["verdict"], row.get("obstacle", "")).partition(": ")
    return joined([tag(row["verdict"], verdict), *map(small, lacking.split(", "))])


def _title(row: Row) -> Inline:
    return joined([plain(row["title"]), small(unbroken(row["source"]))])


def _whose(row: Row, subject: str) -> Inline:
    """Return the name of the runs that a finding is about; nothing where all are about the reference runs."""
    return small(f"{ORIGINS[row['origin']]}: ") if row["origin"] != subject or subject == "run" else ()


def evidence(row: Row) -> str:
    """Return what a verdict rests on: effect, interval, p, effect size, seeds, budget, late plans and flags."""
    facts = [
        f"effect {number(row['effect'])} {row['effect_unit']}".strip() if row["effect"] else "",
        f"95\u00a0% interval {interval(row['ci95_low'], row['ci95_high'])}" if row["ci95_low"] else "",
        p_value("p", row.get("p", "")),
        _corrected(row),
        equals("g", number(row.get("hedges_g", ""))),
        counted(int(float(row["seeds"])), "seed") if row["seeds"] else "",
        f"{frames(row['env_frames'])} frames" if row["env_frames"] else "",
        seeds_said(row),
        row.get("late", ""),
        *flags_of(row),
    ]
    return "; ".join(filter(None, facts))


def _corrected(row: Row) -> str:
    """Return the p of the decision after Holm's correction with the size of its family; empty if it was not tested."""
    found = p_value("p", row.get("p_holm", ""))
    family = row.get("family", "").partition(" of ")[0]
    return f"decision {found} (Holm, {family})" if found and family else ""


def _claim(row: Row, published: dict[str, Row]) -> Inline:
    source = joined([plain(row["text"]), small(unbroken(row["source"]))], (Span(" "),))
    values = _published(row, published)
    return joined([strong(row["title"]), source, small(f"Published: {values}.") if values else ()])


def _finding(row: Row) -> Inline:
    several = row.get("comparisons", "").count("[") > 1
    # The facts are those of the comparison that decides, which the detail names.
    parts = [sentence(part) for part in SENTENCES.split(row["detail"])]
    short, long = ([part for part in parts if (len(part) > LONG) is wanted] for wanted in (False, True))
    details = [*long, f"All comparisons: {row['comparisons']}."] if several else long
    shown = joined([plain(evidence(row)), small(" ".join(short))])
    return (*shown, *more("Details", " ".join(details))) if details else shown


def _planned(row: Row, experiments: dict[str, Any]) -> str:
    known = experiments.get(row["experiment"])
    return str(known["title"]) if known else f"{words(row['experiment'])}: not written yet"


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
    fields: Fields[Row] = (
        _tall(_title, "1fr"),
        Field("Evidence", lambda row: _evidence_or_detail(row, subject), "1.5fr"),
        right("Verdict", _verdict),
    )
    return table_of(
        "Claims ledger",
        SOURCE,
        fields,
        [
            _lines(map(_decided, grouped(own, "claim").values()), names.get(paper, paper))
            for (paper,), own in grouped(rows, "paper").items()
        ],
        "Intervals are 95\u00a0% over seeds, g is Hedges’ standardised difference. A verdict rests on the p of its "
        "decision after Holm’s correction for the claims of the same paper (its family). The report of each paper says "
        "what the claims mean and what decided them.",
        size=8.2,
        ruled=True,
    )


def _decided(findings: list[Row]) -> list[Row]:
    """Return the findings on a claim that rest on runs, or the first where none does."""
    return [row for row in findings if row["verdict"] != "not_run"] or findings[:1]


def _evidence_or_detail(row: Row, subject: str) -> Inline:
    """Return the evidence of a claim that was tested, or the detail where there is none."""
    detail = small(sentence(row["detail"]))
    if row["verdict"] == "not_run":
        return detail
    if not evidence(row):
        return (*_whose(row, subject), *detail)
    several = row.get("decided_by") and ";" in row["comparisons"]
    which = "the best configuration" if row.get("kind") == "up_to" else "the nearest to contradicting the claim"
    nearest = small(f"{row['decided_by']}, {which}") if several else ()
    return joined([(*_whose(row, subject), *plain(evidence(row))), nearest])
