"""Faults of the evidence that its check must find: what is taken out of the tables of a paper, or put in.

Each takes the folder of the tables, changes some cells, and returns how many.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pandas as pd

from ddrl.system.csv_cells import read_rows, write_rows

NONSENSE = "the moon is made of cheese"


def rewritten(path: Path, change: Callable[[str], str], column: str, at_most: int) -> int:
    """Changes the first `at_most` cells of a column that `change` makes different; returns how many there were."""
    rows = read_rows(path)
    changed = 0
    for row in rows:
        if changed < at_most and (new := change(row[column])) != row[column]:
            row[column], changed = new, changed + 1
    with path.open("w", newline="", encoding="utf-8") as file:
        write_rows(file, list(rows[0]), rows)
    return changed


def rewritten_wherever(tables: Path, change: Callable[[str], str], column: str) -> int:
    """Changes all cells of a column in every table that has it; returns how many were changed."""
    found = [table for table in sorted(tables.glob("*.csv")) if column in next(iter(read_rows(table)), {})]
    return sum(rewritten(table, change, column, 10_000) for table in found)


def six_notes_removed(tables: Path) -> int:
    """The detail of six claims lacks its last sentence."""

    def shortened(text: str) -> str:
        return re.sub(r"(?<=[.;])[^.;]+[.]?$", "", text)

    return rewritten(tables / "claims.csv", shortened, "detail", 6)


def late_notes_removed(tables: Path) -> int:
    """No claim says any more that its test is younger than its runs."""
    return rewritten(tables / "claims.csv", lambda text: "", "late", 1000)


def late_runs_forgotten(tables: Path) -> int:
    """All runs are said to be younger than the plan of their claim."""
    return rewritten(tables / "claims.csv", lambda text: "0" if text else text, "late_runs", 1000)


def tuning_forgotten(tables: Path) -> int:
    """No run is said to have been spent on finding settings."""
    return rewritten(tables / "claims.csv", lambda text: "0" if text else text, "tuned_runs", 1000)


def nonsense_in_comparisons(tables: Path) -> int:
    """What was compared with what says something else."""
    return rewritten(tables / "claims.csv", lambda text: NONSENSE if text else text, "comparisons", 1000)


def nonsense_in_one_comparison(tables: Path) -> int:
    """One of several comparisons of one claim has another number."""

    def last_digit(text: str) -> str:
        return re.sub(r"(\d)(?=\D*$)", lambda found: str((int(found[1]) + 1) % 10), text)

    return rewritten(tables / "claims.csv", last_digit, "comparisons", 1)


def flags_removed(tables: Path) -> int:
    """Neither cells nor claims say any more in what our runs differ from the published ones."""
    return rewritten_wherever(tables, lambda text: "", "flags")


def obstacles_removed(tables: Path) -> int:
    """No claim says any more what keeps it from being tested."""
    return rewritten(tables / "claims.csv", lambda text: "", "obstacle", 1000)


def adjusted_p_values_halved(tables: Path) -> int:
    """The correction for many tests is weaker than it was."""
    return rewritten(tables / "claims.csv", lambda text: str(float(text) / 2) if text else text, "p_holm", 1000)


OF_EVIDENCE: Mapping[str, Callable[[Path], int]] = {
    "six notes removed": six_notes_removed,
    "late notes removed": late_notes_removed,
    "late runs forgotten": late_runs_forgotten,
    "tuning forgotten": tuning_forgotten,
    "nonsense in comparisons": nonsense_in_comparisons,
    "a digit in a comparison": nonsense_in_one_comparison,
    "flags removed": flags_removed,
    "obstacles removed": obstacles_removed,
    "adjusted p-values halved": adjusted_p_values_halved,
}
"""Name of the fault -> the fault."""


def turn_over_returns(variant: Path) -> int:
    """Turns every return of a variant's runs (environment/seed<k>) upside down; returns how many there were."""
    turned = 0
    for path in variant.glob("*/seed*/curves.parquet"):
        table = pd.read_parquet(path)
        returns = table["metric"].isin(["episode_return", "evaluation_return"])
        table.loc[returns, "value"] *= -1
        table.to_parquet(path, index=False)
        turned += int(returns.sum())
    return turned


def every_cell_kind(table: Path) -> Iterator[tuple[str, int]]:
    """Yields (column, row) of one filled cell of every column of a table that has one."""
    rows = read_rows(table)
    for column in rows[0] if rows else ():
        filled = [index for index, row in enumerate(rows) if row[column]]
        if filled:
            yield column, filled[len(filled) // 2]


def with_other_cell(table: Path, column: str, row: int) -> None:
    """Writes something else into one cell: a number a thousandth larger, another word."""
    rows = read_rows(table)
    before = rows[row][column]
    try:
        rows[row][column] = repr(float(before) * 1.001 + 0.001)
    except ValueError:
        rows[row][column] = f"{before} not"
    with table.open("w", newline="", encoding="utf-8") as file:
        write_rows(file, list(rows[0]), rows)
