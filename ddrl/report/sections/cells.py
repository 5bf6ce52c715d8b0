"""Published cells in a report, beside ours and without; and how verdicts are counted and worded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from ddrl.report.sections.document import (
    Block,
    Cell,
    Count,
    Group,
    Row,
    Table,
    Text,
    cells_of,
    code,
    columns,
    plain,
    small,
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
    task_name,
    unbroken,
    with_unit,
    words,
)

ORIGINS = {"run": "this run", "reference": "reference"}
CLAIM_VERDICTS = {  # in the order of the report: verdict -> how a sentence says it, of one and of several
    "supported": "is supported|are supported",
    "contradicted": "is contradicted|are contradicted",
    "inconclusive": "is inconclusive|are inconclusive",
    "not_run": "has no run|have no run",
}
CELL_VERDICTS = {
    "equivalent": "is equivalent|are equivalent",
    "consistent": "is consistent with ours|are consistent with ours",
    "below": "lies above what we reach|lie above what we reach",
    "above": "lies below what we reach|lie below what we reach",
    "inconclusive": "is inconclusive|are inconclusive",
    "not_comparable": "is not comparable|are not comparable",
    "not_run": "has no run|have no run",
}
CELL_NOTE = (
    "Intervals are 90\u00a0% over seeds. Equivalent: our interval lies within the margin that was fixed beforehand. "
    "Consistent: the published value lies in our 95\u00a0% prediction interval, which is no evidence of equality. "
    "Below, above: our interval lies outside the margin. Inconclusive: too few seeds to say. Not comparable: a flag "
    "stands between the two numbers. Tests: p of equivalence is the larger of two one-sided tests, that of "
    "difference is two-sided, in brackets after Holm's correction for all cells of the same item and system."
)


def tally(noun: str, rows: list[Row], verdicts: dict[str, str], which: str = "") -> str:
    """`Of 5 claims, 2 are supported, 1 is contradicted and 2 have no run.`"""
    found = [row["verdict"] for row in rows]
    parts = []
    for verdict, phrase in verdicts.items():
        if count := found.count(verdict):
            singular, plural = phrase.split("|")
            parts.append(f"{count} {singular if count == 1 else plural}")
    return f"Of {counted(len(rows), noun)}{which}, {listed(parts)}." if parts else ""


def counts(rows: Sequence[Row], verdicts: Iterable[str]) -> tuple[Count, ...]:
    """How many rows of each verdict, in the given order."""
    found = [row["verdict"] for row in rows]
    return tuple(Count(name, f"{found.count(name)} {words(name)}") for name in verdicts if name in found)


def needed(row: Row) -> str:
    """How many seeds would decide."""
    return f"needs {counted(int(float(row['seeds_needed'])), 'seed')}" if row.get("seeds_needed") else ""


def cells(rows: list[Row], subject: str) -> tuple[Block, ...]:
    """Published cells that have a run beside them, grouped by published item and system."""
    grouped: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        if row["ours"]:
            key = (row["item"], row["system"], row["published_variant"], row["metric"], row["unit"])
            grouped.setdefault(key, []).append(row)
    introduction = Text(
        plain(
            "Each number the paper prints, beside ours. A cell that carries a flag which bars comparison is shown side "
            "by side, without judgement."
        )
    )
    if not grouped:
        return (introduction, Text(plain("No published cell has a run beside it at this scale.")))
    table = Table(
        "Published cells beside ours",
        "tables/cells.csv",
        columns(
            ("Task", "1.1fr"),
            ("Published", "auto", "right"),
            ("Ours", "auto", "right"),
            "90\u00a0% interval",
            ("Seeds", "auto", "right"),
            ("Frames", "auto", "right"),
            ("Tests and flags", "1.5fr"),
            ("Verdict", "auto", "right"),
        ),
        tuple(_cell_group(group, subject) for group in grouped.values()),
        CELL_NOTE,
    )
    return (introduction, table, *_protocols(grouped.values()))


def _cell_group(rows: list[Row], subject: str) -> Group:
    flags = [flags_of(row) for row in rows]
    points = len({row["published_frames"] for row in rows}) > 1
    shared = [flag for flag in flags[0] if all(flag in other for other in flags)]
    first = rows[0]
    name = ", ".join(part for part in (first["system"], first["published_variant"]) if part)
    note = "; ".join(
        part
        for part in (
            _published_note(first, points),
            f"all rows: {', '.join(shared)}" if shared else "",
        )
        if part
    )
    lines = tuple(
        _cell_row(row, [flag for flag in own if flag not in shared], subject, points)
        for row, own in zip(rows, flags, strict=True)
    )
    return Group(lines, f"{sentence(first['item']).removesuffix('.')}: {name}", note)


def _cell_row(row: Row, flags: list[str], subject: str, points: bool) -> tuple[Cell, ...]:
    """One line; of several points of a curve, each names its frames."""
    at = small(f" at {frames(row['published_frames'])}") if points and row["published_frames"] else ()
    other = small(f" ({ORIGINS[row['origin']]})") if row["origin"] != subject else ()
    return cells_of(
        (*plain(task_name(row["task"]) or "All tasks"), *at, *other),
        number(row["published"]),
        number(row["ours"]),
        interval(row["ci90_low"], row["ci90_high"]) if row["ci90_low"] else "–",
        number(row["seeds"]),
        frames(row["env_frames"]),
        small("; ".join([*_tests(row), *flags, *([more] if (more := needed(row)) else [])])),
        tag(row["verdict"], words(row["verdict"])),
    )


def _tests(row: Row) -> list[str]:
    """The tests behind a verdict, where one was made."""
    equal, different = probability(row.get("p_equivalence", "")), probability(row.get("p_difference", ""))
    corrected = probability(row.get("p_holm", ""))
    return [
        text
        for text in (
            equals("equivalence p", equal),
            equals("difference p", different) + (f" (Holm {corrected})" if different and corrected else ""),
        )
        if text
    ]


def _protocols(groups: Iterable[list[Row]]) -> tuple[Block, ...]:
    """What was measured on either side of the cells, where the tables say."""
    lines: dict[tuple[str, str], dict[str, None]] = {}
    for rows in groups:
        for row in rows:
            published = row.get("protocol_published", "").replace(";", "; ")
            # The environment's name is the task, which the cell names already.
            ours = {re.sub(r"/[^;]*", "", each, count=1) for each in row.get("protocol_ours", "").split(" | ")}
            if published or any(ours):
                sides = (published or "not stated", "\n".join(sorted(ours)).replace(";", "; "))
                lines.setdefault(sides, {})[row["item"]] = None
    if not lines:
        return ()
    rows_of = tuple(
        cells_of(unbroken(", ".join(items)), small(published), code(ours)) for (published, ours), items in lines.items()
    )
    stated = columns(("Item", "0.6fr"), ("Published", "1.2fr"), ("Ours", "1.3fr"))
    return (Table("What was measured", "tables/cells.csv", stated, (Group(rows_of),), size=8.2),)


def flags_of(row: Row) -> list[str]:
    """The flags of a row in words."""
    # How far the budget is reduced stands in the column of frames.
    said = row.get("flags", "").split(";")
    flags = [flag.partition("(")[0] if flag.startswith("reduced_budget") else flag for flag in said]
    return [words(flag).replace("(", " (").replace(",", ", ") for flag in flags if flag]


def _published_note(row: Row, points: bool) -> str:
    parts = [
        words(row["metric"]) + (f" ({row['unit']})" if row["unit"] else ""),
        words(row["published_statistic"]),
        counted(int(float(row["published_seeds"])), "seed") if row["published_seeds"] else "number of seeds unknown",
        f"{frames(row['published_frames'])} frames" if row["published_frames"] and not points else "",
    ]
    return "; ".join(part for part in parts if part)


def not_read(paper: dict[str, Any]) -> tuple[Block, ...]:
    """What the paper prints and could not be read: there is no published value, and none stands in for it."""
    lines = tuple(
        cells_of(unbroken(row["item"]), row["what"], tag("not_run", "no published value")) for row in paper["not_read"]
    )
    if not lines:
        return ()
    stated = columns(("Item", "auto"), ("What it shows", "1fr"), ("Published", "auto", "right"))
    return (Table("What the paper prints and could not be read", "tables/summary.json", stated, (Group(lines),)),)


def uncovered(rows: list[Row], subject: str) -> tuple[Block, ...]:
    """Published cells that no value of ours stands beside, by published item and system."""
    items: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        if not row["ours"] and row["origin"] == subject:
            name = ", ".join(part for part in (row["system"], row["published_variant"]) if part)
            metric = "" if row["metric"] in ("episode_return", "throughput") else f" {words(row['metric'])}"
            at = f" at {frames(row['published_frames'])}" if row["published_frames"] else ""
            value = with_unit(row["published"], row["unit"])
            text = f"{task_name(row['task'])}{metric} {value}{at}".replace(" ", "\u00a0")
            items.setdefault(row["item"], {}).setdefault(name, []).append(text)
    if not items:
        return ()
    groups = tuple(
        Group(tuple(cells_of(name, small(", ".join(found))) for name, found in systems.items()), item)
        for item, systems in sorted(items.items())
    )
    stated = columns(("System", "1fr"), ("Published", "3.2fr"))
    note = "After “at”: the frames that a number was reached with, where they are stated."
    return (Table("Published cells without a value of ours", "tables/cells.csv", stated, groups, note),)
