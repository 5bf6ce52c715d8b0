"""Published cells and reference scores: tidy CSV files, typed and checked; a cell without a source is refused.

Cells stand in `replications/<paper>/published/`, random and human scores once for all papers in
`replications/references/`.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pandas as pd

from ddrl.errors import UserError, unknown_name
from ddrl.papers.paper import Paper
from ddrl.papers.schema import schema
from ddrl.system.files import read_file

_NAME = re.compile(r"[a-z0-9][a-z0-9_.]*")
_TASK = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_DTYPES = {
    "name": "string",
    "task": "string",
    "text": "string",
    "choice": "string",
    "number": "float64",
    "count": "Int64",
    "flag": "bool",
}


def load_published(directory: Path) -> pd.DataFrame:
    """Every cell of `directory/published`, one row each; columns as in `workflows/schemas/published.schema.yaml`.

    Raises: UserError naming file, row and column for a cell without source, an unknown column or a bad value.
    """
    files = sorted((directory / "published").glob("*.csv"))
    if not files:
        raise UserError(f"{directory / 'published'}: holds no published cells")
    tables = [_load(path, "cells") for path in files]
    for path, table in zip(files, tables, strict=True):
        silent = table["digitised"] & (table["notes"] == "")
        if silent.any():
            row = int(silent.to_numpy().argmax()) + 2
            raise UserError(f"{path}: row {row}, column 'notes': a digitised value must say how large its error is")
    cells = pd.concat(tables, ignore_index=True)
    twice = cells["cell"][cells["cell"].duplicated()]
    if len(twice):
        raise UserError(f"{directory / 'published'}: cell '{twice.iloc[0]}' is given twice")
    return cells


def matching(published: pd.DataFrame, wanted: Mapping[str, str]) -> pd.DataFrame:
    """The rows that equal `wanted` in every one of its columns."""
    chosen = pd.Series(True, index=published.index)
    for column, value in wanted.items():
        chosen &= (published[column] == value).fillna(False).astype(bool)
    return published[chosen]


def load_references(paper: Paper) -> pd.DataFrame:
    """Random and human score of each environment: environment, task, random, human (may be missing), source.

    Of the variants a rule names, a later one overrides an earlier one, task by task.
    Raises: as `reference_scores`.
    """
    found = [pd.DataFrame(columns=["environment", "task", "random", "human", "source"])]
    for rule in paper.references:
        part = reference_scores(paper.directory.parent / "references" / rule.file, rule.variants)
        names = [rule.environments.replace("{task}", task) for task in part["task"]]
        found.append(part.assign(environment=names)[["environment", "task", "random", "human", "source"]])
    return pd.concat([part for part in found if not part.empty], ignore_index=True)


def reference_scores(path: Path, variants: Sequence[str]) -> pd.DataFrame:
    """Random and human scores of one file: task, random, human (may be missing), variant, source, notes.

    Sources disagree on some tasks; each says its own as a variant, and a later one here overrides an earlier one.
    Raises: UserError for a missing variant, a task given twice by one, a human no better or worse than random play,
    or as `load_published`.
    """
    table = _load(path, "references")
    for row in table[table.duplicated(["task", "variant"])].to_dict("records"):
        raise UserError(f"{path}: task '{row['task']}' is given twice as variant '{row['variant']}'")
    for row in table[table["random"] == table["human"]].to_dict("records"):
        raise UserError(f"{path}: task '{row['task']}', variant '{row['variant']}': random and human are the same")
    rows: dict[str, dict[str, Any]] = {}
    for variant in variants:
        chosen = table[table["variant"] == variant]
        if chosen.empty:
            raise unknown_name("variant", variant, set(table["variant"]), where=str(path))
        for row in chosen.to_dict("records"):
            rows[str(row["task"])] = {str(key): value for key, value in row.items()}
    return pd.DataFrame(rows.values(), columns=table.columns)


def _load(path: Path, kind: str) -> pd.DataFrame:
    columns: dict[str, dict[str, Any]] = schema("published")[kind]
    try:
        rows = list(csv.reader(StringIO(read_file(path).decode(), newline=""), strict=True))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not valid CSV: {error}") from None
    if not rows:
        raise UserError(f"{path}: is empty")
    header = rows[0]
    for name in header:
        if name not in columns:
            raise unknown_name("column", name, columns, where=str(path))
    missing = [name for name in columns if name not in header]
    if missing or len(set(header)) < len(header):
        raise UserError(f"{path}: columns must be exactly {', '.join(columns)}")
    records = []
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(header):
            raise UserError(f"{path}: row {number}: {len(row)} values; allowed: {len(header)}")
        records.append(
            {
                name: _value(text, columns[name], f"{path}: row {number}, column '{name}'")
                for name, text in zip(header, row, strict=True)
            }
        )
    table = pd.DataFrame(records, columns=header)
    return table.astype({name: _DTYPES[columns[name]["kind"]] for name in header})


def _value(text: str, column: Mapping[str, Any], where: str) -> Any:
    """One cell, typed; an empty one is missing, and refused where the column requires a value."""
    if not text.strip():
        if column.get("required"):
            raise UserError(f"{where}: must not be empty")
        return math.nan if column["kind"] == "number" else pd.NA if column["kind"] == "count" else ""
    kind = column["kind"]
    if kind == "number":
        return _number(text, where)
    if kind == "count":
        if not re.fullmatch(r"[1-9][0-9]*", text):
            raise UserError(f"{where}: '{text}' is not a whole number above 0")
        return int(text)
    if kind == "flag" and text not in ("true", "false"):
        raise unknown_name("value", text, ["true", "false"], where=where)
    if kind == "choice" and text not in column["allowed"]:
        raise unknown_name("value", text, column["allowed"], where=where)
    if kind == "name" and not _NAME.fullmatch(text):
        raise UserError(f"{where}: '{text}' is not a name (lower-case letters, digits, '_' and '.')")
    if kind == "task" and not _TASK.fullmatch(text):
        raise UserError(f"{where}: '{text}' is not a task's name (letters, digits, '_' and '-')")
    return text == "true" if kind == "flag" else text


def _number(text: str, where: str) -> float:
    # float() would also take "nan", "1_000" and blanks.
    if not re.fullmatch(r"-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?", text):
        raise UserError(f"{where}: '{text}' is not a number")
    value = float(text)
    if not math.isfinite(value):
        raise UserError(f"{where}: '{text}' is too large")
    return value
