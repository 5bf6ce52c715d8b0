"""CSV files whose cells no spreadsheet takes for a formula (OWASP, "CSV injection").

A text cell that begins with `=`, `+`, `-`, `@`, a tab, a line break, or with a blank before one of these, gets an
apostrophe in front, which spreadsheets read as "this is text". So does a cell that begins with an apostrophe, so that
`plain` can undo the change. Numbers are not changed. All CSV files of this package are written by this module.
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
    """Return the CSV cell for a value: `value`, with an apostrophe in front if it looks like a formula."""
    if isinstance(value, str) and _FORMULA.match(value) and not _NUMBER.fullmatch(value):
        return MARK + value
    return value


def plain(text: str) -> str:
    """Undo `cell`."""
    return text[len(MARK) :] if text.startswith(MARK) else text


def read_rows(path: Path) -> list[dict[str, str]]:
    """Read the rows, each a dict by column, of a CSV file that this package has written."""
    return [
        {plain(column): plain(value) if isinstance(value, str) else value for column, value in row.items()}
        for row in csv.DictReader(StringIO(read_file(path).decode(), newline=""))
    ]


def write_rows(file: IO[str], columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a header and rows, each as soon as `rows` yields it; missing values become empty cells."""
    _write(file, columns)
    for row in rows:
        _write(file, [row.get(column, "") for column in columns])


def table_as_csv(table: pd.DataFrame) -> str:
    """Return a table as CSV text with a header and without the index; missing values become empty cells."""
    safe = table.copy()
    texts: list[Any] = list(table.columns)
    for place, kind in enumerate(table.dtypes):
        if getattr(kind, "kind", "O") not in "iufb":  # not a column of numbers
            texts += list(table.iloc[:, place])
            safe.isetitem(place, table.iloc[:, place].map(cell, na_action="ignore").array)
    safe.columns = [cell(column) for column in table.columns]
    text: str = safe.to_csv(index=False, lineterminator="\n", quoting=_quoting(texts))
    return text


def _write(file: IO[str], values: Sequence[Any]) -> None:
    csv.writer(file, lineterminator="\n", quoting=_quoting(values)).writerow(map(cell, values))
    file.flush()


def _quoting(values: Iterable[Any]) -> Literal[0, 2]:
    """Return how to quote: `csv` does not quote a carriage return by itself, and readers would begin a new row."""
    bare = any(isinstance(value, str) and "\r" in value for value in values)
    return csv.QUOTE_NONNUMERIC if bare else csv.QUOTE_MINIMAL
