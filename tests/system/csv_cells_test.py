"""CSV files hold no cell that a spreadsheet takes for a formula, and are read back as they were."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ddrl.analysis.tables.build import write_table
from ddrl.cli import tables
from ddrl.system.csv_cells import cell, plain, read_rows, table_as_csv, write_rows

ROOT = Path(__file__).resolve().parents[2]
FORMULAS = [
    "=1+1",
    '=HYPERLINK("http://x","y")',
    "@SUM(A1)",
    "+cmd|' /C calc'!A0",
    "-2+3",
    "-",
    "\t=1",
    "\r=1",
    "\n=1",
    " =1",
    "＝1",
    "-1; =1",
    "'=1",
    "'quoted'",
    "-inf-1",
    "x\r=1",
]
NUMBERS = ["-1", "+2.5", "-1e-4", "-.5", "-inf", "nan", "3"]
TEXTS = ["", "toy/catch", "a=b", "1-2", "ε-correction", "a, b", 'a "b"', "a\nb", "[-1, 3]"]


@pytest.mark.parametrize("text", FORMULAS[:-1])
def test_a_text_that_could_be_a_formula_is_marked(text: str) -> None:
    assert cell(text) == f"'{text}"


@pytest.mark.parametrize("value", [*NUMBERS, *TEXTS, -1, -1.5, None, float("-inf"), np.int64(-3), True])
def test_numbers_and_other_texts_stay_as_they_are(value: object) -> None:
    assert cell(value) is value


@pytest.mark.parametrize("text", [*FORMULAS, *NUMBERS, *TEXTS, "''", "'"])
def test_what_was_marked_is_read_back_as_it_was(text: str) -> None:
    assert plain(cell(text)) == text


def table() -> pd.DataFrame:
    """Texts of three types, names of columns, numbers and what is missing."""
    return pd.DataFrame(
        {
            "text": pd.Series([*FORMULAS, None], dtype="string"),
            "object": [*FORMULAS, None],
            "kind": pd.Categorical([*FORMULAS, None]),
            "=cmd": np.linspace(-1, 1, len(FORMULAS) + 1),
            "count": pd.array([*range(-len(FORMULAS), 0), None], dtype="Int64"),
            "flag": [True] * (len(FORMULAS) + 1),
        }
    )


def test_no_cell_and_no_name_of_a_table_begins_as_a_formula_and_reading_loses_nothing(tmp_path: Path) -> None:
    parquet, comma = write_table(table(), tmp_path, "runs")
    with comma.open(newline="", encoding="utf-8") as file:
        for value in (value for row in csv.reader(file) for value in row):
            assert not re.match(r"\s*[=@＝]|\s*[+-](?![\d.]+(e|$))", value), value
    rows = read_rows(comma)
    assert [row["text"] for row in rows] == [*FORMULAS, ""]
    assert [row["object"] for row in rows] == [*FORMULAS, ""]
    assert [row["kind"] for row in rows] == [*FORMULAS, ""]
    assert [float(row["=cmd"]) for row in rows] == list(table()["=cmd"])
    assert rows[0]["count"] == str(-len(FORMULAS)) and rows[-1]["count"] == ""
    assert list(pd.read_parquet(parquet)["text"][:-1]) == FORMULAS  # tables that programs read hold them unmarked


def test_a_table_without_such_cells_has_the_bytes_it_had() -> None:
    plain_table = pd.DataFrame({"a": ["x", None, "1-2"], "b": [-1.5, np.nan, 1e-7], "c": [None, True, "-3"]})
    assert table_as_csv(plain_table) == plain_table.to_csv(index=False, lineterminator="\n")


def test_ledgers_print_marked_cells() -> None:
    printed = tables.machine_readable(pd.DataFrame({"text": ["=1+1"], "value": [-1.0]}), "csv")
    assert printed == "text,value\n'=1+1,-1.0"


def test_rows_are_written_marked_and_missing_cells_are_empty(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        write_rows(file, ["a", "b"], [{"a": "@x", "b": -1}, {"a": "y"}, {"a": "x\r=1", "b": 2}])
    assert path.read_bytes() == b'a,b\n\'@x,-1\ny,\n"x\r=1",2\n'
    assert read_rows(path) == [{"a": "@x", "b": "-1"}, {"a": "y", "b": ""}, {"a": "x\r=1", "b": "2"}]


def test_csv_is_written_in_one_place() -> None:
    files = [path for folder in ("ddrl", "replications", "workflows") for path in (ROOT / folder).rglob("*")]
    writes = re.compile(r"\.to_csv\(|csv\.(writer|DictWriter)\b")
    found = [path.name for path in files if path.suffix in (".py", ".smk") and writes.search(path.read_text("utf-8"))]
    assert found == ["csv_cells.py"]
