"""The runs of a paper at a scale with their resolved and checked configurations, and a command line for them.

    python -m ddrl.training.config.experiments list   --paper impala_2018 --scale smoke
    python -m ddrl.training.config.experiments config --paper P --scale S --experiment E --variant V \\
                                                      --environment atari-pong --seed 1 --output config.json
    python -m ddrl.training.config.experiments check
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ddrl.papers.expansion import expand as expand_unchecked
from ddrl.papers.expansion import narrowed
from ddrl.papers.experiments import ROOT, SCALES, PlannedRun, Roots, folder_of, load_experiments, papers
from ddrl.papers.plans import PLANS, carried
from ddrl.system.exit_code import exit_code
from ddrl.system.files import read_file, write_whole

__all__ = [
    "ROOT",
    "SCALES",
    "PlannedRun",
    "expand",
    "load_experiments",
    "main",
    "narrowed",
    "paper_configs",
    "papers",
    "write_configs",
]


def expand(
    paper: str,
    scale: str,
    *,
    experiments: Sequence[str] | None = None,
    variants: Sequence[str] | None = None,
    environments: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    root: Roots = ROOT,
    validate: bool = True,
) -> list[PlannedRun]:
    """Expand as `ddrl.papers.expansion.expand`; with `validate`, check configurations and fill in their defaults.

    Raise `UserError` for anything not allowed.
    """
    names = {"experiments": experiments, "variants": variants, "environments": environments}
    runs = expand_unchecked(paper, scale, **names, seeds=seeds, root=root)
    return [_validated(run, folder_of(paper, root)) for run in runs] if validate else runs


def _validated(run: PlannedRun, folder: Path) -> PlannedRun:
    where = f"{folder / 'experiments.yaml'}: {run.scale}/{run.key}"
    return dataclasses.replace(run, config=_resolved(run.config, where))


def _resolved(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return a configuration with its defaults, resolved once for all seeds."""
    from ddrl.environments.base.registry import check_read
    from ddrl.training.config.run_config import parse_run_config, to_json  # imports torch

    key = json.dumps({**config, "seed": 0})
    if key not in _RESOLVED:
        resolved = to_json(parse_run_config(config, where=where))
        options = dict(resolved["environment"])
        check_read(options.pop("name"), options, given=options, where=f"{where}: environment")
        _RESOLVED[key] = resolved
    return _RESOLVED[key] | {"seed": config["seed"]}


_RESOLVED: dict[str, dict[str, Any]] = {}
"""A configuration as text, with seed 0 -> the configuration with its defaults."""


def paper_configs(paper: str, root: Roots = ROOT) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Return (experiment, variant, environment) -> the resolved configuration that the paper states, with seed 0."""
    found, path = {}, folder_of(paper, root) / "experiments.yaml"
    for name, entry in load_experiments(path.parent).items():
        for variant in entry.variants:
            for environment in filter(partial(entry.has, variant), entry.every_environment):
                config = entry.paper_setting(variant, environment) | {"seed": 0}
                where = f"{path}: {name}/{variant}/{environment} as the paper states it"
                found[name, variant, environment] = _resolved(config, where)
    return found


def write_configs(
    runs: Iterable[PlannedRun], results: str | Path = "results", folders: Mapping[str, Path] | None = None
) -> list[Path]:
    """Write every run's config.json, but only if its content changes, so that no run is repeated without need.

    With `folders` (paper -> where its files are), write beside it the registered plans of the claims that use the run,
    if it has not finished.
    """
    planned = list(runs)
    for paper, folder in (folders or {}).items():
        own = [run for run in planned if run.paper == paper]
        for scale in dict.fromkeys(run.scale for run in own):
            _write_plans([run for run in own if run.scale == scale], folder, scale, results)
    return [_write_config(run, run.directory(results) / "config.json") for run in planned]


def _write_plans(runs: Sequence[PlannedRun], folder: Path, scale: str, results: str | Path) -> None:
    found = carried(folder, scale, runs)
    for run in runs:
        directory = run.directory(results)
        if not (directory / "run.json").exists():
            write_whole(directory / PLANS, (json.dumps(found[run.key], indent=1, sort_keys=True) + "\n").encode())


def _write_config(run: PlannedRun, path: Path) -> Path:
    text = json.dumps(run.config, indent=1, sort_keys=True) + "\n"
    if path.exists() and read_file(path) == text.encode():
        return path
    write_whole(path, text.encode())
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code (2 for bad input)."""
    parsed = _parser().parse_args(arguments)
    return exit_code(lambda: parsed.run(parsed))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ddrl.training.config.experiments", description="the runs of a paper at a scale"
    )
    commands = parser.add_subparsers(required=True, metavar="command")
    listing = commands.add_parser("list", help="one run a line")
    config = commands.add_parser("config", help="write one run's config.json")
    for command in (listing, config):
        command.add_argument("--paper", required=True)
        command.add_argument("--scale", default="smoke")
    config.add_argument("--experiment", required=True)
    config.add_argument("--variant", required=True)
    config.add_argument("--environment", required=True, help="such as atari-pong or atari/pong")
    config.add_argument("--seed", type=int, required=True)
    config.add_argument("--output", type=Path, required=True)
    check = commands.add_parser("check", help="check every file of the replications")
    check.add_argument("--paper")
    for command in (listing, config, check):
        folders = f"folders of papers (default: {ROOT})"
        command.add_argument("--replications", type=Path, nargs="+", default=[ROOT], metavar="DIR", help=folders)
    listing.set_defaults(run=_list)
    config.set_defaults(run=_config)
    check.set_defaults(run=_check)
    return parser


def _list(parsed: argparse.Namespace) -> None:
    for run in expand(parsed.paper, parsed.scale, root=parsed.replications, validate=False):
        print(run.key)


def _config(parsed: argparse.Namespace) -> None:
    runs = expand(
        parsed.paper,
        parsed.scale,
        experiments=[parsed.experiment],
        variants=[parsed.variant],
        # A folder's name has "-" for "/"; a prefix has neither, so the first of them is where it ends.
        environments=[re.sub("[-/]", "/", parsed.environment, count=1)],
        seeds=[parsed.seed],
        root=parsed.replications,
    )
    print(_write_config(runs[0], parsed.output))


def _check(parsed: argparse.Namespace) -> None:
    from ddrl.papers.check import check_paper

    for paper in [parsed.paper] if parsed.paper else papers(parsed.replications):
        for scale in SCALES:
            expand(paper, scale, root=parsed.replications)
        paper_configs(paper, parsed.replications)
        check_paper(folder_of(paper, parsed.replications))
        print(f"{paper}: paper.yaml, experiments.yaml, published, DEVIATIONS.md and its own code are well formed")


if __name__ == "__main__":
    raise SystemExit(main())
