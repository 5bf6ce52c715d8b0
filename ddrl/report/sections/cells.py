"""Sections about published cells: those with a value of ours beside them, and those without."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from ddrl.report.sections.document import Block, Field, Group, Row, Table, Text
from ddrl.report.sections.numbers import frames, interval, number, p_value, with_unit
from ddrl.report.sections.spans import Inline, code, plain, small, tag
from ddrl.report.sections.tables import Fields, grouped, merged, numeric, of_origin, right, table_of
from ddrl.report.sections.text import counted, sentence, task_name, unbroken, words

ORIGINS = {"run": "this run", "reference": "reference"}
MEANINGS = {
    "equivalent": "Equivalent: our interval lies within the margin of the paper’s file.",
    "consistent": "Consistent: the published value lies in our 95\u00a0% prediction interval, no evidence of equality.",
    "below": "Below: our interval lies under the margin.",
    "above": "Above: our interval lies over the margin.",
    "inconclusive": "Inconclusive: too few seeds to say.",
    "not_comparable": "Not comparable: a flag forbids the comparison.",
}
"""What a verdict on a cell means; a table explains those that it has."""
INTERVALS = "Intervals are 90\u00a0% over seeds."
PUBLISHED_INTERVALS = "Behind a published mean whose seeds or their deviation are printed: its 95\u00a0% interval."
TESTS = (
    "Tests: p of equivalence is the larger of two one-sided tests, that of difference is two-sided, in brackets after "
    "Holm's correction for all cells of the same item and system."
)


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


def system_name(row: Row, variant: str = "published_variant") -> str:
    """Return the system and the variant that a published number is of."""
    return ", ".join(filter(None, (row["system"], row[variant])))


def cells(rows: list[Row], subject: str) -> tuple[Block, ...]:
    """Return the published cells that have a value of ours, by published item and system, and their protocols."""
    own = [row for row in rows if row["ours"]]
    introduction = Text(
        plain(
            "Each number the paper prints, beside ours. A cell that carries a flag which bars comparison is shown side "
            "by side, without judgement."
        )
    )
    if not own:
        return (introduction, Text(plain("No published cell has a run beside it at this scale.")))
    fields: Fields[Row] = (
        Field("Task", lambda row: _task(row, subject), "1.1fr"),
        right("Published", _published),
        numeric("Ours", "ours", number),
        Field(
            "90\u00a0% interval", lambda row: interval(row["ci90_low"], row["ci90_high"]) if row["ci90_low"] else "–"
        ),
        numeric("Seeds", "seeds", number),
        numeric("Frames", "env_frames", frames),
        Field("Tests and flags", _tests, "1.5fr"),
        right("Verdict", verdict_tag),
    )
    groups = [
        _cell_group(same) for same in grouped(own, "item", "system", "published_variant", "metric", "unit").values()
    ]
    return (introduction, table_of("Published cells beside ours", "tables/cells.csv", fields, groups, _legend(own)))


def _legend(rows: list[Row]) -> str:
    """Return what the intervals, verdicts and tests of a table are, of those that it has."""
    verdicts = {row["verdict"] for row in rows}
    said = [
        INTERVALS if any(row["ci90_low"] for row in rows) else "",
        PUBLISHED_INTERVALS if any(row.get("published_ci95_low") for row in rows) else "",
        *(meaning for verdict, meaning in MEANINGS.items() if verdict in verdicts),
        TESTS if any(row.get("p_equivalence") or row.get("p_difference") for row in rows) else "",
    ]
    return " ".join(filter(None, said))


def _cell_group(rows: list[Row]) -> Group[Row]:
    """Return the rows of one published item and system; what all of them share stands in the note.

    Each row gets the columns `own_flags`, those that not all rows have, and `at`: its frames, where the cells are
    several points of a curve.
    """
    flags = [flags_of(row) for row in rows]
    points = len({row["published_frames"] for row in rows}) > 1
    shared = [flag for flag in flags[0] if all(flag in other for other in flags)]
    note = filter(None, (_published_note(rows[0], points), f"all rows: {', '.join(shared)}" if shared else ""))
    lines = [
        row
        | {"own_flags": "; ".join(flag for flag in own if flag not in shared)}
        | {"at": row["published_frames"] if points else ""}
        for row, own in zip(rows, flags, strict=True)
    ]
    return Group(lines, f"{sentence(rows[0]['item']).removesuffix('.')}: {system_name(rows[0])}", "; ".join(note))


def _task(row: Row, subject: str) -> Inline:
    at = small(f" at {frames(row['at'])}") if row["at"] else ()
    other = small(f" ({ORIGINS[row['origin']]})") if row["origin"] != subject else ()
    return (*plain(task_name(row["task"]) or "All tasks"), *at, *other)


def _published(row: Row) -> Inline:
    """Return the published number; with its interval where its seeds' deviation is printed."""
    low, high = row.get("published_ci95_low", ""), row.get("published_ci95_high", "")
    return (*plain(number(row["published"])), *(small(f" {interval(low, high)}") if low else ()))


def _tests(row: Row) -> Inline:
    equivalence = p_value("equivalence p", row.get("p_equivalence", ""))
    difference = p_value("difference p", row.get("p_difference", ""), row.get("p_holm", ""))
    return small("; ".join(filter(None, (equivalence, difference, row["own_flags"], row.get("late", ""), needed(row)))))


def _published_note(row: Row, points: bool) -> str:
    parts = [
        words(row["metric"]) + (f" ({row['unit']})" if row["unit"] else ""),
        words(row["published_statistic"]),
        counted(int(float(row["published_seeds"])), "seed") if row["published_seeds"] else "number of seeds unknown",
        f"{frames(row['published_frames'])} frames" if row["published_frames"] and not points else "",
    ]
    return "; ".join(filter(None, parts))


def protocols(rows: Iterable[Row]) -> Table:
    """Return the protocols that the published and our own numbers were measured with, where the tables say."""
    found = []
    for row in (row for row in rows if row["ours"]):
        published = row.get("protocol_published", "").replace(";", "; ")
        # The environment's name is the task, which the cell names already.
        ids = {re.sub(r"/[^;]*", "", each, count=1) for each in row.get("protocol_ours", "").split(" | ")}
        ours = "\n".join(sorted(ids)).replace(";", "; ")
        if published or ours:
            found.append({"item": row["item"], "published": published or "not stated", "ours": ours})
    fields: Fields[list[Row]] = (
        Field("Item", lambda same: unbroken(", ".join(dict.fromkeys(row["item"] for row in same))), "0.6fr"),
        Field("Published", lambda same: small(same[0]["published"]), "1.2fr"),
        Field("Ours", lambda same: code(same[0]["ours"]), "1.3fr"),
    )
    groups = merged([Group(found)], "published", "ours")
    return table_of("What was measured", "tables/cells.csv", fields, groups, size=8.2)


def not_read(paper: dict[str, Any]) -> Table:
    """Return what the paper prints but could not be read, so that there is no published value."""
    fields: Fields[Row] = (
        Field("Item", lambda row: unbroken(row["item"])),
        Field("What it shows", lambda row: row["what"], "1fr"),
        right("Published", lambda row: tag("not_run", "no published value")),
    )
    groups = [Group(paper["not_read"])]
    return table_of("What the paper prints and could not be read", "tables/summary.json", fields, groups)


def uncovered(rows: list[Row], subject: str) -> Table:
    """Return the published cells without a value of ours, by published item and system."""
    own = [row for row in of_origin(rows, subject) if not row["ours"]]
    fields: Fields[list[Row]] = (
        Field("System", lambda same: system_name(same[0]), "1fr"),
        Field("Published", lambda same: small(", ".join(map(_published_value, same))), "3.2fr"),
    )
    items = [Group(found, item) for (item,), found in sorted(grouped(own, "item").items())]
    note = "After “at”: the frames that a number was reached with, where they are stated."
    groups = merged(items, "system", "published_variant")
    return table_of("Published cells without a value of ours", "tables/cells.csv", fields, groups, note)


def _published_value(row: Row) -> str:
    metric = "" if row["metric"] in ("episode_return", "throughput") else f" {words(row['metric'])}"
    at = f" at {frames(row['published_frames'])}" if row["published_frames"] else ""
    value = with_unit(row["published"], row["unit"])
    return f"{task_name(row['task'])}{metric} {value}{at}".replace(" ", "\u00a0")
