"""The evidence of one paper, or of the suite, as it is compared and committed: every cell of every table.

Short tables are kept row by row as CSV. Long tables (one row per record or run) and figures are kept as digests. No
column is left out, whether it holds numbers or words. The texts of the reports (`ddrl.regression.report_texts`) are
tables with one row for each line.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddrl.errors import UserError
from ddrl.regression import report_texts
from ddrl.regression.texts import number, same
from ddrl.system.csv_cells import read_rows, write_rows
from ddrl.system.files import read_file
from ddrl.system.text_files import read_json
from ddrl.training.records.recorder import write_json

DIGITS = 6
"""Significant digits of a number in a digest."""
SUMMARY = "summary"
"""The name of the table made of `summary.json`: a row for each value in it."""
_RUN = ("experiment", "variant", "environment", "seed")
ROWS: Mapping[str, tuple[str, ...]] = {
    "claims": ("claim",),
    "cells": ("cell", "environment"),
    "peer_learning": ("pair",),
    "peer_speed": ("measurement", "system", "threads"),
    "scores": _RUN,
    "milestones": _RUN,
    "aggregates": ("experiment", "variant", "metric", "statistic"),
    "profiles": ("experiment", "variant", "tau"),
    "improvement": ("experiment", "better", "worse"),
    "hyperparameters": ("experiment", "name"),
    "problems": (*_RUN, "what"),
}
"""Tables that are compared row by row, and the columns that name a row."""
DIGESTED: Mapping[str, tuple[str, ...]] = {
    "runs": _RUN,
    "curves": _RUN,
    "wall_clock": _RUN,
    "policy_lag": _RUN,
    "efficiency": _RUN,
    "published": ("item",),
    "references": (),
    "departures": ("where",),
}
"""Tables that are compared by one digest for all rows with the same values in these columns."""
DRAWN_WITH = ("matplotlib", "numpy")
"""Packages that the files of figures depend on."""
SET_WITH = ("matplotlib", "typst")
"""Packages that the lines and pages of a PDF depend on: its fonts come with matplotlib."""
Table = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class Snapshot:
    """The tables, digests and figures that are compared."""

    tables: Mapping[str, Table]
    """Table -> name of the row -> column -> text."""
    digests: Mapping[str, str]
    """Digest by `figure <name>` or `<table> <name of the rows>`."""
    packages: Mapping[str, str]
    """Versions of the packages that the files of figures and PDFs depend on."""

    def has(self, other: Snapshot, packages: Sequence[str]) -> bool:
        """Return whether it was made with the versions of `packages` that `other` was made with."""
        return all(self.packages.get(name) == other.packages.get(name) for name in packages)


@dataclass(frozen=True)
class Differences:
    """The lines that say how a snapshot differs from an accepted one."""

    changed: Sequence[str]
    """What is gone or says something else, verdicts first: results are different."""
    added: Sequence[str]
    """Columns, tables and figures that nothing was accepted for yet: nothing guards them."""

    def __len__(self) -> int:
        """Return the number of differences of both kinds."""
        return len(self.changed) + len(self.added)

    @property
    def lines(self) -> list[str]:
        """All lines, changes first."""
        return [*self.changed, *self.added]


def made(output: Path, reports: Path) -> Snapshot:
    """Return the snapshot of `output`, a folder with tables/ and figures/, and of the reports of its name in `reports`.

    Raise UserError where it has no tables.
    """
    if not (output / "tables").is_dir():
        raise UserError(f"{output}: the tables could not be made: run 'python -m ddrl.report' for the reason")
    tables: dict[str, Table] = {}
    digests: dict[str, str] = {}
    for path in sorted((output / "tables").glob("*.csv")):
        rows = read_rows(path)
        if path.stem in DIGESTED:
            digests |= _row_digests(path.stem, rows)
        else:
            tables[path.stem] = named(path.stem, rows)
    if (summary := output / "tables" / f"{SUMMARY}.json").exists():
        tables[SUMMARY] = {name: {"value": text} for name, text in _leaves(read_json(summary))}
    for path in sorted((output / "figures").glob("*.svg")):
        drawing = re.sub(r"<metadata>.*?</metadata>", "", read_file(path).decode(), flags=re.DOTALL)
        digests[f"figure {path.stem}"] = digest(drawing)
    tables |= report_texts.made(output.name, reports, output)
    packages = sorted({*DRAWN_WITH, *SET_WITH})
    return Snapshot(tables, digests, {name: importlib.metadata.version(name) for name in packages})


def named(table: str, rows: Sequence[Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """Return rows by name; number equal names. A paper's own table is named by its first column."""
    found: dict[str, dict[str, str]] = {}
    columns = ROWS.get(table) or tuple(rows[0])[:1] if rows else ()
    for row in rows:
        name = base = _name(row, columns)
        count = 2
        while name in found:
            name, count = f"{base} ({count})", count + 1
        found[name] = {key: value for key, value in row.items() if key not in columns}
    return found


def _name(row: Mapping[str, str], columns: Sequence[str]) -> str:
    return " ".join(row[column] for column in columns if row.get(column))


def _leaves(content: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Return (dotted path, text) of every value of a JSON document; empty lists and mappings count as values."""
    if isinstance(content, (dict, list)) and content:
        items = content.items() if isinstance(content, dict) else enumerate(content)
        for key, value in items:
            yield from _leaves(value, f"{name}.{key}" if name else str(key))
    else:
        yield name, content if isinstance(content, str) else json.dumps(content)


def _row_digests(table: str, rows: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return one digest for all rows of the same name, by `<table> <name>`."""
    texts: dict[str, list[str]] = {}
    for row in rows:
        numbers = {key: number(value) for key, value in row.items()}
        cells = [f"{key}={row[key] if value is None else f'{value:.{DIGITS}g}'}" for key, value in numbers.items()]
        texts.setdefault(_name(row, DIGESTED[table]), []).append(";".join(cells))
    return {f"{table} {name}".strip(): digest("\n".join(lines)) for name, lines in sorted(texts.items())}


def digest(text: str) -> str:
    """Return a short digest of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def differences(old: Snapshot, new: Snapshot) -> Differences:
    """Return how `new` differs from the accepted snapshot `old`."""
    changed: list[tuple[int, str]] = []
    added = [f"{table}: the table is new" for table in new.tables if table not in old.tables]
    for table, before in old.tables.items():
        now = new.tables.get(table)
        if now is None:
            changed.append((1, f"{table}: the table is gone"))
            continue
        if table == report_texts.PDF and not old.has(new, SET_WITH):
            continue
        changed += [(1, f"{table}: {name}: the row is gone") for name in before if name not in now]
        changed += [(1, f"{table}: {name}: the row is new") for name in now if name not in before]
        common = [name for name in before if name in now]
        for name in common:
            changed += _changed_cells(f"{table}: {name}", before[name], now[name])
        columns = dict.fromkeys(column for name in common for column in now[name] if column not in before[name])
        added += [f"{table}: column {column} is new" for column in columns]
    gone_or_new = list(_changed_digests(old, new))
    changed += [(3, line) for line, is_new in gone_or_new if not is_new]
    added += [line for line, is_new in gone_or_new if is_new]
    return Differences([line for _, line in sorted(changed, key=lambda item: item[0])], added)


def _changed_cells(where: str, before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    for column, value in before.items():
        if column not in now:
            yield 2, f"{where}: column {column} is gone"
        elif not same(value, now[column]):
            yield (0 if column == "verdict" else 2), f"{where}: {column} {value or 'none'} -> {now[column] or 'none'}"


def _changed_digests(old: Snapshot, new: Snapshot) -> Iterator[tuple[str, bool]]:
    """Return (line, whether it is only new) for each digest that differs."""
    drawn_alike = old.has(new, DRAWN_WITH)
    kinds = {name.split(" ", 1)[0] for name in old.digests}
    for name in dict.fromkeys([*old.digests, *new.digests]):
        before, now, kind = old.digests.get(name), new.digests.get(name), name.split(" ", 1)[0]
        if before is None:
            yield f"{name}: is new", kind == "figure" or kind not in kinds
        elif now is None:
            yield f"{name}: is gone", False
        elif before != now and (drawn_alike or kind != "figure"):
            yield f"{name}: digest {before} -> {now}", False


def read(path: Path) -> tuple[Snapshot, set[str]] | None:
    """Return the snapshot that `path` (evidence.json) is part of, and the changes known then; None where it is missing.

    Raise UserError where a file is damaged.
    """
    if not path.exists():
        return None
    try:
        facts: dict[str, Any] = json.loads(read_file(path).decode())
        files = {name: path.with_name(f"{name}.csv") for name in facts["tables"]}
        tables = {name: {row.pop("row"): row for row in read_rows(file)} for name, file in files.items()}
        return Snapshot(tables, dict(facts["digests"]), dict(facts["packages"])), set(facts["changes"])
    except (ValueError, KeyError, TypeError, OSError, RecursionError) as error:
        raise UserError(f"{path}: damaged ({type(error).__name__}: {error}); restore it from the repository") from None


def write(snapshot: Snapshot, target: Path, changes: Sequence[str], command: str) -> None:
    """Write `snapshot` as the folder `target`, which is replaced as a whole."""
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for name, table in snapshot.tables.items():
        columns = ["row", *dict.fromkeys(column for row in table.values() for column in row)]
        with (partial / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            write_rows(file, columns, ({"row": row, **cells} for row, cells in table.items()))
    facts = {"tables": list(snapshot.tables), "changes": list(changes), "packages": dict(snapshot.packages)}
    write_json(partial / "evidence.json", {"command": command, **facts, "digests": dict(snapshot.digests)})
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
