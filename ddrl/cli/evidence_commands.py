"""The commands that keep evidence honest: plans fixed before the runs, and the ledger of discarded runs.

Each function takes the parsed arguments of the command of its name and returns the exit code (None: 0).
"""

from __future__ import annotations

import argparse
from typing import Any

from ddrl.cli.shared_arguments import add, add_replications
from ddrl.errors import UserError


def add_to(added: Any) -> None:
    """Add the commands to the parser of all commands."""
    plans = add(
        added,
        register,
        "register the plans of claims (tests, thresholds, tasks, seeds, settings) before their runs are made",
        "Appends the plans in force to plans.csv of each paper. Register, commit, then run: a claim whose plan is "
        "younger than a run says so in every report. With --check, exit code 1 where a plan is not registered.",
    )
    plans.add_argument("papers", nargs="*", metavar="PAPER", help="such as impala_2018 (all, if left out)")
    plans.add_argument("--check", action="store_true", help="only name the plans that are not registered")
    plans.add_argument(
        "--history", action="store_true", help="of a paper without a register: take its plans from the history of git"
    )
    add_replications(plans)


def register(parsed: argparse.Namespace) -> int:
    """Return 1 where --check finds a plan that is not registered."""
    from ddrl.cli import register, tables
    from ddrl.papers.experiments import folder_of, papers

    if parsed.check and parsed.history:
        raise UserError("--check and --history: allowed: one of them")
    _, roots = tables.places(parsed.replications)
    folders = [folder_of(name, roots) for name in parsed.papers or papers(roots)]
    if parsed.check:
        lines = register.unregistered(folders)
        print("\n".join(lines) or "every plan in force is registered")
        return 1 if lines else 0
    lines = (register.from_history if parsed.history else register.register)(folders)
    print("\n".join(lines) or "every plan in force was registered already")
    return 0
