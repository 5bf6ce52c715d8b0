"""The commands `python -m ddrl.regression check | accept | golden | points | throughput`.

Exit codes: 0 every check passed; 1 one failed, or nothing could be checked; 2 bad input (one line says what).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: one thread per role

from ddrl.errors import unknown_name
from ddrl.regression import evidence, golden, points, run_all, throughput
from ddrl.regression.checks import describe, exit_status, write_junit
from ddrl.system.exit_code import exit_code
from ddrl.system.notes import say

JUNIT = Path("results/regression/junit.xml")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m ddrl.regression", description="regression checks")
    commands = parser.add_subparsers(required=True, metavar="command")
    check = commands.add_parser("check", help="run the checks; one line each")
    check.add_argument("kinds", nargs="*", help=f"{', '.join(run_all.KINDS)} (default: all)")
    check.add_argument("--junit", type=Path, help=f"file to write (default: <root>/{JUNIT})")
    check.set_defaults(run=_check)
    accept = commands.add_parser("accept", help="take over changed evidence that the changelog explains")
    accept.add_argument("papers", nargs="*", help="papers, or suite (default: all with reference runs)")
    accept.set_defaults(run=_accept)
    curves = commands.add_parser("golden", help="record golden curves anew, after their algorithm's VERSION was raised")
    curves.add_argument("names", nargs="*", help="default: all")
    curves.set_defaults(run=_golden)
    reference = commands.add_parser("points", help="record the frames to a target anew, after a VERSION was raised")
    reference.add_argument("algorithms", nargs="*", metavar="algorithm", help="default: all")
    reference.set_defaults(run=_points)
    speed = commands.add_parser("throughput", help="measure the ratio that is committed, on an idle machine")
    speed.set_defaults(run=lambda parsed: print(throughput.accept(parsed.root, say)))
    for command in (check, accept, curves, reference, speed):
        command.add_argument("--root", type=Path, default=Path(), help="project root (default: here)")
    parsed = parser.parse_args(arguments)
    return exit_code(lambda: parsed.run(parsed))


def _check(parsed: argparse.Namespace) -> int:
    checks = run_all.run(parsed.root, parsed.kinds, lambda check: print(describe(check), flush=True))
    write_junit(checks, parsed.junit or parsed.root / JUNIT)
    return exit_status(checks)


def _accept(parsed: argparse.Namespace) -> None:
    for line in evidence.accept(parsed.papers, parsed.root):
        print(line)


def _points(parsed: argparse.Namespace) -> None:
    for line in points.record(parsed.algorithms, parsed.root):
        print(line, flush=True)


def _golden(parsed: argparse.Namespace) -> None:
    files = {path.stem: path for path in sorted((parsed.root / golden.FOLDER).glob("*.json"))}
    for name in parsed.names or files:
        if name not in files:
            raise unknown_name("golden curve", name, files, where=str(golden.FOLDER))
        golden.record(files[name])
        print(f"{files[name]}: recorded")


if __name__ == "__main__":
    sys.exit(main())
