"""The commands that make one report from tables and figures, and the page of all reports.

Usage: `python -m ddrl.report --results results/smoke/impala_2018 --data report.json --pdf report.pdf`, and
`python -m ddrl.report --index reports --data results/smoke/impala_2018/report.json results/smoke/suite/report.json`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ddrl.errors import UserError
from ddrl.report.build import write_index, write_report
from ddrl.system.exit_code import exit_code


def main(arguments: Sequence[str] | None = None) -> int:
    """Write data, PDF and HTML of a report, or an index; return the exit code (0, or 2 for bad input)."""
    parser = argparse.ArgumentParser(prog="python -m ddrl.report", description="Tables and figures to PDF and HTML.")
    parser.add_argument("--results", type=Path, help="folder with tables/ and figures/")
    parser.add_argument("--data", type=Path, nargs="+", required=True, help="report data (JSON) to write, or to index")
    parser.add_argument("--pdf", type=Path, help="report to write")
    parser.add_argument("--html", type=Path, help="its HTML twin; default: beside the PDF")
    parser.add_argument("--index", type=Path, help="folder of reports whose index.html to write instead")
    parser.add_argument("--command", default="", help="what made the results, printed at the foot of each page")
    parser.add_argument("--root", type=Path, default=Path(), help="checkout of ddrl, which holds reports/")
    parsed = parser.parse_args(arguments)
    return exit_code(lambda: _write(parsed))


def _write(parsed: argparse.Namespace) -> None:
    if parsed.index:
        write_index(parsed.data, parsed.index, parsed.root)
        return
    if not parsed.results or not parsed.pdf or len(parsed.data) > 1:
        raise UserError("ddrl.report: a report needs --results, --pdf and one --data; an index needs --index")
    html = parsed.html or parsed.pdf.with_suffix(".html")
    outside = "" if parsed.results.is_absolute() else parsed.results.as_posix()
    write_report(
        parsed.results, parsed.data[0], parsed.pdf, html, command=parsed.command, outside=outside, root=parsed.root
    )


if __name__ == "__main__":
    sys.exit(main())
