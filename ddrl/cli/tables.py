"""Tables of `ddrl.analysis` for `ddrl claims`, `ddrl cells` and `ddrl systems`: read or made, and printed. No torch."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from ddrl.errors import UserError, unknown_name
from ddrl.papers import claim_verdicts
from ddrl.papers.experiments import SCALES, Roots, folder_of, papers, with_further
from ddrl.papers.table_names import CELL_VERDICTS, REFERENCE
from ddrl.system.csv_cells import table_as_csv
from ddrl.system.files import read_file
from ddrl.system.parquet import read_frame
from ddrl.system.wording import counted

VERDICTS = {"claims": claim_verdicts.CLAIM_VERDICTS, "cells": CELL_VERDICTS}
WRAPPED, NARROWEST = ("claim", "cell", "flags", "late", "store", "networks", "tasks"), 16
"""Columns whose texts a terminal may break into lines, and the fewest letters that each gets."""
TOO_WIDE = ("says", "variants")
"""Columns that a terminal does not show."""
SYSTEM_COLUMNS = ("paper", "experiment", "algorithm", "moves", "schedule", "inference", "store", "runtime")
COLOURS = {"equivalent": "green"} | {name: known.terminal for name, known in claim_verdicts.VERDICTS.items()}
Kind = Literal["claims", "cells"]
Rows = list[dict[str, str]]


def checkout(part: str = "replications") -> Path:
    """Return the folder with `part`: this one, else the package's. Raise `UserError` where neither has it.

    This one may also be a project of the user's own, which has `replications/` and no more.
    """
    for folder in (Path("."), Path(__file__).parents[2]):
        if (folder / part).exists():
            return folder
    raise UserError(f"there is no {part} here: run this in a checkout of ddrl")


def places(further: Sequence[Path]) -> tuple[Path, tuple[Path, ...]]:
    """Return where results/ and reports/ are, and the roots of papers: of the checkout, and `further` ones.

    With further ones, whose results belong to no checkout, the former is the working directory. Raise `UserError` as
    `checkout`, and for a further root without papers.
    """
    own = checkout()
    return Path() if further else own, with_further(own / "replications", further)


def chosen_papers(roots: Roots, paper: str | None) -> list[str]:
    """Return `paper` alone, or all where it is None. Raise `UserError` for one that does not exist."""
    known = papers(roots)
    if paper is not None and paper not in known:
        raise unknown_name("paper", paper, known)
    return [paper] if paper else list(known)


def load(
    kind: Kind, roots: Roots, results: Path, paper: str | None, scale: str | None, verdict: str | None
) -> tuple[pd.DataFrame, list[str]]:
    """Return the claims or cells of `paper` (None: of all), and for each paper a line that says where they are from.

    `scale` None means the largest scale with tables, else `reference`; `verdict` None means all verdicts. Papers
    without runs have only a line.

    Raise `UserError` for an unknown paper, scale or verdict, or where there is nothing to read.
    """
    if scale not in (None, *SCALES, REFERENCE):
        raise unknown_name("scale", scale, [*SCALES, REFERENCE])
    if verdict not in (None, *VERDICTS[kind]):
        raise unknown_name("verdict", verdict, VERDICTS[kind])
    parts, sources = [], []
    for key in chosen_papers(roots, paper):
        table, source = _read(kind, key, roots, results, scale)
        if table is not None:
            parts.append(table.assign(paper=key)[["paper", *table.columns]])
        sources.append(f"{key}: {source}")
    if not parts:
        raise UserError("; ".join(sources))
    table = pd.concat(parts, ignore_index=True)
    if verdict is not None:
        table = table[table["verdict"] == verdict].reset_index(drop=True)
    return table, sources


def _read(kind: Kind, paper: str, roots: Roots, results: Path, scale: str | None) -> tuple[pd.DataFrame | None, str]:
    """Return the table of one paper, and where it came from; where there is none, None and the reason."""
    names = [name for name in reversed(SCALES) if scale in (None, name)]
    folders = {name: results / name / paper / "tables" for name in names}
    known = [*folders.values(), *([results / REFERENCE / paper] if scale in (None, REFERENCE) else [])]
    if not any(folder.is_dir() for folder in known):
        trained = next((name for name in names if _has_runs(results / name / paper)), None)
        if trained:
            return None, f"{folders[trained]}: no tables; make them: {_remedy(paper, trained)}"
        return None, f"no run has finished yet; train them: {_training(paper, scale or SCALES[0], roots)}"
    for name, folder in folders.items():
        path = folder / f"{kind}.parquet"
        if path.exists():
            try:
                return read_frame(read_file(path)), str(path)
            except (OSError, ValueError) as error:
                reason = " ".join(str(error).split())
                raise UserError(f"{path}: cannot be read ({reason}); make it anew: {_remedy(paper, name)}") from None
    from ddrl.analysis.tables import kept

    found = kept.tables(tuple(VERDICTS), folder_of(paper, roots), REFERENCE, [], results, allow_missing=True)
    return found[kind], f"from the runs in {results / REFERENCE / paper}"


def _has_runs(folder: Path) -> bool:
    """Return whether a run of a paper's experiments has finished."""
    return next(folder.glob("*/*/*/seed*/run.json"), None) is not None


def _training(paper: str, scale: str, roots: Roots) -> str:
    """Return the command that trains all of a paper and writes its report, in the checkout or from outside of it."""
    root, scale = folder_of(paper, roots).parent, SCALES[0] if scale == REFERENCE else scale
    if (root.parent / "Snakefile").exists():
        return f"make report PAPER={paper} SCALE={scale}"
    snakefile = Path(__file__).parents[2] / "Snakefile"
    words = ("--directory", ".", "--cores", "all", "--config", f"replications={root}", f"scale={scale}", "--", paper)
    return shlex.join(("python", "-m", "snakemake", "--snakefile", str(snakefile), *words))


def _remedy(paper: str, scale: str) -> str:
    return f"ddrl report {paper} --scale {scale}"


def rows(kind: Kind, table: pd.DataFrame) -> Rows:
    """Return what is printed of each claim or cell: column title -> text. Those without a run come last."""
    several = table["paper"].nunique() > 1
    ordered = sorted(records(table), key=lambda record: record["verdict"] == "not_run")
    return [({"paper": record["paper"]} if several else {}) | _row(kind, record) for record in ordered]


def _row(kind: Kind, record: Mapping[str, Any]) -> dict[str, str]:
    """Return the columns of a claim or cell; a claim without a run names its experiment in place of the effect."""
    if kind == "claims":
        name, unit = "claim", record.get("effect_unit") or ""
        effect = f"{_number(record['effect'])} {unit}".strip()
        values = {
            "effect": _text(record.get("experiment")) if record["verdict"] == "not_run" else effect,
            "95 %": _interval(record, "ci95"),
            "p": "" if record.get("p") is None else f"{record['p']:.2g}",
        }
        last = {"late": _text(record.get("late")), "says": _text(record.get("title"))}
    else:
        name, published, ours = "cell", _number(record["published"]), _number(record["ours"])
        values = {"published": published, "ours": ours, "90 %": _interval(record, "ci90")}
        last = {"flags": _text(record.get("flags")).replace(";", "; ").replace(",", ", ")}
        last |= {"late": _text(record.get("late"))}
    return {
        name: record[name],
        "runs": _text(record.get("origin")),
        "verdict": record["verdict"],
        **values,
        "seeds": _text(record.get("seeds")),
        "seeds to decide": _text(record.get("seeds_needed")),
        "frames": _frames(record.get("env_frames")),
        **last,
    }


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return one dict a row, with None for missing values and numbers of Python's own types."""
    missing: Any = None  # the type stubs of pandas know no None here
    found = table.astype(object).where(table.notna(), missing).to_dict("records")
    return [{str(name): value for name, value in row.items()} for row in found]


def print_rows(printed: Rows) -> None:
    """Print a table; in a terminal that is too narrow for it, a block for each row; elsewhere aligned plain lines."""
    if not printed:
        print("nothing to show")
        return
    widths = {title: max(len(title), *(len(row[title]) for row in printed)) for title in printed[0]}
    titles = [title for title in widths if any(row[title] for row in printed)]
    if not sys.stdout.isatty():
        for row in ({title: title for title in titles}, *printed):
            print("  ".join(row[title].ljust(widths[title]) for title in titles).rstrip())
        return
    titles = [title for title in titles if title not in TOO_WIDE]
    least = (max(len(title), NARROWEST) if title in WRAPPED else widths[title] for title in titles)
    if sum(least) + 2 * len(titles) <= shutil.get_terminal_size().columns:
        _print_table(printed, titles)
    else:
        wide = max(map(len, printed[0]))
        blocks = ([f"{title.ljust(wide)}  {value}" for title, value in row.items() if value] for row in printed)
        print("\n\n".join(map("\n".join, blocks)))


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


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _number(value: Any, digits: int = 4) -> str:
    """Return a number with `digits` significant digits, but with all digits before the point, up to 15 of them."""
    if value is None:
        return ""
    return f"{value:,.0f}" if 10 ** (digits - 1) <= abs(value) < 1e15 else f"{value:.{digits}g}"


def _interval(record: Mapping[str, Any], name: str) -> str:
    low, high = record.get(f"{name}_low"), record.get(f"{name}_high")
    return "" if low is None or high is None else f"[{_number(low, 3)}, {_number(high, 3)}]"


def _frames(value: Any) -> str:
    """Return environment frames, in millions from one million on."""
    if value is None:
        return ""
    return f"{value / 1e6:.4g}M" if value >= 1e6 else f"{value:,.0f}"


def system_rows(table: pd.DataFrame) -> Rows:
    """Return what is printed of each system: column title -> text."""
    return [
        {
            **{name: _text(record[name]) for name in SYSTEM_COLUMNS},
            "actors": f"{record['num_actors']} x {record['envs_per_actor']}",
            "threads": _text(record["learner_threads"]),
            "max lag": _text(record["max_policy_lag"]),
            "delay": _text(record["parameter_delay"]),
            **{name: _text(record[name]) for name in ("networks", "tasks", "variants")},
        }
        for record in records(table)
    ]


def tally(table: pd.DataFrame) -> str:
    """Return `31 rows: 3 supported, 28 not_run`."""
    counts = ", ".join(f"{count} {verdict}" for verdict, count in table["verdict"].value_counts().items())
    return counted(len(table), "row") + (f": {counts}" if counts else "")


def machine_readable(table: pd.DataFrame, form: Literal["json", "csv"]) -> str:
    """Return all columns and rows as a JSON list of objects (missing: null) or CSV with a header (missing: empty)."""
    if form == "json":
        return json.dumps(records(table), indent=1, ensure_ascii=False)
    return table_as_csv(table).rstrip("\n")
