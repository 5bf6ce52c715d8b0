"""The commands that keep evidence honest: plans fixed before the runs, and the ledger of discarded runs.

Each function takes the parsed arguments of the command of its name and returns the exit code (None: 0).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ddrl.cli.shared_arguments import add, add_replications, path
from ddrl.errors import UserError


def add_to(added: Any) -> None:
    """Add the commands to the parser of all commands."""
    plans = add(
        added,
        register,
        "register the plans of claims (tests, thresholds, tasks, seeds, settings) before their runs are made",
        "Appends the plans in force to plans.csv of each paper. Register, commit, then run: a claim whose plan is "
        "younger than a run says so in every report. With --check, exit code 1 where a plan is not registered, or "
        "where git's history shows that a row was changed or backdated.",
    )
    plans.add_argument("papers", nargs="*", metavar="PAPER", help="such as impala_2018 (all, if left out)")
    plans.add_argument(
        "--check",
        action="store_true",
        help="only name missing plans, and changed or backdated rows",
    )
    plans.add_argument(
        "--history", action="store_true", help="of a paper without a register: take its plans from the history of git"
    )
    add_replications(plans)
    _add_runs(added)


def _add_runs(added: Any) -> None:
    """Add the commands about the ledger of reference runs."""
    out = add(
        added,
        discard,
        "move reference runs out, each with a row in the ledger of discarded runs",
        "The ledger, results/reference/discarded.csv, is committed. The runs are then in results/discarded. With "
        "--check, exit code 1 where a run is missing in the ledger, or a row has no run.",
    )
    kept = add(
        added,
        keep,
        "copy finished runs to the reference runs; one that is replaced gets a row in the ledger",
        "Such as: ddrl keep results/workstation/impala_2018/atari/shallow/atari-pong/seed1",
    )
    out.add_argument(
        "--check",
        action="store_true",
        help="only name runs that git's history has lost and the ledger lacks, and rows without a run",
    )
    for command, number in ((out, "*"), (kept, "+")):
        command.add_argument("runs", type=path, nargs=number, metavar="RUN", help="run directories")
        command.set_defaults(more="runs")
        command.add_argument("--reason", default="", help="why the runs that go are no longer evidence, in a sentence")
        command.add_argument("--results", type=path, default=Path("results"), help="folder of results (%(default)s)")


def discard(parsed: argparse.Namespace) -> int:
    """Print where each run is then. Return 1 where --check finds a run without a row."""
    from ddrl.cli import discarding
    from ddrl.system.git import now

    if parsed.check == bool(parsed.runs):
        raise UserError("discard: allowed: run directories with --reason, or --check alone")
    if parsed.check:
        lines = discarding.unaccounted(parsed.results)
        print("\n".join(lines) or "every discarded run of git's history is in the ledger, and every row has its run")
        return 1 if lines else 0
    print("\n".join(discarding.discard(parsed.runs, parsed.results, parsed.reason, now())))
    return 0


def keep(parsed: argparse.Namespace) -> None:
    """Print each run that was copied or replaced."""
    from ddrl.cli import discarding
    from ddrl.system.git import now

    print("\n".join(discarding.keep(parsed.runs, parsed.results, parsed.reason, now())))


def register(parsed: argparse.Namespace) -> int:
    """Return 1 where --check finds a plan that is not registered, or a row that was changed or backdated.

    Raise `UserError` where --check has no whole history of git.
    """
    from ddrl.cli import register, tables
    from ddrl.papers.experiments import folder_of, papers

    if parsed.check and parsed.history:
        raise UserError("--check and --history: allowed: one of them")
    _, roots = tables.places(parsed.replications)
    folders = [folder_of(name, roots) for name in parsed.papers or papers(roots)]
    if parsed.check:
        lines = register.unregistered(folders)
        if lines:
            print("\n".join(lines))
        changed = register.rewritten(folders)
        if changed or not lines:
            print("\n".join(changed) or "every plan in force is registered, and no row of a register was changed")
        return 1 if lines or changed else 0
    lines = (register.from_history if parsed.history else register.register)(folders)
    print("\n".join(lines) or "every plan in force was registered already")
    return 0
