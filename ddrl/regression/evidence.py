"""Evidence check: tables, figures and verdicts of the reference runs, made anew, against the accepted ones.

The accepted evidence is in `results/reference/<paper>/evidence/`: short tables as CSV, digests of the long tables (one
per run) and of the figures, and the *changes results* lines that the changelog had. A difference needs a new such line;
then `python -m ddrl.regression accept` accepts it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import math
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddrl.errors import UserError, unknown_name
from ddrl.papers.experiments import papers
from ddrl.papers.table_names import REFERENCE
from ddrl.regression.checks import CheckOutcome
from ddrl.report import build as report
from ddrl.system.csv_cells import read_rows, write_rows
from ddrl.system.files import read_file
from ddrl.training.records.recorder import write_json

COMMAND = "python -m ddrl.regression accept"
OUTPUT = Path("results/regression/reports")
TOLERANCE = 1e-6
"""Relative. The same curves give the same numbers except for the order of sums (1e-13); reports print three digits."""
DIGITS = 6
"""Significant digits of a number in a digest."""
_RUN = ("experiment", "variant", "environment", "seed")
ROWS: Mapping[str, tuple[str, ...]] = {
    "claims": ("claim",),
    "cells": ("cell", "environment"),
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
WORDS = {
    *("title", "text", "source", "detail", "reason", "comparisons", "packages"),
    *("env_label", "variant_label", "experiment_title", "paper", "protocol_published", "protocol_ours"),
}
"""Columns that describe other columns or the paper's files in words, and are not compared."""
DRAWN_WITH = ("matplotlib", "numpy")
_ENTRY = re.compile(r"^- (?:.*(?:\n(?=[ \t]+\S).*)*)", re.MULTILINE)
Table = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class Snapshot:
    """The tables, digests and figures of one paper that are compared."""

    tables: Mapping[str, Table]
    """Table -> name of the row -> column -> text."""
    digests: Mapping[str, str]
    """Digest by `figure <name>` or `<table> <name of the rows>`."""
    packages: Mapping[str, str]
    """Versions of the packages that the files of figures depend on."""


def folder(paper: str, root: Path) -> Path:
    """Return the folder of the accepted evidence of a paper."""
    return root / "results" / "reference" / paper / "evidence"


def with_reference(root: Path) -> list[str]:
    """Return the papers that have reference runs."""
    known = papers(root / "replications")
    return [name for name in known if any((root / "results/reference" / name).glob("*/*/*/seed*/run.json"))]


def rebuild(root: Path) -> CheckOutcome:
    """Write tables, figures and PDFs of the reference runs alone into `results/regression/reports`.

    Raise UserError where a part cannot be made.
    """
    if not with_reference(root):
        raise UserError(f"{root / 'results/reference'}: holds no runs of a paper of {root / 'replications'}")
    with contextlib.chdir(root):  # relative paths: no machine's folders in a table
        shutil.rmtree(OUTPUT, ignore_errors=True)
        written = report.rebuild(with_reference(Path()), REFERENCE, results=Path("results"), output=OUTPUT, root=Path())
        documents = [path for path in written if path.suffix == ".pdf"]
        for path in documents:
            if not read_file(path).startswith(b"%PDF"):
                raise UserError(f"{path}: is no PDF")
    return CheckOutcome(True, ", ".join(map(str, documents)))


def made(paper: str, root: Path) -> Snapshot:
    """Return what `rebuild` made of a paper. Raise UserError where it made nothing."""
    output = root / OUTPUT / report.EVIDENCE / REFERENCE / paper
    if not (output / "tables").is_dir():
        raise UserError(f"{output}: the tables could not be made: run 'python -m ddrl.report' for the reason")
    tables: dict[str, Table] = {}
    digests: dict[str, str] = {}
    for path in sorted((output / "tables").glob("*.csv")):
        rows = read_rows(path)
        if path.stem in DIGESTED:
            digests |= _row_digests(path.stem, rows)
        else:
            tables[path.stem] = _named(path.stem, rows)
    for path in sorted((output / "figures").glob("*.svg")):
        drawing = re.sub(r"<metadata>.*?</metadata>", "", read_file(path).decode(), flags=re.DOTALL)
        digests[f"figure {path.stem}"] = _digest(drawing)
    return Snapshot(tables, digests, {name: importlib.metadata.version(name) for name in DRAWN_WITH})


def _named(table: str, rows: Sequence[Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """Return rows by name, without `WORDS`; number equal names. A paper's own table is named by its first column."""
    named: dict[str, dict[str, str]] = {}
    columns = ROWS.get(table) or tuple(rows[0])[:1] if rows else ()
    for row in rows:
        name = base = _name(row, columns)
        number = 2
        while name in named:
            name, number = f"{base} ({number})", number + 1
        named[name] = {key: value for key, value in row.items() if key not in WORDS and key not in columns}
    return named


def _name(row: Mapping[str, str], columns: Sequence[str]) -> str:
    return " ".join(row[column] for column in columns if row.get(column))


def _row_digests(table: str, rows: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return one digest for all rows of the same name, by `<table> <name>`."""
    texts: dict[str, list[str]] = {}
    for row in rows:
        numbers = {key: _number(value) for key, value in row.items() if key not in WORDS}
        cells = [f"{key}={row[key] if number is None else f'{number:.{DIGITS}g}'}" for key, number in numbers.items()]
        texts.setdefault(_name(row, DIGESTED[table]), []).append(";".join(cells))
    return {f"{table} {name}".strip(): _digest("\n".join(lines)) for name, lines in sorted(texts.items())}


def _number(text: str) -> float | None:
    """Return a finite number, or None for any other text."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def differences(old: Snapshot, new: Snapshot) -> list[str]:
    """Return a line for each difference, verdicts first; an additional column, table or figure is no difference."""
    found: list[tuple[int, str]] = []
    for table, before in old.tables.items():
        now = new.tables.get(table)
        if now is None:
            found.append((1, f"{table}: the table is gone"))
            continue
        found += [(1, f"{table}: {name}: the row is gone") for name in before if name not in now]
        found += [(1, f"{table}: {name}: the row is new") for name in now if name not in before]
        for name in before:
            found += _changed_cells(f"{table}: {name}", before[name], now.get(name, before[name]))
    found += [(3, line) for line in _changed_digests(old, new)]
    return [line for _, line in sorted(found, key=lambda item: item[0])]


def _changed_cells(where: str, before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    for column, value in before.items():
        if column not in now:
            yield 2, f"{where}: column {column} is gone"
        elif not _same(value, now[column]):
            yield (0 if column == "verdict" else 2), f"{where}: {column} {value or 'none'} -> {now[column] or 'none'}"


def _same(before: str, now: str) -> bool:
    a, b = _number(before), _number(now)
    if a is None or b is None:
        return before == now
    return math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE * 1e-3)


def _changed_digests(old: Snapshot, new: Snapshot) -> Iterator[str]:
    drawn_alike = old.packages == new.packages
    kinds = {name.split(" ", 1)[0] for name in old.digests}
    for name in dict.fromkeys([*old.digests, *new.digests]):
        before, now, kind = old.digests.get(name), new.digests.get(name), name.split(" ", 1)[0]
        if before is None and kind in kinds - {"figure"}:
            yield f"{name}: is new"
        elif before is not None and now is None:
            yield f"{name}: is gone"
        elif before is not None and before != now and (drawn_alike or kind != "figure"):
            yield f"{name}: digest {before} -> {now}"


def results_changes(changelog: Path) -> dict[str, str]:
    """Return digest -> text of every entry that is marked *changes results*."""
    entries = (" ".join(match.group().split()) for match in _ENTRY.finditer(read_file(changelog).decode()))
    return {_digest(entry): entry for entry in entries if entry.startswith("- *changes results*")}


def accepted(paper: str, root: Path) -> tuple[Snapshot, set[str]] | None:
    """Return what was accepted, and the digests of the changelog entries known then; None before the first time.

    Raise UserError where a file is damaged.
    """
    path = folder(paper, root) / "evidence.json"
    if not path.exists():
        return None
    try:
        facts: dict[str, Any] = json.loads(read_file(path).decode())
        files = {name: path.with_name(f"{name}.csv") for name in facts["tables"]}
        tables = {name: {row.pop("row"): row for row in read_rows(file)} for name, file in files.items()}
        return Snapshot(tables, dict(facts["digests"]), dict(facts["packages"])), set(facts["changes"])
    except (ValueError, KeyError, TypeError, OSError, RecursionError) as error:
        raise UserError(f"{path}: damaged ({type(error).__name__}: {error}); restore it from the repository") from None


def check(paper: str, root: Path) -> CheckOutcome:
    """Compare what `rebuild` made with what was accepted."""
    new, known = made(paper, root), accepted(paper, root)
    if known is None:
        return CheckOutcome(False, f"nothing was accepted yet: run '{COMMAND}'")
    old, changes = known
    found = differences(old, new)
    drawn = "" if old.packages == new.packages else "; figures not compared (other versions of matplotlib or numpy)"
    if not found:
        count = sum(len(table) for table in new.tables.values())
        return CheckOutcome(True, f"{count} rows and {len(new.digests)} digests as accepted{drawn}")
    line = f"{found[0]}; {len(found)} difference{'s' * (len(found) > 1)}"
    if reasons := _unknown(changes, root):
        return CheckOutcome(True, f"{line}; the changelog says '{reasons[0]}': run '{COMMAND}'", tuple(found))
    return CheckOutcome(False, f"{line}, and no new *changes results* line in CHANGELOG.md", tuple(found[1:20]))


def _unknown(changes: set[str], root: Path) -> list[str]:
    """Return the *changes results* entries that the changelog did not have when the evidence was accepted."""
    return [entry for digest, entry in results_changes(root / "CHANGELOG.md").items() if digest not in changes]


def accept(names: Sequence[str], root: Path) -> Iterator[str]:
    """Accept the present evidence of `names` (none: all papers with reference runs); return a line for each paper.

    Raise UserError where it differs from the accepted one and the changelog has no new *changes results* line.
    """
    known_papers = with_reference(root)
    for paper in names:
        if paper not in known_papers:
            raise unknown_name("paper with reference runs", paper, known_papers)
    rebuild(root)
    for paper in names or known_papers:
        new, known = made(paper, root), accepted(paper, root)
        found = differences(known[0], new) if known else []
        if known and found and not _unknown(known[1], root):
            raise UserError(
                f"{paper}: {found[0]}; {len(found)} differences, and CHANGELOG.md has no new entry that starts with "
                "'- *changes results*'"
            )
        _write(new, folder(paper, root), sorted(results_changes(root / "CHANGELOG.md")))
        yield f"{paper}: accepted ({len(found)} differences)" if known else f"{paper}: accepted for the first time"


def _write(evidence: Snapshot, target: Path, changes: Sequence[str]) -> None:
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for name, table in evidence.tables.items():
        columns = ["row", *dict.fromkeys(column for row in table.values() for column in row)]
        with (partial / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            write_rows(file, columns, ({"row": row, **cells} for row, cells in table.items()))
    facts = {"tables": list(evidence.tables), "changes": list(changes), "packages": dict(evidence.packages)}
    write_json(partial / "evidence.json", {"command": COMMAND, **facts, "digests": dict(evidence.digests)})
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
