"""The ledger of reference runs that were dropped or replaced: `results/reference/discarded.csv`.

A verdict on the runs that are left says nothing of those that are gone, so each of these has a row that stays. Rows are
written by `ddrl discard` and `ddrl keep`, and never removed. No pandas here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ddrl.errors import UserError
from ddrl.papers.plans import shortened
from ddrl.papers.table_names import REFERENCE
from ddrl.system.config_differences import compared, flatten
from ddrl.system.csv_cells import read_rows, write_rows
from ddrl.system.files import replacing

LEDGER = "discarded.csv"


@dataclass(frozen=True)
class Discarded:
    """A row of the ledger: a reference run that is no longer one."""

    paper: str
    experiment: str
    variant: str
    task: str
    seed: str
    settings: str
    """Digest of the configuration without the seed, of keys that change what is computed."""
    frames: str
    end: str
    """"finished", or why the run ended before its budget."""
    started: str
    when: str
    """When it was discarded (UTC)."""
    reason: str
    replaced_by: str
    """Places of the runs that stand for it now; empty: none."""
    commit: str
    """The commit that discarded it, whose parent holds the run; empty: the one that added the row."""

    @property
    def place(self) -> tuple[str, ...]:
        """Paper, experiment, variant, task, seed."""
        return self.paper, self.experiment, self.variant, self.task, self.seed


COLUMNS = tuple(field.name for field in fields(Discarded))


def row_of(
    place: Sequence[str], manifest: Mapping[str, Any], when: str, reason: str, replaced_by: Iterable[str], commit: str
) -> Discarded:
    """Return the row of a run at paper, experiment, variant, folder of the task and folder of the seed."""
    paper, experiment, variant, environment, seed = place
    config = {key: value for key, value in flatten(manifest.get("config", {})).items() if compared(key)}
    config.pop("seed", None)
    end = str(manifest.get("exit_reason", "unknown"))
    return Discarded(
        paper=paper,
        experiment=experiment,
        variant=variant,
        task=environment.replace("-", "/", 1),
        seed=seed.removeprefix("seed"),
        settings=shortened(config),
        frames=str(manifest.get("env_frames", "")),
        end="finished" if end == "budget_reached" else end,
        started=str(manifest.get("started") or ""),
        when=when,
        reason=reason,
        replaced_by="; ".join(replaced_by),
        commit=commit,
    )


def read_ledger(results: Path) -> list[Discarded]:
    """Return the rows of the ledger of a folder of results; none where it has no ledger.

    Raise `UserError` for a ledger that lacks a column.
    """
    path = results / REFERENCE / LEDGER
    rows = read_rows(path) if path.exists() else []
    if missing := sorted({name for row in rows for name in COLUMNS if row.get(name) is None}):
        raise UserError(f"{path}: lacks column '{missing[0]}'; restore it from the repository")
    return [Discarded(**{name: row[name] for name in COLUMNS}) for row in rows]


def write_ledger(results: Path, rows: Iterable[Discarded]) -> Path:
    """Write the whole ledger of a folder of results, and return its path."""
    path = results / REFERENCE / LEDGER
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        write_rows(file, COLUMNS, (vars(row) for row in rows))
    return path


def counts(rows: Iterable[Discarded], paper: str) -> dict[str, int]:
    """Return how many runs of each experiment of a paper were discarded."""
    found = Counter(row.experiment for row in rows if row.paper == paper)
    return {name: found[name] for name in sorted(found)}


def place_of(directory: Path) -> tuple[str, ...]:
    """Return paper, experiment, variant, folders of task and seed of a run's directory.

    Raise `UserError` where the directory is not in such folders.
    """
    parts = directory.resolve().parts[-5:]
    if len(parts) < 5 or not parts[-1].removeprefix("seed").isdecimal():
        raise UserError(f"{directory}: is no run of a paper (paper/experiment/variant/environment/seed<k>)")
    return parts
