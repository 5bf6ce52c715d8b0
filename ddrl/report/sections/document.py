"""The parts of a report: a first page, and sections of paragraphs, facts, tables and figures, all as text.

The PDF (`reports/template.typ`) and the HTML page (`reports/report.html.j2`) are both made from `as_json`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import compress
from typing import Any, Generic, TypeVar

from ddrl.report.sections.spans import Inline

NOTHING = "–"
"""Text of a cell that has nothing to say."""
Row = dict[str, str]
"""One line of a table of results, as `ddrl.system.csv_cells.read_rows` reads it."""
Tables = dict[str, list[Row]]
"""Tables of results by name."""
Item = TypeVar("Item")


@dataclass(frozen=True)
class Cell:
    """A cell of a table. With `rowspan` > 1 it is that many rows high, and the rows below it leave this column out."""

    spans: Inline
    rowspan: int = 1


Line = tuple[Cell, ...]
"""The cells of one row of a table."""


@dataclass(frozen=True)
class Field(Generic[Item]):
    """A column of a table: title, text of an item (mostly a row of results), width, alignment (left, right)."""

    title: str
    text: Callable[[Item], str | Inline | Cell | None]
    """None where a cell of a line above reaches down here. Not part of the report data."""
    width: str = "auto"
    """`auto`, or a share such as `1.2fr`."""
    align: str = "left"


@dataclass(frozen=True)
class Group(Generic[Item]):
    """Rows of a table under a common heading; without a title there is no heading."""

    rows: Sequence[Item]
    title: str = ""
    note: str = ""


@dataclass(frozen=True)
class Table:
    """A table with its caption; `source` names the files of its numbers. The first column is the row heading."""

    caption: str
    source: str
    columns: Sequence[Field[Any]]
    groups: Sequence[Group[Line]]
    note: str = ""
    size: float = 8.8
    ruled: bool = False
    number: int = 0
    type: str = field(default="table", init=False)


@dataclass(frozen=True)
class Drawing:
    """A drawing, `path` relative to the folder of results; `note` states budget and seeds.

    `source` names the files of its numbers, `script` the file that draws it, relative to the project.
    """

    path: str
    title: str
    caption: str
    alt: str
    note: str
    source: str
    script: str
    number: int = 0
    type: str = field(default="figure", init=False)


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    spans: Inline
    type: str = field(default="text", init=False)


@dataclass(frozen=True)
class Fact:
    """A label and its value; `code` sets the value as code."""

    label: str
    value: str
    code: bool = False


@dataclass(frozen=True)
class Facts:
    """A list of facts."""

    rows: Sequence[Fact]
    type: str = field(default="facts", init=False)


Block = Table | Drawing | Text | Facts


@dataclass(frozen=True)
class Section:
    """A heading and what follows it; a `wide` section is set on pages in landscape format.

    The sections of the `appendix` come last, and what they hold is also in the files of the results.
    """

    id: str
    title: str
    blocks: Sequence[Block]
    wide: bool = False
    appendix: bool = False


@dataclass(frozen=True)
class Plot:
    """An effect with its interval, and the lines beyond which it counts; `text` says the same in numbers.

    All are places from 0 (against the claim) to 1 (for it).
    """

    effect: float
    low: float
    high: float
    below: float
    above: float
    text: str


@dataclass(frozen=True)
class Answer:
    """The line of a claim on the first page, or of all without a run; without an effect there is no plot."""

    verdict: str
    said: str
    title: str
    plot: Plot | None
    seeds: str
    origin: str
    """Whose runs these are, where not the subject's, and whether the test is younger than some of them."""
    tasks: str
    every_task: str


@dataclass(frozen=True)
class Answers:
    """The lines of all claims of a paper; without a title there is no heading."""

    rows: Sequence[Answer]
    title: str = ""


@dataclass(frozen=True)
class Count:
    """The number of verdicts of one kind, as text: `2 supported`."""

    kind: str
    text: str


@dataclass(frozen=True)
class VerdictCounts:
    """The verdicts on one kind of statement."""

    label: str
    counts: tuple[Count, ...]


@dataclass(frozen=True)
class Origin:
    """The folder and the digest of the tables, and the command that made them; printed at the foot of each page."""

    results: str
    digest: str
    command: str


@dataclass(frozen=True)
class Document:
    """A whole report. `finished` (ISO 8601) is when its results were made, so that a rebuild gives the same bytes."""

    kind: str
    above: str
    title: str
    short_title: str
    byline: Inline
    summary: str
    scale: str
    date: str
    finished: str
    facts: tuple[Fact, ...]
    answer: str
    after_runs: str
    """How many of the claims that are decided have a test that is younger than runs: `3 of 13`."""
    answers: Sequence[Answers]
    effects: str
    """What the plots of the answers show."""
    verdict: str
    tallies: tuple[VerdictCounts, ...]
    sections: Sequence[Section]
    origin: Origin


def as_json(document: Document) -> dict[str, Any]:
    """Return plain data, the appendix last, without columns and tables that hold nothing and sections without a block.

    Tables and figures are numbered.
    """
    counts = {Table: 0, Drawing: 0}
    sections = []
    for section in sorted(document.sections, key=lambda section: section.appendix):
        blocks: list[Block] = []
        for block in section.blocks:
            if isinstance(block, Table):
                if not any(group.rows for group in block.groups):
                    continue
                block = _without_empty_columns(block)
            if isinstance(block, Table | Drawing):
                counts[type(block)] += 1
                block = replace(block, number=counts[type(block)])
            blocks.append(block)
        if blocks:
            sections.append(replace(section, blocks=blocks))
    return asdict(replace(document, sections=sections), dict_factory=_data)


def _without_empty_columns(table: Table) -> Table:
    """Return the table without the columns in which no row says anything; as it is where cells span rows."""
    rows = [row for group in table.groups for row in group.rows]
    if any(cell.rowspan > 1 for row in rows for cell in row):
        return table
    said = [any(_says(row[place]) for row in rows) for place in range(len(table.columns))]
    groups = [replace(group, rows=[tuple(compress(row, said)) for row in group.rows]) for group in table.groups]
    return replace(table, columns=[*compress(table.columns, said)], groups=groups)


def _says(cell: Cell) -> bool:
    return any(span.text not in ("", NOTHING) for span in cell.spans)


def _data(items: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in items if not callable(value)}
