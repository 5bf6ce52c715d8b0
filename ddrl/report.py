"""Tables and figures of one paper at one scale -> report data (JSON) -> PDF.

Reads only `tables/*.csv`, `tables/summary.json` and `figures/*.svg` of a results folder. The data hold every text as it
is printed; `reports/paper.typ` lays them out. The same tables give the same bytes: no clock, no system fonts.
Usage: `python -m ddrl.report --results results/smoke/impala_2018 --data report.json --pdf report.pdf`.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from ddrl.errors import UserError, exit_code
from ddrl.report_data import Tables, report_data


def read_tables(folder: Path) -> tuple[Tables, dict[str, Any]]:
    """Every table of `folder` by name, and its summary with the digest of all of them (`digest`).

    Raises `UserError` where the summary is missing or damaged.
    """
    try:
        summary = json.loads((folder / "summary.json").read_text("utf-8"))
    except FileNotFoundError:
        raise UserError(f"{folder}/summary.json: no such file; make the tables first") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{folder}/summary.json: not valid JSON ({error})") from None
    tables = {}
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.csv")):
        digest.update(path.name.encode() + path.read_bytes())
        with path.open(newline="", encoding="utf-8") as file:
            tables[path.stem] = list(csv.DictReader(file))
    return tables, summary | {"digest": digest.hexdigest()[:16]}


def write_pdf(data: Path, pdf: Path, root: Path) -> None:
    """Sets `reports/paper.typ` with `data`. Raises `UserError` where typst cannot."""
    import matplotlib
    import typst

    finished = json.loads(data.read_text("utf-8"))["finished"]
    fonts = Path(matplotlib.get_data_path(), "fonts", "ttf")  # those the figures were measured with
    try:
        content = typst.compile(
            root / "reports" / "paper.typ",
            root=root,
            format="pdf",
            font_paths=[fonts],
            ignore_system_fonts=True,
            sys_inputs={"data": f"/{data.resolve().relative_to(root.resolve()).as_posix()}"},
            pdf_standards=["ua-1"],
            timestamp=datetime.fromisoformat(finished),  # when the results were made: a rebuild gives the same bytes
        )
    except typst.TypstError as error:
        raise UserError(f"{root}/reports/paper.typ: {error.diagnostic}") from None
    write_whole(pdf, content)


def write_whole(path: Path, content: bytes) -> None:
    """Writes beside `path` and renames, so that a file that exists is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(content)
    os.replace(partial, path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parses the command line, writes data and PDF; returns the exit code (0, or 2 for bad input)."""
    parser = argparse.ArgumentParser(prog="python -m ddrl.report", description="Tables and figures to a PDF.")
    parser.add_argument("--results", type=Path, required=True, help="folder with tables/ and figures/")
    parser.add_argument("--data", type=Path, required=True, help="report data to write, JSON")
    parser.add_argument("--pdf", type=Path, required=True, help="report to write")
    parser.add_argument("--command", default="", help="what made the results, printed under provenance")
    parser.add_argument("--root", type=Path, default=Path(), help="project root, which holds reports/ and the results")
    parsed = parser.parse_args(arguments)
    return exit_code(lambda: _write(parsed))


def _write(parsed: argparse.Namespace) -> None:
    tables, summary = read_tables(parsed.results / "tables")
    command = parsed.command or f"snakemake --cores {summary['paper']['key']}"
    data = report_data(tables, summary | {"command": command}, parsed.results)
    write_whole(parsed.data, (json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode())
    write_pdf(parsed.data, parsed.pdf, parsed.root)


if __name__ == "__main__":
    sys.exit(main())
