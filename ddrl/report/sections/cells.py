"""Sections about published cells: those with a value of ours beside them, and those without."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from ddrl.report.sections.document import Block, Count, Group, Line, Row, Table, Text
from ddrl.report.sections.numbers import frames, interval, number, p_value, with_unit
from ddrl.report.sections.spans import Inline, code, plain, small, tag
from ddrl.report.sections.tables import cells_of, columns, grouped, right
from ddrl.report.sections.text import counted, listed, sentence, task_name, unbroken, words

ORIGINS = {"run": "this run", "reference": "reference"}
CLAIM_VERDICTS = {  # verdict -> words of a sentence for one and for several, in the order of the report
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
    """Return `Of 5 claims, 2 are supported, 1 is contradicted and 2 have no run.`; empty without any such verdict."""
    found = [row["verdict"] for row in rows]
    parts = []
    for verdict, phrase in verdicts.items():
        if count := found.count(verdict):
            singular, plural = phrase.split("|")
            parts.append(f"{count} {singular if count == 1 else plural}")
    return f"Of {counted(len(rows), noun)}{which}, {listed(parts)}." if parts else ""


def counts(rows: Sequence[Row], verdicts: Iterable[str]) -> tuple[Count, ...]:
    """Return the number of rows of each verdict, in the order of `verdicts`."""
    found = [row["verdict"] for row in rows]
    return tuple(Count(name, f"{found.count(name)} {words(name)}") for name in verdicts if name in found)


def verdict_tag(row: Row) -> Inline:
    """Return the verdict of a row as a tag."""
    return tag(row["verdict"], words(row["verdict"]))


def needed(row: Row) -> str:
    """Return how many seeds would decide; an empty text where the row does not say."""
    return f"needs {counted(int(float(row['seeds_needed'])), 'seed')}" if row.get("seeds_needed") else ""


def flags_of(row: Row) -> list[str]:
    """Return the flags of a row in words, without how far a budget is reduced: the column of frames says that."""
    found = row.get("flags", "").split(";")
    flags = [flag.partition("(")[0] if flag.startswith("reduced_budget") else flag for flag in found]
    return [words(flag).replace("(", " (").replace(",", ", ") for flag in flags if flag]


def cells(rows: list[Row], subject: str) -> tuple[Block, ...]:
    """Return the published cells that have a value of ours, by published item and system, and their protocols."""
    own = [row for row in rows if row["ours"]]
    groups = grouped(own, "item", "system", "published_variant", "metric", "unit").values()
    introduction = Text(
        plain(
            "Each number the paper prints, beside ours. A cell that carries a flag which bars comparison is shown side "
            "by side, without judgement."
        )
    )
    if not groups:
        return (introduction, Text(plain("No published cell has a run beside it at this scale.")))
    table = Table(
        "Published cells beside ours",
        "tables/cells.csv",
        columns(
            ("Task", "1.1fr"),
            *right("Published", "Ours"),
            "90\u00a0% interval",
            *right("Seeds", "Frames"),
            ("Tests and flags", "1.5fr"),
            *right("Verdict"),
        ),
        [_cell_group(group, subject) for group in groups],
        CELL_NOTE,
    )
    return (introduction, table, _protocols([row for group in groups for row in group]))


def _cell_group(rows: list[Row], subject: str) -> Group:
    """Return the rows of one published item and system; what all of them share stands in the note."""
    flags = [flags_of(row) for row in rows]
    points = len({row["published_frames"] for row in rows}) > 1
    shared = [flag for flag in flags[0] if all(flag in other for other in flags)]
    note = filter(None, (_published_note(rows[0], points), f"all rows: {', '.join(shared)}" if shared else ""))
    lines = [
        _cell_row(row, [flag for flag in own if flag not in shared], subject, points)
        for row, own in zip(rows, flags, strict=True)
    ]
    return Group(lines, f"{sentence(rows[0]['item']).removesuffix('.')}: {system_name(rows[0])}", "; ".join(note))


def system_name(row: Row, variant: str = "published_variant") -> str:
    """Return the system and the variant that a published number is of."""
    return ", ".join(filter(None, (row["system"], row[variant])))


def _cell_row(row: Row, flags: list[str], subject: str, points: bool) -> Line:
    """Return one line. Where the cells are several `points` of a curve, each names its frames."""
    at = small(f" at {frames(row['published_frames'])}") if points and row["published_frames"] else ()
    other = small(f" ({ORIGINS[row['origin']]})") if row["origin"] != subject else ()
    equivalence = p_value("equivalence p", row.get("p_equivalence", ""))
    difference = p_value("difference p", row.get("p_difference", ""), row.get("p_holm", ""))
    return cells_of(
        (*plain(task_name(row["task"]) or "All tasks"), *at, *other),
        number(row["published"]),
        number(row["ours"]),
        interval(row["ci90_low"], row["ci90_high"]) if row["ci90_low"] else "–",
        number(row["seeds"]),
        frames(row["env_frames"]),
        small("; ".join(filter(None, (equivalence, difference, *flags, needed(row))))),
        verdict_tag(row),
    )


def _published_note(row: Row, points: bool) -> str:
    parts = [
        words(row["metric"]) + (f" ({row['unit']})" if row["unit"] else ""),
        words(row["published_statistic"]),
        counted(int(float(row["published_seeds"])), "seed") if row["published_seeds"] else "number of seeds unknown",
        f"{frames(row['published_frames'])} frames" if row["published_frames"] and not points else "",
    ]
    return "; ".join(filter(None, parts))


def _protocols(rows: Iterable[Row]) -> Table:
    """Return the protocols that the published and our own numbers were measured with, where the tables say."""
    items: dict[tuple[str, str], dict[str, None]] = {}
    for row in rows:
        published = row.get("protocol_published", "").replace(";", "; ")
        # The environment's name is the task, which the cell names already.
        ours = {re.sub(r"/[^;]*", "", each, count=1) for each in row.get("protocol_ours", "").split(" | ")}
        if published or any(ours):
            sides = (published or "not stated", "\n".join(sorted(ours)).replace(";", "; "))
            items.setdefault(sides, {})[row["item"]] = None
    lines = [
        cells_of(unbroken(", ".join(names)), small(published), code(ours)) for (published, ours), names in items.items()
    ]
    stated = columns(("Item", "0.6fr"), ("Published", "1.2fr"), ("Ours", "1.3fr"))
    return Table("What was measured", "tables/cells.csv", stated, [Group(lines)], size=8.2)


def not_read(paper: dict[str, Any]) -> Table:
    """Return what the paper prints but could not be read, so that there is no published value."""
    lines = [
        cells_of(unbroken(row["item"]), row["what"], tag("not_run", "no published value")) for row in paper["not_read"]
    ]
    stated = columns("Item", ("What it shows", "1fr"), *right("Published"))
    return Table("What the paper prints and could not be read", "tables/summary.json", stated, [Group(lines)])


def uncovered(rows: list[Row], subject: str) -> Table:
    """Return the published cells without a value of ours, by published item and system."""
    items: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        if not row["ours"] and row["origin"] == subject:
            metric = "" if row["metric"] in ("episode_return", "throughput") else f" {words(row['metric'])}"
            at = f" at {frames(row['published_frames'])}" if row["published_frames"] else ""
            value = with_unit(row["published"], row["unit"])
            text = f"{task_name(row['task'])}{metric} {value}{at}".replace(" ", "\u00a0")
            items.setdefault(row["item"], {}).setdefault(system_name(row), []).append(text)
    groups = [
        Group([cells_of(name, small(", ".join(found))) for name, found in systems.items()], item)
        for item, systems in sorted(items.items())
    ]
    stated = columns(("System", "1fr"), ("Published", "3.2fr"))
    note = "After “at”: the frames that a number was reached with, where they are stated."
    return Table("Published cells without a value of ours", "tables/cells.csv", stated, groups, note)
