"""What a report is made of: a first page, and sections of paragraphs, facts, tables and figures, every one as text.

`as_json` is the one source of both the PDF (`reports/template.typ`) and the HTML (`reports/report.html.j2`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

Row = dict[str, str]
"""One line of a table of results, as `ddrl.system.csv_cells.read_rows` reads it."""
Tables = dict[str, list[Row]]
"""Tables of results by name."""


@dataclass(frozen=True)
class Span:
    """A piece of text; `kind` is the verdict of a tag.

    Styles: none (empty), strong, emphasis, small, code, key, link, tag, break.
    """

    text: str
    style: str = ""
    kind: str = ""


Inline = tuple[Span, ...]
BREAK = Span("", "break")


@dataclass(frozen=True)
class Cell:
    """A cell of a table; `rowspan` rows high, those below it leave it out."""

    spans: Inline
    rowspan: int = 1


@dataclass(frozen=True)
class Column:
    """A column: title, width (`auto`, or a share such as `1.2fr`), alignment (left, right)."""

    title: str
    width: str = "auto"
    align: str = "left"


@dataclass(frozen=True)
class Group:
    """Rows of a table under a common heading; one without a title has none."""

    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""
    note: str = ""


@dataclass(frozen=True)
class Table:
    """A table with its caption; `source` names the file its numbers stand in. The first column heads its row."""

    caption: str
    source: str
    columns: tuple[Column, ...]
    groups: tuple[Group, ...]
    note: str = ""
    size: float = 8.8
    ruled: bool = False
    number: int = 0
    type: str = field(default="table", init=False)


@dataclass(frozen=True)
class Figure:
    """A drawing, `path` relative to the folder of results; `note` states budget and seeds."""

    path: str
    title: str
    caption: str
    alt: str
    note: str
    source: str
    number: int = 0
    type: str = field(default="figure", init=False)


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    spans: Inline
    type: str = field(default="text", init=False)


@dataclass(frozen=True)
class Fact:
    """A label and what stands beside it."""

    label: str
    value: str
    code: bool = False


@dataclass(frozen=True)
class Facts:
    """Facts, one below the other."""

    rows: tuple[Fact, ...]
    type: str = field(default="facts", init=False)


Block = Table | Figure | Text | Facts


@dataclass(frozen=True)
class Section:
    """A heading and what follows it; a `wide` one is set on pages turned sideways."""

    id: str
    title: str
    blocks: tuple[Block, ...]
    wide: bool = False


@dataclass(frozen=True)
class Count:
    """How many of a kind: `2 supported`."""

    kind: str
    text: str


@dataclass(frozen=True)
class Tally:
    """The verdicts on one kind of statement."""

    label: str
    counts: tuple[Count, ...]


@dataclass(frozen=True)
class Origin:
    """Where every number comes from; printed at the foot of each page."""

    results: str
    digest: str
    command: str


@dataclass(frozen=True)
class Document:
    """A whole report. `finished` (ISO 8601) is when its results were made: a rebuild gives the same bytes."""

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
    verdict: str
    tallies: tuple[Tally, ...]
    sections: tuple[Section, ...]
    origin: Origin


def as_json(document: Document) -> dict[str, Any]:
    """Plain data; tables without a row and sections without a block are left out, the rest gets its numbers."""
    counts = {Table: 0, Figure: 0}

    def numbered(block: Block) -> Block:
        if isinstance(block, Table | Figure):
            counts[type(block)] += 1
            return replace(block, number=counts[type(block)])
        return block

    filled = [replace(section, blocks=tuple(filter(_says_something, section.blocks))) for section in document.sections]
    sections = [section for section in filled if section.blocks]
    sections = [replace(section, blocks=tuple(map(numbered, section.blocks))) for section in sections]
    return asdict(replace(document, sections=tuple(sections)))


def _says_something(block: Block) -> bool:
    return not isinstance(block, Table) or any(group.rows for group in block.groups)


def plain(text: str) -> Inline:
    """Text as it is; nothing where it is empty."""
    return (Span(text),) if text else ()


def strong(text: str) -> Inline:
    """Semibold text."""
    return (Span(text, "strong"),) if text else ()


def small(text: str) -> Inline:
    """Smaller, grey text."""
    return (Span(text, "small"),) if text else ()


def code(text: str) -> Inline:
    """Text of a machine."""
    return (Span(text, "code"),) if text else ()


def tag(kind: str, text: str) -> Inline:
    """A verdict, on its colour."""
    return (Span(text, "tag", kind),)


def joined(parts: Iterable[Inline], between: Inline = (BREAK,)) -> Inline:
    """The parts that are not empty, `between` them."""
    found: list[Span] = []
    for part in parts:
        if part:
            found += [*(between if found else ()), *part]
    return tuple(found)


def cell(content: str | Inline, rowspan: int = 1) -> Cell:
    """A cell of plain text, or of spans."""
    return Cell(plain(content) if isinstance(content, str) else content, rowspan)


def cells_of(*contents: str | Inline) -> tuple[Cell, ...]:
    """A row of a table."""
    return tuple(cell(content) for content in contents)


def columns(*stated: str | Sequence[str]) -> tuple[Column, ...]:
    """Columns from `title` or (title, width[, align])."""
    return tuple(Column(each) if isinstance(each, str) else Column(*each) for each in stated)
