"""Claims in a report: those that a run of ours speaks of, with what it says, and those that have no run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ddrl.report.sections.cells import ORIGINS, flags_of, needed
from ddrl.report.sections.document import (
    Block,
    Cell,
    Group,
    Row,
    Span,
    Table,
    Text,
    cell,
    cells_of,
    columns,
    joined,
    plain,
    small,
    strong,
    tag,
)
from ddrl.report.sections.text import (
    counted,
    equals,
    frames,
    interval,
    listed,
    number,
    probability,
    sentence,
    unbroken,
    with_unit,
    words,
)


def claims(rows: list[Row], published_rows: list[Row], subject: str, experiments: dict[str, Any]) -> tuple[Block, ...]:
    """Claims in the paper file's order, each with one finding per origin; then those without a run.

    `published_rows`: the table of published cells, where the numbers of a claim stand.
    """
    groups = by_claim(rows)
    published = {row["cell"]: row for row in published_rows}
    spoken = [found for found in groups if any(row["verdict"] != "not_run" for row in found)]
    silent = [found[0] for found in groups if found not in spoken]
    blocks: list[Block] = []
    if spoken:
        introduction = (
            "What the paper says, in our words, as a test on our own runs. Seeds are the unit of replication; "
            "intervals and p are over seeds. In brackets stands p after Holm’s correction for all claims of the paper "
            "that were tested on runs of the same origin; a verdict rests on its own interval, without that correction."
        )
        lines = tuple(line for found in spoken for line in _claim(found, published, subject))
        blocks += [
            Text(plain(introduction)),
            Table(
                "Claims of the paper and what our runs say of them",
                "tables/claims.csv",
                columns(("Claim", "1.15fr"), ("Evidence", "1.25fr"), ("Verdict", "auto", "right")),
                (Group(lines),),
                ruled=True,
            ),
        ]
    if silent:
        blocks.append(
            Table(
                "Claims of the paper that no run of ours speaks of",
                "tables/claims.csv",
                columns(
                    ("Claim", "1.3fr"), ("Published", "1.5fr"), ("Experiment", "0.8fr"), ("Verdict", "auto", "right")
                ),
                (Group(tuple(_silent(row, published, experiments) for row in silent)),),
                size=8.2,
                ruled=True,
            )
        )
    return tuple(blocks)


def by_claim(rows: Sequence[Row]) -> list[list[Row]]:
    """The findings of each claim, in the paper file's order."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.get("paper", ""), row["claim"]), []).append(row)
    return list(groups.values())


def _claim(findings: list[Row], published: dict[str, Row], subject: str) -> list[tuple[Cell, ...]]:
    first = findings[0]
    source = joined([plain(first["text"]), small(unbroken(first["source"]))], (Span(" "),))
    values = _published(first, published)
    head = joined([strong(first["title"]), source, small(f"Published: {values}.") if values else ()])
    return [
        (*((cell(head, len(findings)),) if index == 0 else ()), *_finding(row, subject))
        for index, row in enumerate(findings)
    ]


def evidence(row: Row) -> str:
    """Effect, interval, p, size, seeds, budget: what a verdict rests on."""
    facts = [
        f"effect {number(row['effect'])} {row['effect_unit']}".strip() if row["effect"] else "",
        f"95\u00a0% interval {interval(row['ci95_low'], row['ci95_high'])}" if row["ci95_low"] else "",
        _p(row),
        equals("g", number(row.get("hedges_g", ""))),
        counted(int(float(row["seeds"])), "seed") if row["seeds"] else "",
        f"{frames(row['env_frames'])} frames" if row["env_frames"] else "",
        needed(row),
        *flags_of(row),
    ]
    return "; ".join(fact for fact in facts if fact)


def _p(row: Row) -> str:
    """p, and in brackets p corrected for the paper's other claims."""
    alone, corrected = equals("p", probability(row.get("p", ""))), probability(row.get("p_holm", ""))
    return f"{alone} (Holm {corrected})" if alone and corrected else alone


def _finding(row: Row, subject: str) -> tuple[Cell, Cell]:
    who = small(f"{ORIGINS[row['origin']]}: ") if row["origin"] != subject or subject == "run" else ()
    several = row.get("comparisons", "").count("[") > 1
    # The comparison that decides stands in the facts; the detail names it.
    others = small(f"All comparisons: {row['comparisons']}.") if several else ()
    said = joined([plain(evidence(row)), small(sentence(row["detail"])), others])
    return cell((*who, *said)), cell(tag(row["verdict"], words(row["verdict"])))


def _silent(row: Row, published: dict[str, Row], experiments: dict[str, Any]) -> tuple[Cell, ...]:
    known = experiments.get(row["experiment"])
    planned = known["title"] if known else f"{words(row['experiment'])}: not written yet"
    title = joined([plain(row["title"]), small(unbroken(row["source"]))])
    return cells_of(title, small(_published(row, published) or "–"), small(planned), tag("not_run", "not run"))


def _published(row: Row, published: dict[str, Row]) -> str:
    """The numbers that the paper prints for a claim; of one in its text, also what it is a number of."""
    values: dict[str, list[str]] = {}
    for cell_name in row.get("published", "").split(";"):
        if found := published.get(cell_name):
            name = ", ".join(part for part in (found["system"], found["variant"]) if part)
            what = f"{words(found['metric'])} " if found["statistic"] == "stated" else ""
            values.setdefault(name, []).append(what + with_unit(found["value"], found["unit"]))
    return "; ".join(f"{name}: {listed(same)}" for name, same in values.items())
