"""The results of a finished population: `run.json`, `lineage.parquet`, and the curves of the best member's ancestry.

Counts at the top of `run.json`, as in the curves, are those along this ancestry, whose frames are one member's budget.
The block `population` has the sums over all members.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddrl.errors import UserError
from ddrl.population.journal import Decision, Journal, Piece, ancestry, as_table
from ddrl.system.files import read_file
from ddrl.system.parquet import read_frame
from ddrl.system.text_files import read_json
from ddrl.training.builder import Builder
from ddrl.training.config.run_config import RunConfig, load_run_config
from ddrl.training.records import checkpoint
from ddrl.training.records.finished import common_record
from ddrl.training.records.recorder import COUNTS, read_curves, write_json, write_table

if TYPE_CHECKING:
    import pandas as pd

CUMULATIVE_COLUMNS = ("agent_steps", "updates", "seconds")
CUMULATIVE_METRICS = ("episodes", "cpu_seconds")
"""Columns and metrics that a member counts from its own start, and the curves from the first ancestor's start."""


def best_member(journal: Journal, size: int) -> int:
    """Return the member with the highest last fitness, the first of several; all have decided."""
    fitness = [-math.inf if final.fitness is None else final.fitness for final in _finals(journal, size)]
    return fitness.index(max(fitness))


def _finals(journal: Journal, size: int) -> list[Decision]:
    """Return the last decision of each member; all have decided."""
    return [journal.of(member)[-1] for member in range(size)]


def curves_along(pieces: Sequence[Piece], tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the records of `pieces` as those of one run; `tables` are the curves of each piece's member.

    Frames stay as the members counted them. Agent steps, updates, seconds and episodes continue from the piece before,
    by what the member has added since its own piece began.
    """
    import pandas as pd  # slow to import

    parts: list[pd.DataFrame] = []
    reached = dict.fromkeys((*CUMULATIVE_COLUMNS, *CUMULATIVE_METRICS), 0.0)
    for piece, table in zip(pieces, tables, strict=True):
        before = table[table.env_frames <= piece.start]
        part = table[(table.env_frames > piece.start) & (table.env_frames <= piece.end)].copy()
        for column in CUMULATIVE_COLUMNS:
            offset = reached[column] - (before[column].max() if len(before) else 0)
            part[column] = (part[column] + offset).astype(table[column].dtype)
            reached[column] = part[column].max() if len(part) else reached[column]
        for metric in CUMULATIVE_METRICS:
            own, earlier = part.metric == metric, before[before.metric == metric].value
            part.loc[own, "value"] += reached[metric] - (earlier.max() if len(earlier) else 0.0)
            reached[metric] = part[own].value.max() if own.any() else reached[metric]
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


def write(builder: Builder, directory: Path, journal: Journal, provenance: dict[str, Any], seconds: float) -> None:
    """Write all three files; `curves.parquet` last, since a run with this file is complete."""
    assert builder.config.population is not None
    size = builder.config.population.size
    best = best_member(journal, size)
    pieces = ancestry(journal.decisions, best)
    read = {member: read_curves(directory / "members" / str(member) / "curves.jsonl") for member, _, _ in pieces}
    curves = curves_along(pieces, [read[piece.member] for piece in pieces])
    last = curves.iloc[-1]
    write_table(directory / "lineage.parquet", as_table(journal.decisions))
    starts = [start._asdict() for start in journal.starts]
    counts = {name: int(last[name]) for name in COUNTS}
    counts |= {"episodes": int(curves[curves.metric == "episodes"].value.iloc[-1]), "resumes": len(starts) - 1}
    record = common_record(builder, provenance, starts, seconds, counts)
    record["parameters"] = sum(parameter.numel() for parameter in builder.network().parameters())
    record["population"] = _population(journal, size, best, pieces)
    if lost := _lost_bytes(directory, pieces):
        record["records_lost_bytes"] = lost
    write_json(directory / "run.json", record)
    write_table(directory / "curves.parquet", curves)


def _lost_bytes(directory: Path, pieces: Sequence[Piece]) -> int:
    """Return how many bytes are lost of the curves of the members in `pieces`."""
    members = {piece.member for piece in pieces}
    newest = (checkpoint.load_newest(directory / "members" / str(member) / "checkpoints")[0] for member in members)
    return sum(int(state["recorder"].get("lost_bytes", 0)) for state in newest if state is not None)


def _population(journal: Journal, size: int, best: int, pieces: Sequence[Piece]) -> dict[str, Any]:
    """Return the block `population` of `run.json`."""
    finals = _finals(journal, size)
    return {
        "size": size,
        "best_member": best,
        "best_fitness": finals[best].fitness,
        "best_hyperparameters": finals[best].before,
        "ancestry": [piece._asdict() for piece in pieces],
        "copies": sum(decision.copied for decision in journal.decisions),
        "decisions": len(journal.decisions),
        "final_fitness": [final.fitness for final in finals],
        "final_hyperparameters": [final.before for final in finals],
        **{name: sum(getattr(final, name) for final in finals) for name in COUNTS},
        "episodes": sum(final.episodes for final in finals),
    }


def newest_of_best(directory: Path) -> tuple[RunConfig, Path]:
    """Return configuration and directory of the best member. Raise UserError if the population is not finished."""
    try:
        best = int(read_json(directory / "run.json")["population"]["best_member"])
    except (UserError, ValueError, KeyError, TypeError):
        raise UserError(
            f"{directory}: a population that is not finished has no best member yet (no run.json)"
        ) from None
    member = directory / "members" / str(best)
    return load_run_config(member / "member.json"), member


def problems(directory: Path, size: int) -> list[str]:
    """Return a line for each problem with the lineage of a finished population."""
    try:
        table = read_frame(read_file(directory / "lineage.parquet"))
        finals = set(table.sort_values("decision").groupby("member").tail(1).query("kind == 'final'").member)
    except (OSError, ValueError, KeyError, AttributeError) as error:
        return [f"lineage.parquet: cannot be read: {' '.join(str(error).split())}"]
    missing = sorted(set(range(size)) - finals)
    return [f"lineage.parquet: members {', '.join(map(str, missing))} have no final decision"] if missing else []
