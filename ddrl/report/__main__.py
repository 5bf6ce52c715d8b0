"""The command that makes one report from tables and figures.

Usage: `python -m ddrl.report --results results/smoke/impala_2018 --data report.json --pdf report.pdf`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ddrl.report.build import write_report
from ddrl.system.exit_code import exit_code


def main(arguments: Sequence[str] | None = None) -> int:
    """Write data, PDF and HTML of a report; return the exit code (0, or 2 for bad input)."""
    parser = argparse.ArgumentParser(prog="python -m ddrl.report", description="Tables and figures to PDF and HTML.")
    parser.add_argument("--results", type=Path, required=True, help="folder with tables/ and figures/")
    parser.add_argument("--data", type=Path, required=True, help="report data to write, JSON")
    parser.add_argument("--pdf", type=Path, required=True, help="report to write")
    parser.add_argument("--html", type=Path, help="its HTML twin; default: beside the PDF")
    parser.add_argument("--command", default="", help="what made the results, printed at the foot of each page")
    parser.add_argument("--root", type=Path, default=Path(), help="checkout of ddrl, which holds reports/")
    parsed = parser.parse_args(arguments)
    html = parsed.html or parsed.pdf.with_suffix(".html")

    def command() -> None:
        outside = "" if parsed.results.is_absolute() else parsed.results.as_posix()
        write_report(
            parsed.results, parsed.data, parsed.pdf, html, command=parsed.command, outside=outside, root=parsed.root
        )

    return exit_code(command)


if __name__ == "__main__":
    sys.exit(main())
