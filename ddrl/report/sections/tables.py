"""Helpers that build the tables of a report: cells, lines, columns and groups of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ddrl.report.sections.document import Cell, Column, Group, Line, Row
from ddrl.report.sections.spans import Inline, plain


@dataclass(frozen=True)
class Field:
    """A column of a table whose lines are rows of results: its title, the text of a row in it, width, alignment."""

    title: str
    text: Callable[[Row], str | Inline]
    width: str = "auto"
    align: str = "left"


def numeric(title: str, name: str, form: Callable[[str], str | Inline] = str) -> Field:
    """Return a right-aligned field: the column `name` of the rows, formatted by `form`."""
    return Field(title, lambda row: form(row[name]), "auto", "right")


def titles(fields: Iterable[Field]) -> tuple[Column, ...]:
    """Return the columns of these fields."""
    return tuple(Column(field.title, field.width, field.align) for field in fields)


def lines_of(fields: Sequence[Field], rows: Iterable[Row]) -> list[Line]:
    """Return the fields of each row as a line of a table."""
    return [cells_of(*(field.text(row) for field in fields)) for row in rows]


def cell(content: str | Inline, rowspan: int = 1) -> Cell:
    """Return a cell of plain text, or of spans."""
    return Cell(plain(content) if isinstance(content, str) else content, rowspan)


def cells_of(*contents: str | Inline) -> Line:
    """Return a row of a table."""
    return tuple(map(cell, contents))


def columns(*stated: str | Sequence[str]) -> tuple[Column, ...]:
    """Return columns from `title` or (title, width[, align])."""
    return tuple(Column(each) if isinstance(each, str) else Column(*each) for each in stated)


def right(*titles: str) -> list[tuple[str, str, str]]:
    """Return columns of numbers for `columns`: right-aligned, as wide as their texts."""
    return [(title, "auto", "right") for title in titles]


def grouped(rows: Iterable[Row], *names: str) -> dict[tuple[str, ...], list[Row]]:
    """Return the rows by their values in the columns `names`, in the order in which these values first occur."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    return groups


def by_experiment(rows: Iterable[Row], experiments: dict[str, Any], fields: Sequence[Field]) -> list[Group]:
    """Return one group for each experiment, under its title, with a line for each row."""
    found = grouped(rows, "experiment")
    return [Group(lines_of(fields, own), experiments[name]["title"]) for (name,), own in found.items()]
