"""`ddrl claims`, `ddrl cells`, `ddrl systems`: tables of `ddrl.analysis`, read or made, and printed. No torch."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ddrl.errors import UserError, unknown_name
from ddrl.papers.experiments import SCALES, papers
from ddrl.papers.table_names import REFERENCE
from ddrl.system.csv_cells import table_as_csv
from ddrl.system.files import read_file

if TYPE_CHECKING:
    import pandas as pd

VERDICTS = {
    "claims": ("supported", "contradicted", "inconclusive", "not_run"),
    "cells": ("equivalent", "consistent", "below", "above", "inconclusive", "not_comparable", "not_run"),
}
WRAPPED, NARROWEST = ("claim", "cell", "flags", "store", "networks", "tasks"), 16
"""Columns that a terminal may break into lines, and how narrow each may be."""
TOO_WIDE = ("says", "variants")
"""Columns that a terminal leaves out."""
COLOURS = {"supported": "green", "equivalent": "green", "contradicted": "red", "inconclusive": "yellow"}
Kind = Literal["claims", "cells"]
Rows = list[dict[str, str]]


@dataclass(frozen=True)
class Ledger:
    """The rows of one kind of table of all chosen papers, and where they came from (one line a paper)."""

    table: pd.DataFrame
    sources: tuple[str, ...]


def checkout() -> Path:
    """The folder that holds `replications/`: this one, else that of the package. Raises `UserError` without one."""
    for folder in (Path("."), Path(__file__).parents[2]):
        if (folder / "replications").is_dir():
            return folder
    raise UserError("there is no folder replications/ here: run this in a checkout of ddrl")


def chosen_papers(root: Path, paper: str | None) -> list[str]:
    """`paper`, or all. Raises `UserError` for one that does not exist."""
    known = papers(root / "replications")
    if paper is not None and paper not in known:
        raise unknown_name("paper", paper, known)
    return [paper] if paper else list(known)


def load(
    kind: Kind,
    *,
    root: Path,
    results: Path,
    paper: str | None = None,
    scale: str | None = None,
    verdict: str | None = None,
) -> Ledger:
    """The claims or cells of `paper` (None: of all) at `scale` (None: the largest with tables, else `reference`).

    Of all papers, those without runs are named among the sources.

    Raises: UserError for an unknown paper, scale or verdict, or where there is nothing to read.
    """
    import pandas as pd

    if scale not in (None, *SCALES, REFERENCE):
        raise unknown_name("scale", scale, [*SCALES, REFERENCE])
    if verdict not in (None, *VERDICTS[kind]):
        raise unknown_name("verdict", verdict, VERDICTS[kind])
    parts, sources = [], []
    for key in chosen_papers(root, paper):
        if missing := _missing(key, results, scale):
            sources.append(f"{key}: {missing}")
            continue
        table, source = _read(kind, key, root, results, scale)
        parts.append(table.assign(paper=key)[["paper", *table.columns]])
        sources.append(f"{key}: {source}")
    if not parts:
        raise UserError("; ".join(sources))
    table = pd.concat(parts, ignore_index=True)
    if verdict is not None:
        table = table[table["verdict"] == verdict].reset_index(drop=True)
    return Ledger(table, tuple(sources))


def _missing(paper: str, results: Path, scale: str | None) -> str:
    """What to say of a paper that has nothing to read; empty where it has."""
    if scale in (None, REFERENCE):
        made = () if scale else (results / name / paper / "tables" for name in SCALES)
        if any(folder.is_dir() for folder in (*made, results / REFERENCE / paper)):
            return ""
        return f"no run has finished yet; make them: {_remedy(paper, SCALES[0])}"
    folder = results / scale / paper / "tables"
    return "" if folder.is_dir() else f"{folder}: no tables; make them: {_remedy(paper, scale)}"


def _read(kind: Kind, paper: str, root: Path, results: Path, scale: str | None) -> tuple[pd.DataFrame, str]:
    """The table of one paper, and where it came from."""
    import pandas as pd

    for name in (scale,) if scale else reversed(SCALES):
        path = results / name / paper / "tables" / f"{kind}.parquet"
        if name != REFERENCE and path.exists():
            try:
                return pd.read_parquet(BytesIO(read_file(path))), str(path)
            except (OSError, ValueError) as error:
                reason = " ".join(str(error).split())
                raise UserError(f"{path}: cannot be read ({reason}); make it anew: {_remedy(paper, name)}") from None
    return _reference(kind, paper, root, results), f"made now from {results / REFERENCE / paper}"


def _remedy(paper: str, scale: str | None) -> str:
    return f"ddrl report {paper} --scale {scale}"


def _reference(kind: Kind, paper: str, root: Path, results: Path) -> pd.DataFrame:
    from ddrl.analysis.tables.build import build

    return build(root / "replications" / paper, REFERENCE, [], results, allow_missing=True).tables[kind]


def rows(kind: Kind, table: pd.DataFrame) -> Rows:
    """What is printed of each claim or cell, as text: column title -> value. What was not run comes last."""
    several = table["paper"].nunique() > 1
    make = _claim if kind == "claims" else _cell
    ordered = sorted(records(table), key=lambda record: record["verdict"] == "not_run")
    return [({"paper": record["paper"]} if several else {}) | make(record) for record in ordered]


def _claim(record: Mapping[str, Any]) -> dict[str, str]:
    """A claim that was not run shows the name of its experiment where the effect would stand."""
    unit, without = record.get("effect_unit") or "", record["verdict"] == "not_run"
    return {
        "claim": record["claim"],
        "runs": _text(record.get("origin")),
        "verdict": record["verdict"],
        "effect": _text(record.get("experiment")) if without else f"{_number(record['effect'])} {unit}".strip(),
        "95 %": _interval(record, "ci95"),
        "p": "" if record.get("p") is None else f"{record['p']:.2g}",
        "seeds": _text(record.get("seeds")),
        "needed": _text(record.get("seeds_needed")),
        "frames": _frames(record.get("env_frames")),
        "says": _text(record.get("title")),
    }


def _cell(record: Mapping[str, Any]) -> dict[str, str]:
    return {
        "cell": record["cell"],
        "runs": _text(record.get("origin")),
        "verdict": record["verdict"],
        "published": _number(record["published"]),
        "ours": _number(record["ours"]),
        "90 %": _interval(record, "ci90"),
        "seeds": _text(record.get("seeds")),
        "needed": _text(record.get("seeds_needed")),
        "frames": _frames(record.get("env_frames")),
        "flags": _text(record.get("flags")).replace(";", "; ").replace(",", ", "),
    }


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """One plain dict a row: missing values are None, numbers Python's own."""
    columns = {
        str(name): [None if gone else value for value, gone in zip(column.astype(object), column.isna(), strict=True)]
        for name, column in table.items()
    }
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def print_rows(printed: Rows) -> None:
    """A table in a terminal, or blocks where it is too narrow; elsewhere aligned lines without colour or breaks."""
    if not printed:
        print("nothing to show")
    elif not sys.stdout.isatty():
        print("\n".join(plain_lines(printed)))
    else:
        width = shutil.get_terminal_size().columns
        titles = [title for title in _used(printed) if title not in TOO_WIDE]
        least = {
            title: max(len(title), NARROWEST if title in WRAPPED else max(len(row[title]) for row in printed))
            for title in titles
        }
        if sum(least.values()) + 2 * len(titles) <= width:
            _print_table(printed, titles)
        else:
            print("\n\n".join("\n".join(_block(row)) for row in printed))


def _block(row: Mapping[str, str]) -> list[str]:
    """One row, a value a line."""
    wide = max(map(len, row))
    return [f"{title.ljust(wide)}  {value}" for title, value in row.items() if value]


def plain_lines(printed: Rows) -> list[str]:
    """Titles, then the rows; columns two spaces apart, those that are empty everywhere left out."""
    titles = _used(printed)
    cells = [titles, *([row[title] for title in titles] for row in printed)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(titles))]
    return ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in cells]


def _print_table(printed: Rows, titles: list[str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in titles:
        table.add_column(title, overflow="fold", no_wrap=title not in WRAPPED)
    for row in printed:
        table.add_row(*(Text(row[title], style=COLOURS.get(row[title], "")) for title in titles))
    Console().print(table)


def _used(printed: Rows) -> list[str]:
    return [title for title in printed[0] if any(row[title] for row in printed)]


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _number(value: Any, digits: int = 4) -> str:
    """The leading digits; all before the point, up to 15."""
    if value is None:
        return ""
    return f"{value:,.0f}" if 10 ** (digits - 1) <= abs(value) < 1e15 else f"{value:.{digits}g}"


def _interval(record: Mapping[str, Any], name: str) -> str:
    low, high = record.get(f"{name}_low"), record.get(f"{name}_high")
    return "" if low is None or high is None else f"[{_number(low, 3)}, {_number(high, 3)}]"


def _frames(value: Any) -> str:
    """Environment frames, in millions where there are some."""
    if value is None:
        return ""
    return f"{value / 1e6:.4g}M" if value >= 1e6 else f"{value:,.0f}"


def system_rows(table: pd.DataFrame) -> Rows:
    """The taxonomy as text: column title -> value."""
    return [
        {
            "paper": record["paper"],
            "experiment": record["experiment"],
            **{
                name: _text(record[name])
                for name in ("algorithm", "moves", "schedule", "inference", "store", "runtime")
            },
            "actors": f"{record['num_actors']} x {record['envs_per_actor']}",
            "threads": _text(record["learner_threads"]),
            "max lag": _text(record["max_policy_lag"]),
            "delay": _text(record["parameter_delay"]),
            **{name: _text(record[name]) for name in ("networks", "tasks", "variants")},
        }
        for record in records(table)
    ]


def tally(table: pd.DataFrame) -> str:
    """`31 rows: 3 supported, 28 not_run`."""
    counts = ", ".join(f"{count} {verdict}" for verdict, count in table["verdict"].value_counts().items())
    return f"{len(table)} rows" + (f": {counts}" if counts else "")


def machine_readable(table: pd.DataFrame, form: Literal["json", "csv"]) -> str:
    """Every column and row: a JSON list of objects (missing: null), or CSV with a header (missing: empty)."""
    if form == "json":
        return json.dumps(records(table), indent=1, ensure_ascii=False)
    return table_as_csv(table).rstrip("\n")
