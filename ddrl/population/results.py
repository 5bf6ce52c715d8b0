"""What a finished population writes: `run.json`, `lineage.parquet`, `curves.parquet` along the best one's ancestry.

Counts at the top of `run.json`, as in the curves, are those of the best member's ancestry, whose frames are one
member's budget; sums over all members stand in its block `population`.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddrl.errors import UserError, using
from ddrl.population.journal import Journal, Piece, ancestry, write_table
from ddrl.system.files import read_file, write_atomically
from ddrl.system.text_files import read_json
from ddrl.training.builder import Builder
from ddrl.training.config.run_config import RunConfig, fingerprint, load_run_config, to_json
from ddrl.training.records import checkpoint, manifest
from ddrl.training.records.recorder import read_curves, write_json

if TYPE_CHECKING:
    import pandas as pd

CUMULATIVE_COLUMNS = ("agent_steps", "updates", "seconds")
CUMULATIVE_METRICS = ("episodes", "cpu_seconds")
"""What a member counts from its own beginning, and what in the curves counts from the first ancestor's."""


def best_member(journal: Journal, size: int) -> int:
    """Of the highest last fitness; the first of several. All have decided."""
    fitness = [_final(journal, member).fitness for member in range(size)]
    return max(range(size), key=lambda member: (_or_lowest(fitness[member]), -member))


def _final(journal: Journal, member: int) -> Any:
    newest = journal.newest(member)
    assert newest is not None
    return newest


def _or_lowest(fitness: float | None) -> float:
    return float("-inf") if fitness is None else fitness


def curves_along(pieces: Sequence[Piece], tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The records of `pieces`, one table of its member each, as one run's.

    Frames are those that the members counted. Steps, updates, seconds and episodes go on from what the piece before
    had, by what the member added since its piece began.
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


def write(
    config: RunConfig,
    directory: Path,
    journal: Journal,
    provenance: dict[str, Any],
    builder: Builder,
    seconds: float,
) -> None:
    """All three files; `curves.parquet` last: a run with this file is whole."""
    assert config.population is not None
    size = config.population.size
    best = best_member(journal, size)
    pieces = ancestry(journal.decisions, best)
    read = {member: read_curves(directory / "members" / str(member) / "curves.jsonl") for member, _, _ in pieces}
    curves = curves_along(pieces, [read[piece.member] for piece in pieces])
    last = curves.iloc[-1]
    starts = [start._asdict() for start in journal.starts]
    write_table(directory, journal.decisions)
    write_json(
        directory / "run.json",
        {
            "config": to_json(config),
            "fingerprint": fingerprint(config),
            "algorithm_version": builder.algorithm.VERSION,
            "protocol": builder.spec.protocol,
            "evaluated_tasks": list(builder.evaluated_tasks) if len(builder.evaluated_tasks) > 1 else [],
            **provenance,
            "started": starts[0]["started"],
            "finished": manifest.now(),
            "seconds": round(seconds, 1),
            "env_frames": int(last.env_frames),
            "agent_steps": int(last.agent_steps),
            "updates": int(last.updates),
            "episodes": int(curves[curves.metric == "episodes"].value.iloc[-1]),
            "resumes": len(starts) - 1,
            "history": starts,
            "exit_reason": "budget_reached",
            "peak_memory_mib": manifest.peak_memory_mib(),
            "parameters": sum(parameter.numel() for parameter in builder.network().parameters()),
            "population": _population(journal, size, best, pieces),
            **({"records_lost_bytes": lost} if (lost := _lost_bytes(directory, pieces)) else {}),
        },
    )
    with using(directory / "curves.parquet"):
        write_atomically(
            directory / "curves.parquet", lambda file: curves.to_parquet(file, index=False, write_page_checksum=True)
        )


def _lost_bytes(directory: Path, pieces: Sequence[Piece]) -> int:
    """Of the records of the members that the curves go along."""
    members = {piece.member for piece in pieces}
    newest = (checkpoint.load_newest(directory / "members" / str(member) / "checkpoints")[0] for member in members)
    return sum(int(state["recorder"].get("lost_bytes", 0)) for state in newest if state is not None)


def _population(journal: Journal, size: int, best: int, pieces: Sequence[Piece]) -> dict[str, Any]:
    finals = [_final(journal, member) for member in range(size)]
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
        **{name: sum(getattr(final, name) for final in finals) for name in ("env_frames", "agent_steps", "updates")},
        "episodes": sum(final.episodes for final in finals),
    }


def newest_of_best(directory: Path) -> tuple[RunConfig, Path]:
    """Configuration and directory of the best member of a finished population. Raises `UserError` where it is not."""
    try:
        best = int(read_json(directory / "run.json")["population"]["best_member"])
    except (UserError, ValueError, KeyError, TypeError):
        raise UserError(
            f"{directory}: a population that is not finished has no best member yet (no run.json)"
        ) from None
    member = directory / "members" / str(best)
    return load_run_config(member / "member.json"), member


def problems(directory: Path, size: int) -> list[str]:
    """What is wrong with the lineage of a finished population, a line each."""
    import pandas as pd

    path = directory / "lineage.parquet"
    try:
        table = pd.read_parquet(BytesIO(read_file(path)), page_checksum_verification=True)
        finals = set(table.sort_values("decision").groupby("member").tail(1).query("kind == 'final'").member)
    except (OSError, ValueError, KeyError, AttributeError) as error:
        return [f"lineage.parquet: cannot be read: {' '.join(str(error).split())}"]
    missing = sorted(set(range(size)) - finals)
    return [f"lineage.parquet: members {', '.join(map(str, missing))} have no final decision"] if missing else []
