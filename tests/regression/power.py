"""What the reference convergence points find: trains their fresh seeds with a fault planted in every process.

    python -m tests.regression.power                  every fault and every point; many minutes
    python -m tests.regression.power halved ppo r2d2  one fault, some points
    python -m tests.regression.power level            judges measured frames anew: a new point changes the level

`tests/regression/points/power.csv` keeps what it found. Not part of any check.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ddrl.regression import limits, points
from ddrl.regression.checks import Check

ROOT = Path(__file__).parents[2]
FILE = ROOT / points.FOLDER / "power.csv"


def halved() -> None:
    """Every optimizer gets half of the learning rate."""
    from ddrl.learners import parameter_groups, shared_updates

    set_learning_rate, linear_decay = parameter_groups.set_learning_rate, shared_updates.linear_decay
    parameter_groups.set_learning_rate = lambda optimizer, rate: set_learning_rate(optimizer, rate / 2)
    shared_updates.linear_decay = lambda *arguments: linear_decay(*arguments) / 2


def lost() -> None:
    """The gradient of half of every batch is lost; where each actor brings a gradient, every second one is."""
    from ddrl.learners import data_parallel, shared_updates

    backward, apply = data_parallel.ColumnParallel.backward, shared_updates.SharedUpdates.apply

    def half(gradients: Any, loss: Any, batch: Any, kept: Any = None) -> Any:
        return backward(gradients, loss, batch.columns(0, max(1, batch.batch_size // 2)))

    def every_second(updates: Any, gradients: Any, *others: Any) -> Any:
        if updates.updates % 2:
            for tensor in gradients.tensors:
                tensor.zero_()
        return apply(updates, gradients, *others)

    data_parallel.ColumnParallel.backward = half  # type: ignore[method-assign]
    shared_updates.SharedUpdates.apply = every_second  # type: ignore[method-assign]


FAULTS: Mapping[str, Callable[[], None]] = {"halved": halved, "lost": lost}
"""Name -> what plants it in a process; its first line says what it does."""


def main(fault: str = "", *names: str) -> None:
    """Prints and keeps one row for each fault and point."""
    if fault == "level":
        for row in list(csv.DictReader(FILE.open())):
            keep(levelled(row))
        return
    for kind in [fault] if fault else FAULTS:
        for check in points.checks(ROOT, FAULTS[kind], names):
            row = {
                "fault": kind,
                "meaning": (FAULTS[kind].__doc__ or "").splitlines()[0],
                "point": check.name.removeprefix("point: "),
                "found": found(check),
                "line": check.line,
            }
            print(row, flush=True)
            keep(row)


def found(check: Check) -> str:
    """`yes` or `no`. Raises `RuntimeError` where nothing was compared: the point is outdated, or training broke."""
    if "; at most " not in check.line:
        raise RuntimeError(f"{check.name}: {check.line}")
    return "no" if check.passed else "yes"


def levelled(row: Mapping[str, str]) -> dict[str, str]:
    """Returns a row with the limit of today's level, for the same frames."""
    recorded = list(points.read(ROOT / points.FOLDER / f"{row['point']}.json")["frames"].values())
    level = points.level(ROOT)
    allowed = limits.limit(recorded, len(points.FRESH), level)
    line = re.sub(r"at most [\d,]+ at level [\d.]+", f"at most {allowed:,.0f} at level {level:.2g}", row["line"])
    reached = float(row["line"].split(" frames")[0].replace(",", ""))
    return {**row, "line": line, "found": "no" if reached <= allowed else "yes"}


def keep(row: Mapping[str, str]) -> None:
    """Replaces the row of the same fault and point."""
    rows = list(csv.DictReader(FILE.open())) if FILE.exists() else []
    rows = [one for one in rows if (one["fault"], one["point"]) != (row["fault"], row["point"])]
    rows = sorted([*rows, dict(row)], key=lambda one: (one["fault"], one["point"]))
    with FILE.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(row), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
