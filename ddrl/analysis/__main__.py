"""`python -m ddrl.analysis aggregate | figure | figures`. Exit codes: 0 done; 2 bad input (one line says what)."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ddrl.analysis.experiments import ROOT, expand, papers
from ddrl.analysis.paper import load_paper
from ddrl.errors import exit_code, unknown_name


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    parsed = _parser().parse_args(arguments)
    return exit_code(lambda: parsed.run(parsed))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ddrl.analysis", description="tables, verdicts and figures")
    commands = parser.add_subparsers(required=True, metavar="command")
    aggregate = commands.add_parser("aggregate", help="runs -> tables")
    aggregate.add_argument("--scale", default="smoke")
    aggregate.add_argument("--results", type=Path, default=Path("results"))
    aggregate.add_argument("--output", type=Path, help="default: <results>/<scale>/<paper>/tables")
    aggregate.add_argument("--allow-missing", action="store_true", help="leave out runs that have not finished")
    for name in ("experiments", "variants", "environments"):
        aggregate.add_argument(f"--{name}", nargs="+", help="only these")
    aggregate.add_argument("--seeds", nargs="+", type=int, help="these seeds instead of the scale's")
    aggregate.set_defaults(run=_aggregate)
    figure = commands.add_parser("figure", help="tables -> one figure, as SVG and PNG")
    figure.add_argument("--name", required=True)
    figure.add_argument("--tables", type=Path, required=True)
    figure.add_argument("--output", type=Path, required=True)
    figure.set_defaults(run=_figure)
    figures = commands.add_parser("figures", help="the figures a paper wants, one a line")
    figures.set_defaults(run=_figures)
    for command in (aggregate, figure, figures):
        command.add_argument("--paper", required=True)
        command.add_argument("--replications", type=Path, default=ROOT)
    return parser


def _aggregate(parsed: argparse.Namespace) -> None:
    from ddrl.analysis.tables import build, write

    planned = expand(
        parsed.paper,
        parsed.scale,
        experiments=parsed.experiments,
        variants=parsed.variants,
        environments=parsed.environments,
        seeds=parsed.seeds,
        root=parsed.replications,
    )
    directory = parsed.replications / parsed.paper
    evidence = build(directory, parsed.scale, planned, parsed.results, allow_missing=parsed.allow_missing)
    output = parsed.output or parsed.results / parsed.scale / parsed.paper / "tables"
    print(f"{len(write(evidence, output))} files in {output}")


def _figure(parsed: argparse.Namespace) -> None:
    from ddrl.analysis.plots import draw

    paper = _paper(parsed)
    wanted = {figure.name: figure for figure in load_paper(paper).figures}
    if parsed.name not in wanted:
        raise unknown_name("figure", parsed.name, wanted, where=str(paper / "paper.yaml"))
    for path in draw(paper, wanted[parsed.name], parsed.tables, parsed.output):
        print(path)


def _figures(parsed: argparse.Namespace) -> None:
    for figure in load_paper(_paper(parsed)).figures:
        print(figure.name)


def _paper(parsed: argparse.Namespace) -> Path:
    known = papers(parsed.replications)
    if parsed.paper not in known:
        raise unknown_name("paper", parsed.paper, known)
    directory: Path = parsed.replications / parsed.paper
    return directory


if __name__ == "__main__":
    raise SystemExit(main())
