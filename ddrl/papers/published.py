"""Reads published cells and reference scores from CSV files, typed and checked; a cell without a source is refused.

Cells are in `replications/<paper>/published/`, random and human scores of all papers in `replications/references/`.
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

from ddrl.errors import UserError
from ddrl.papers.paper import Paper
from ddrl.papers.reference_numbers import BEST, STATED_ERROR, references_of
from ddrl.papers.schema import check_known, schema
from ddrl.system.files import read_file

_NAME = re.compile(r"[a-z0-9][a-z0-9_.]*")
_TASK = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
MADE_BY = {
    "published": "a published score: a human tester's, where one is printed",
    "rule_of_the_task": "what the task's rules allow",
    "best_of_40_oracle_episodes": "the best of 40 episodes of an oracle, which sees the simulator's state",
    "mean_of_40_oracle_episodes": "the mean of 40 episodes of an oracle, which sees the simulator's state",
}
"""How the score that counts as 100 % was made (column `made_by` of references), in words."""
_DTYPES = {"number": "float64", "count": "Int64", "flag": "bool"}
"""Types of columns by their kind; all others are texts."""


def load_published(directory: Path) -> pd.DataFrame:
    """Read every cell of `directory/published`, one row each; columns as in `workflows/schemas/published.schema.yaml`.

    A cell whose runs are printed one by one is their mean, with their deviation and number; there is no column `run`.
    Raise UserError naming file, row and column for a cell without source, an unknown column or a bad value.
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
    single = [_of_all_runs(table, path) for path, table in zip(files, tables, strict=True)]
    cells = pd.concat(single, ignore_index=True)
    twice = cells["cell"][cells["cell"].duplicated()]
    if len(twice):
        raise UserError(f"{directory / 'published'}: cell '{twice.iloc[0]}' is given twice")
    return cells


def _of_all_runs(rows: pd.DataFrame, path: Path) -> pd.DataFrame:
    """Return one row per cell: of a cell given run by run (column `run`), the mean, deviation and number of the runs.

    Raise UserError for a run given twice, for runs of a cell that differ in anything but their value, and for a row
    with a run that states a deviation of its own or a number of seeds other than 1.
    """
    single = rows["run"] == ""
    parts = [rows[single]]
    common = [name for name in rows.columns if name not in ("value", "run")]
    for cell, runs in rows[~single].groupby("cell", sort=False):
        where = f"{path}: cell '{cell}'"
        if runs["run"].duplicated().any():
            raise UserError(f"{where}: run '{runs['run'][runs['run'].duplicated()].iloc[0]}' is given twice")
        unlike = [name for name in common if runs[name].nunique(dropna=False) > 1]
        if unlike:
            raise UserError(f"{where}: its runs differ in column '{unlike[0]}'; allowed: in 'value' and 'run'")
        if runs["deviation"].notna().any() or not (runs["seeds"] == 1).fillna(False).all():
            raise UserError(f"{where}: a row of one run has 1 in column 'seeds' and nothing in 'deviation'")
        spread = float(runs["value"].std(ddof=1))
        parts.append(runs.iloc[:1].assign(value=runs["value"].mean(), deviation=spread, seeds=len(runs)))
    return pd.concat(parts).sort_index().astype({"seeds": "Int64"}).drop(columns="run")


def matching(published: pd.DataFrame, wanted: Mapping[str, str]) -> pd.DataFrame:
    """Return the rows that equal `wanted` in every one of its columns."""
    chosen = pd.Series(True, index=published.index)
    for column, value in wanted.items():
        chosen &= (published[column] == value).fillna(False).astype(bool)
    return published[chosen]


def load_references(paper: Paper) -> pd.DataFrame:
    """Return environment, task, random, human (may be missing), made_by and source, by the rules of the paper.

    A later variant of a rule overrides an earlier one, task by task. Raise UserError as `reference_scores`.
    """
    columns = ["environment", "task", "random", "human", "made_by", "source"]
    found = [pd.DataFrame(columns=columns)]
    for rule in paper.references:
        part = reference_scores(references_of(paper.directory) / rule.file, rule.variants)
        names = [rule.environments.replace("{task}", task) for task in part["task"]]
        found.append(part.assign(environment=names)[columns])
    return pd.concat([part for part in found if not part.empty], ignore_index=True)


def best_returns(paper: Paper) -> dict[str, float]:
    """Return the best return that the rules of an environment allow, where they say it (`references/best.csv`)."""
    path = references_of(paper.directory) / BEST
    if not path.exists():
        return {}
    table = _load(path, "best")
    return dict(zip(table["environment"], table["best"].astype("float64"), strict=True))


def random_errors(paper: Paper) -> dict[str, float]:
    """Return the standard error of the mean of random play by environment, where a reference's notes state it."""
    found: dict[str, float] = {}
    for rule in paper.references:
        scores = reference_scores(references_of(paper.directory) / rule.file, rule.variants)
        for task, notes in zip(scores["task"], scores["notes"], strict=True):
            if stated := STATED_ERROR.match(notes):
                found[rule.environments.replace("{task}", task)] = float(stated[1])
    return found


def reference_scores(path: Path, variants: Sequence[str]) -> pd.DataFrame:
    """Return random and human scores of one file: the columns of the schema; human and made_by may be missing.

    Sources disagree on some tasks: each is a variant, and a later one of `variants` overrides an earlier one. Raise
    UserError for a missing variant, a task given twice by one, equal random and human scores, a human score without
    `made_by` or the other way round, two definitions of 100 % in one set, or as `load_published`.
    """
    table = _load(path, "references")
    for row in table[table.duplicated(["task", "variant"])].to_dict("records"):
        raise UserError(f"{path}: task '{row['task']}' is given twice as variant '{row['variant']}'")
    for row in table[table["random"] == table["human"]].to_dict("records"):
        raise UserError(f"{path}: task '{row['task']}', variant '{row['variant']}': random and human are the same")
    for row in table[table["human"].notna() != (table["made_by"] != "")].to_dict("records"):
        where = f"{path}: task '{row['task']}', variant '{row['variant']}'"
        raise UserError(f"{where}: columns 'human' and 'made_by' go together; one of them is empty")
    rows: dict[str, dict[str, Any]] = {}
    for variant in variants:
        check_known("variant", [variant], set(table["variant"]), where=str(path))
        for row in table[table["variant"] == variant].to_dict("records"):
            rows[str(row["task"])] = {str(key): value for key, value in row.items()}
    chosen = pd.DataFrame(rows.values(), columns=table.columns)
    definitions = sorted(set(chosen["made_by"]) - {""})
    if len(definitions) > 1:
        raise UserError(
            f"{path}: variants {', '.join(variants)}: 100 % has {len(definitions)} definitions (column 'made_by'): "
            f"{', '.join(definitions)}; allowed: one"
        )
    return chosen


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
    check_known("column", header, columns, where=str(path))
    needed = [name for name, column in columns.items() if not column.get("may_be_left_out")]
    if len(set(header)) < len(header) or not set(needed) <= set(header):
        further = [name for name in columns if name not in needed]
        also = f"; allowed besides: {', '.join(further)}" if further else ""
        raise UserError(f"{path}: columns must be exactly {', '.join(needed)}{also}")
    records = []
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(header):
            raise UserError(f"{path}: row {number}: {len(row)} values; allowed: {len(header)}")
        where = f"{path}: row {number}, column"
        cells = zip(header, row, strict=True)
        records.append({name: _value(text, columns[name], f"{where} '{name}'") for name, text in cells})
    empty = {name: _value("", columns[name], name) for name in columns if name not in needed}
    table = pd.DataFrame([empty | record for record in records], columns=list(columns))
    return table.astype({name: _DTYPES.get(column["kind"], "string") for name, column in columns.items()})


def _value(text: str, column: Mapping[str, Any], where: str) -> Any:
    """Return one cell with its type, an empty one as missing. Raise UserError for a bad or absent value."""
    kind = column["kind"]
    if not text.strip():
        if column.get("required"):
            raise UserError(f"{where}: must not be empty")
        return {"number": math.nan, "count": pd.NA}.get(kind, "")
    if kind == "number":
        # float() would also take "nan", "1_000" and blanks.
        if not re.fullmatch(r"-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?", text):
            raise UserError(f"{where}: '{text}' is not a number")
        if not math.isfinite(float(text)):
            raise UserError(f"{where}: '{text}' is too large")
        return float(text)
    if kind == "count":
        if not re.fullmatch(r"[1-9][0-9]*", text):
            raise UserError(f"{where}: '{text}' is not a whole number above 0")
        return int(text)
    if kind in ("flag", "choice"):
        check_known("value", [text], ["true", "false"] if kind == "flag" else column["allowed"], where=where)
    if kind == "name" and not _NAME.fullmatch(text):
        raise UserError(f"{where}: '{text}' is not a name (lower-case letters, digits, '_' and '.')")
    if kind == "task" and not _TASK.fullmatch(text):
        raise UserError(f"{where}: '{text}' is not a task's name (letters, digits, '_' and '-')")
    return text == "true" if kind == "flag" else text
