"""Runs `python -m ddrl.analysis aggregate | suite | table | figure | figures`. Exit codes: 0 done; 2 bad input."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from ddrl.errors import UserError
from ddrl.papers.expansion import expand
from ddrl.papers.experiments import ROOT, SCALES, PlannedRun, folder_of, papers
from ddrl.papers.paper import DerivedTable, Figure, load_paper
from ddrl.papers.schema import check_known
from ddrl.papers.table_names import REFERENCE
from ddrl.system.exit_code import exit_code
from ddrl.system.notes import say

AnyNamed = TypeVar("AnyNamed", DerivedTable, Figure)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    parsed = _parser().parse_args(arguments)
    return exit_code(lambda: parsed.run(parsed))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ddrl.analysis", description="tables, verdicts and figures")
    commands = parser.add_subparsers(required=True, metavar="command")
    aggregate = commands.add_parser("aggregate", help="runs -> tables")
    aggregate.add_argument("--scale", default="smoke", help=f"{', '.join(SCALES)} or {REFERENCE}")
    aggregate.add_argument("--results", type=Path, default=Path("results"))
    aggregate.add_argument("--output", type=Path, help="default: <results>/<scale>/<paper>/tables")
    aggregate.add_argument("--allow-missing", action="store_true", help="leave out runs that have not finished")
    for name in ("experiments", "variants", "environments"):
        aggregate.add_argument(f"--{name}", nargs="+", help="only these")
    aggregate.add_argument("--seeds", nargs="+", type=int, help="these seeds instead of the scale's")
    aggregate.set_defaults(run=_aggregate)
    suite = commands.add_parser("suite", help="the papers' tables -> the suite's tables")
    suite.add_argument("--scale", default="smoke", help=f"{', '.join(SCALES)} or {REFERENCE}")
    suite.add_argument("--results", type=Path, default=Path("results"))
    suite.add_argument("--tables", type=Path, help="holds <paper>/tables; default: <results>/<scale>")
    suite.add_argument("--output", type=Path, help="default: <tables>/suite/tables")
    suite.add_argument("--papers", nargs="+", help="only these")
    suite.set_defaults(run=_suite)
    table = commands.add_parser("table", help="tables -> one that the paper's own tables.py makes")
    table.add_argument("--name", required=True)
    table.add_argument("--tables", type=Path, required=True, help="also where it is written")
    table.set_defaults(run=_table)
    figure = commands.add_parser("figure", help="tables -> one figure, as SVG and PNG")
    figure.add_argument("--name", required=True)
    figure.add_argument("--tables", type=Path, required=True)
    figure.add_argument("--output", type=Path, required=True)
    figure.set_defaults(run=_figure)
    figures = commands.add_parser("figures", help="the figures a paper wants, one a line")
    figures.set_defaults(run=_figures)
    for command in (aggregate, table, figure, figures):
        command.add_argument("--paper", required=True)
    for command in (aggregate, suite, table, figure, figures):
        folders = f"folders of papers (default: {ROOT})"
        command.add_argument("--replications", type=Path, nargs="+", default=[ROOT], metavar="DIR", help=folders)
    return parser


def _aggregate(parsed: argparse.Namespace) -> None:
    from ddrl.analysis.runs.problems import lines
    from ddrl.analysis.tables.build import build, write

    directory = _paper(parsed)
    planned = _planned(parsed)
    evidence = build(directory, parsed.scale, planned, parsed.results, allow_missing=parsed.allow_missing)
    for line in lines(evidence.tables["problems"]):
        say(f"ddrl: {line}")
    output = parsed.output or parsed.results / parsed.scale / parsed.paper / "tables"
    print(f"{len(write(evidence.tables, evidence.summary, output))} files in {output}")


def _suite(parsed: argparse.Namespace) -> None:
    from ddrl.analysis.runs.problems import lines
    from ddrl.analysis.tables.build import write
    from ddrl.analysis.tables.suite import build_suite

    check_known("paper", parsed.papers or (), papers(parsed.replications))
    check_known("scale", [parsed.scale], [*SCALES, REFERENCE])
    folder = parsed.tables or parsed.results / parsed.scale
    found = build_suite(parsed.replications, parsed.results, parsed.scale, folder=folder, only=parsed.papers)
    problems = found.tables["problems"]
    for line in lines(problems[problems["origin"].isin(["tables", "bench"])]):
        say(f"ddrl: {line}")
    output = parsed.output or folder / "suite" / "tables"
    print(f"{len(write(found.tables, found.summary, output))} files in {output}")


def _planned(parsed: argparse.Namespace) -> list[PlannedRun]:
    """Return the runs that were asked for; none at the pseudo-scale `REFERENCE`."""
    filters = {name: getattr(parsed, name) for name in ("experiments", "variants", "environments", "seeds")}
    check_known("scale", [parsed.scale], [*SCALES, REFERENCE])
    if parsed.scale != REFERENCE:
        return expand(parsed.paper, parsed.scale, root=parsed.replications, **filters)
    given = [name for name, value in filters.items() if value is not None]
    if given:
        raise UserError(f"--{given[0]}: not with --scale {REFERENCE}, which takes every committed run")
    if parsed.output is None:
        raise UserError(f"--output: needed with --scale {REFERENCE}, whose tables do not belong beside committed runs")
    return []


def _table(parsed: argparse.Namespace) -> None:
    from ddrl.analysis.tables.derived import derive

    paper = _paper(parsed)
    wanted = _named("derived table", parsed.name, load_paper(paper).derived, paper)
    for path in derive(paper, wanted, parsed.tables, parsed.tables):
        print(path)


def _figure(parsed: argparse.Namespace) -> None:
    from ddrl.analysis.figures.plots import draw

    paper = _paper(parsed)
    wanted = _named("figure", parsed.name, load_paper(paper).figures, paper)
    for path in draw(paper, wanted, parsed.tables, parsed.output):
        print(path)


def _figures(parsed: argparse.Namespace) -> None:
    for figure in load_paper(_paper(parsed)).figures:
        print(figure.name)


def _named(kind: str, name: str, items: Iterable[AnyNamed], paper: Path) -> AnyNamed:
    """Return the item of that name. Raise UserError if paper.yaml has none."""
    found = {item.name: item for item in items}
    check_known(kind, [name], found, where=str(paper / "paper.yaml"))
    return found[name]


def _paper(parsed: argparse.Namespace) -> Path:
    return folder_of(parsed.paper, parsed.replications)


if __name__ == "__main__":
    raise SystemExit(main())
