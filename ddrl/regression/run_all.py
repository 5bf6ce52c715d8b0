"""All regression checks, those that need least first: files, short runs, longer runs, an idle machine."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from ddrl.errors import UserError, unknown_name
from ddrl.regression import evidence, golden, points, throughput
from ddrl.regression.checks import Check, CheckOutcome, timed
from ddrl.regression.convergence import verify_against
from ddrl.runtimes.local import train_local
from ddrl.system.text_files import read_json
from ddrl.training.config.run_config import load_run_config, to_json
from ddrl.training.records.recorder import write_json

REFERENCE = Path("results/reference")
CONVERGENCE = Path("tests/regression/convergence.json")
"""Reference groups that the convergence check trains anew -> seeds that the reference does not have."""


def evidence_checks(root: Path) -> Iterator[Check]:
    """Build the reports anew, then check each paper with reference runs, and the suite."""
    yield timed("evidence: reports build", partial(evidence.rebuild, root))
    for name in evidence.names(root):
        yield timed(f"evidence: {name}", partial(evidence.check, name, root))


def golden_checks(root: Path) -> Iterator[Check]:
    """Check each golden file."""
    for path in sorted((root / golden.FOLDER).glob("*.json")):
        yield timed(f"golden: {path.stem}", partial(golden.check, path))


def convergence_checks(root: Path) -> Iterator[Check]:
    """Train the groups of `CONVERGENCE` and test them against the reference.

    A test that cannot be made counts as failed: groups and budgets are chosen such that each test can be made.
    """
    runs = root / "results" / "regression" / "runs"
    shutil.rmtree(runs, ignore_errors=True)
    checks: list[Check] = []

    def work() -> CheckOutcome:
        for group, seeds in read_json(root / CONVERGENCE).items():
            train_seeds(root / REFERENCE / group, runs / group, seeds)
        checks.extend(verify_against(runs, root / REFERENCE, replications=root / "replications"))
        return CheckOutcome(True, "")

    whole = timed("runs", work)
    for check in checks if whole.passed else [whole]:
        name, seconds = f"convergence: {check.name}", whole.seconds / max(1, len(checks))
        yield dataclasses.replace(check, name=name, passed=bool(check.passed), seconds=seconds)


def train_seeds(reference: Path, target: Path, seeds: Sequence[int], *, env_frames: int | None = None) -> None:
    """Train `target/seed<k>` as the first reference run was, for `env_frames` where given."""
    first = next(iter(sorted(reference.glob("seed*/config.json"))), None)
    if first is None:
        raise UserError(f"{reference}: holds no run (seed<k>/config.json)")
    stated = load_run_config(first)
    for seed in seeds:
        config = dataclasses.replace(stated, seed=seed, tracking=(), env_frames=env_frames or stated.env_frames)
        directory = target / f"seed{seed}"
        directory.mkdir(parents=True)
        write_json(directory / "config.json", to_json(config))
        train_local(config, directory, quiet=True)


KINDS: Mapping[str, Callable[[Path], Iterable[Check]]] = {
    "evidence": evidence_checks,
    "golden": golden_checks,
    "convergence": convergence_checks,
    "points": points.checks,
    "throughput": lambda root: [timed("throughput: pong", partial(throughput.check, root))],
}


def run(root: Path, kinds: Sequence[str], show: Callable[[Check], None]) -> list[Check]:
    """Run the checks of `kinds` (none: all) and show each at once. Raise UserError for an unknown kind."""
    for kind in kinds:
        if kind not in KINDS:
            raise unknown_name("check", kind, KINDS)
    checks = []
    for kind in kinds or KINDS:
        for check in KINDS[kind](root):
            show(check)
            checks.append(check)
    return checks
