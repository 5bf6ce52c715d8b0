"""Text in CSV files, such that no program that opens them takes a cell for a formula (OWASP, "CSV injection").

A text cell that begins with `=`, `+`, `-`, `@`, a tabulator, a line break, or with a blank before one of these, gets an
apostrophe in front, which spreadsheets take as "this is text". So does one that begins with an apostrophe, so that
`plain` can take one off again, and nothing is lost. Numbers stay as they are, minus sign and all.
All CSV that this package writes passes through here; what it reads again of that passes through `read_rows`.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from ddrl.system.files import read_file

if TYPE_CHECKING:
    import pandas as pd

MARK = "'"
_FORMULA = re.compile(r"\s*[=+\-@\t\r\n'＝＋－＠]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|nan)")


def cell(value: Any) -> Any:
    """Return what stands in a CSV file for a value: a text that could be taken for a formula, marked; else as it is."""
    if isinstance(value, str) and _FORMULA.match(value) and not _NUMBER.fullmatch(value):
        return MARK + value
    return value


def plain(text: str) -> str:
    """Return the text that `cell` was given."""
    return text[len(MARK) :] if text.startswith(MARK) else text


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file that this package has written, by column."""
    return [
        {plain(column): plain(value) if isinstance(value, str) else value for column, value in row.items()}
        for row in csv.DictReader(StringIO(read_file(path).decode(), newline=""))
    ]


def write_rows(file: IO[str], columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a header and rows, each as soon as it is there; what a row does not have is an empty cell."""
    _write(file, columns)
    for row in rows:
        _write(file, [row.get(column, "") for column in columns])


def table_as_csv(table: pd.DataFrame) -> str:
    """Return a table with its header and without its index; an empty cell is a missing value."""
    safe = table.copy()
    texts: list[Any] = list(table.columns)
    for place, kind in enumerate(table.dtypes):
        if not _is_number(kind):
            texts += list(table.iloc[:, place])
            safe.isetitem(place, table.iloc[:, place].map(cell, na_action="ignore").array)
    safe.columns = [cell(column) for column in table.columns]
    text: str = safe.to_csv(index=False, lineterminator="\n", quoting=_quoting(texts))
    return text


def _write(file: IO[str], values: Sequence[Any]) -> None:
    csv.writer(file, lineterminator="\n", quoting=_quoting(values)).writerow(map(cell, values))
    file.flush()


def _quoting(values: Iterable[Any]) -> Literal[0, 2]:
    """Return how to quote: `csv` leaves a carriage return bare, and what follows it would begin a row of its own."""
    bare = any(isinstance(value, str) and "\r" in value for value in values)
    return csv.QUOTE_NONNUMERIC if bare else csv.QUOTE_MINIMAL


def _is_number(kind: Any) -> bool:
    """Whether a column of this type holds no texts."""
    return getattr(kind, "kind", "O") in "iufb"
