"""Helpers that build the tables of a report: fields, lines, and groups of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ddrl.report.sections.document import Cell, Field, Group, Item, Line, Row, Table
from ddrl.report.sections.spans import Inline, plain

Fields = tuple[Field[Item], ...]
"""All columns of a table."""


def right(title: str, text: Callable[[Item], str | Inline]) -> Field[Item]:
    """Return a right-aligned field, as wide as its texts."""
    return Field(title, text, "auto", "right")


def numeric(title: str, name: str, form: Callable[[str], str | Inline] = str) -> Field[Row]:
    """Return a right-aligned field: the column `name` of the rows, formatted by `form`."""
    return right(title, lambda row: form(row[name]))


def table_of(
    caption: str,
    source: str,
    fields: Fields[Item],
    groups: Iterable[Group[Item]],
    note: str = "",
    *,
    size: float = 8.8,
    ruled: bool = False,
) -> Table:
    """Return a table with a line for each item of each group."""
    lines = [Group([_line(fields, item) for item in group.rows], group.title, group.note) for group in groups]
    return Table(caption, source, fields, lines, note, size, ruled)


def _line(fields: Fields[Item], item: Item) -> Line:
    contents = (field.text(item) for field in fields)
    texts = (plain(content) if isinstance(content, str) else content for content in contents if content is not None)
    return tuple(text if isinstance(text, Cell) else Cell(text) for text in texts)


def of_origin(rows: Iterable[Row], origin: str) -> list[Row]:
    """Return the rows of this origin."""
    return [row for row in rows if row["origin"] == origin]


def grouped(rows: Iterable[Row], *names: str) -> dict[tuple[str, ...], list[Row]]:
    """Return the rows by their values in the columns `names`, in the order in which these values first occur."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    return groups


def by_experiment(rows: Iterable[Row], experiments: dict[str, Any]) -> list[Group[Row]]:
    """Return one group of rows for each experiment, under its title."""
    return [Group(own, experiments[name]["title"]) for (name,), own in grouped(rows, "experiment").items()]


def merged(groups: Iterable[Group[Row]], *names: str) -> list[Group[list[Row]]]:
    """Return the same groups with one item for all rows that have the same values in the columns `names`."""
    return [Group([*grouped(group.rows, *names).values()], group.title, group.note) for group in groups]
