"""Every decision of a population: a line of `lineage.jsonl` before it is carried out; at the end `lineage.parquet`.

The first line of the file names the population; each start adds one of its own. A line that a kill cut short was never
carried out: it is cut off, and the decision is made again, from the same draws. Lines are numbered, so that one that
is lost within the file is missed: later decisions follow from it.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ddrl.errors import UserError, about, using
from ddrl.system.files import append, read_file, write_atomically
from ddrl.system.json_lines import Lines, aside_of, rewrite, split
from ddrl.training.config.population import Values
from ddrl.training.records.finished import DECISIONS

if TYPE_CHECKING:
    import pandas as pd

FILE = DECISIONS
LINE = "line"
"""Key of a line's number, from 0; files of former versions have none."""
BURN_IN, EVOLVE, DIVERGED, FINAL = "burn_in", "evolve", "diverged", "final"
"""Kinds of decisions: `evolve` may copy and perturb, `diverged` does; `final` says how a member ended."""


@dataclass(frozen=True)
class Decision:
    """What one member decided at the end of one segment, and where it stood."""

    member: int
    decision: int
    """Its number among the member's own."""
    kind: str
    env_frames: int
    agent_steps: int
    updates: int
    episodes: int
    """Of the member, so far; as the counts above it keeps its own where it copies."""
    fitness: float | None
    compared_with: int | None
    compared_fitness: float | None
    copied: bool
    source_decision: int | None
    """The other member's, at which its weights were what is copied now: those that had the fitness."""
    source_env_frames: int | None
    before: Values
    """Hyperparameters during the segment."""
    after: Values
    seconds: float
    """Wall-clock of the population, over all starts."""


class Start(NamedTuple):
    """The population was started, or continued."""

    started: str
    git_sha: str | None


class Journal:
    """`lineage.jsonl`: appended line by line, each on the disk before `append` returns."""

    def __init__(self, directory: Path) -> None:
        """Reads what is there, cuts off a last line that is not whole, and sets aside those that are damaged.

        Raises: UserError where a line is lost that others follow from.
        """
        self.path = directory / FILE
        self.about: dict[str, Any] | None = None
        """What `Identity.recorded` has said of the population that the file is about; None: it is new."""
        self.starts: list[Start] = []
        self.decisions: list[Decision] = []
        self.note = ""
        """What was damaged, in a line; empty where nothing was."""
        self._num_lines = 0
        self._decided: Counter[int] = Counter()
        """Of the decisions that were read, by member."""
        if self.path.exists():
            with using(self.path), about(self.path):
                self._read()

    def _read(self) -> None:
        content = read_file(self.path)
        found = split(content, _is_record, may_repeat=True)  # two starts of files without numbers may look the same
        kept: list[bytes] = []
        seen: set[bytes] = set()
        repeated = 0
        for line, record in found.kept:
            number = record.pop(LINE, None)
            if line in seen and (number is not None or "started" not in record):
                repeated += 1
                continue
            if number not in (None, self._num_lines):
                raise _lost(f"line {number} follows line {self._num_lines - 1}", found)
            self._take(record, found)
            self._num_lines += 1
            kept.append(line)
            seen.add(line)
        if told := replace(found, repeated=repeated).describe():
            aside = f", now in {aside_of(self.path).name}" if found.damaged else ""
            self.note = f"{self.path}: {told}{aside}"
        if b"".join(kept) != content:
            rewrite(self.path, kept, [line for _, line in found.damaged])

    def _take(self, record: dict[str, Any], found: Lines) -> None:
        if "population" in record:
            if self.about is not None:
                raise UserError(f"is of two populations, {self.identity} and {record['population']}")
            self.about = {"identity": record.pop("population")} | record
            return
        if self.about is None:
            raise _lost("the line that names the population is missing", found)
        if "started" in record:
            self.starts.append(Start(**record))
            return
        decision = Decision(**record)
        if decision.decision != (expected := self._decided[decision.member]):
            wrong = f"decision {decision.decision} of member {decision.member} stands where {expected} belongs"
            raise _lost(wrong, found)
        self._decided[decision.member] += 1
        self.decisions.append(decision)

    @property
    def identity(self) -> str | None:
        """The name of the population."""
        return self.about["identity"] if self.about else None

    def begin(self, about: Mapping[str, Any], start: Start) -> None:
        """Says whose file it is, where it is new, and that the population was started."""
        if self.about is None:
            self.about = dict(about)
            self._write({"population" if key == "identity" else key: value for key, value in about.items()})
        self.starts.append(start)
        self._write(start._asdict())

    def append(self, decision: Decision) -> None:
        """Writes a decision; it is on the disk when this returns."""
        self._write(dataclasses.asdict(decision))
        self.decisions.append(decision)

    def _write(self, record: dict[str, Any]) -> None:
        with using(self.path), self.path.open("ab", buffering=0) as file:
            append(self.path, file, (json.dumps({LINE: self._num_lines, **record}, allow_nan=False) + "\n").encode())
            os.fsync(file.fileno())
        self._num_lines += 1

    def of(self, member: int) -> list[Decision]:
        """A member's, in order."""
        return [decision for decision in self.decisions if decision.member == member]

    def newest(self, member: int) -> Decision | None:
        """A member's last one."""
        return next((decision for decision in reversed(self.decisions) if decision.member == member), None)


def _is_record(record: dict[str, Any]) -> bool:
    """Whether a line is one that a journal writes."""
    names = set(record) - {LINE}
    if "population" in names:
        return names <= {"population", "config", "version"} and isinstance(record["population"], str)
    if "started" in names:
        return names == set(Start._fields)
    whole = names == {field.name for field in dataclasses.fields(Decision)}
    return whole and all(isinstance(record[name], int) for name in ("member", "decision", "env_frames"))


def _lost(what: str, found: Lines) -> UserError:
    told = f" ({found.describe()})" if found.describe() else ""
    return UserError(
        f"{what}{told}: a decision that others follow from is lost; put the line back, or train in another directory"
    )


class Piece(NamedTuple):
    """Records of `member` with start < env_frames <= end."""

    member: int
    start: int
    end: int


def ancestry(decisions: Sequence[Decision], member: int) -> list[Piece]:
    """How the weights that `member` ended with came about: from the first ancestor's beginning to its end.

    A member that copies keeps its own count of frames, which need not be the source's: what the source did beyond it is
    left out, so that frames only grow along the pieces (Espeholt et al. 2018, Appendix F: "backtracking").
    """
    by_place = {(one.member, one.decision): one for one in decisions}
    place = max(one.decision for one in decisions if one.member == member)
    end = by_place[member, place].env_frames
    pieces: list[Piece] = []
    while place > 0:
        place -= 1
        decision = by_place[member, place]
        if not decision.copied:
            continue
        pieces.append(Piece(member, min(decision.env_frames, end), end))
        assert decision.compared_with is not None and decision.source_decision is not None
        end = min(end, decision.env_frames, decision.source_env_frames or 0)
        member, place = decision.compared_with, decision.source_decision
    pieces.append(Piece(member, -1, end))
    return [piece for piece in reversed(pieces) if piece.start < piece.end]


def as_table(decisions: Sequence[Decision]) -> pd.DataFrame:
    """One row per decision; of each hyperparameter a column `<key>_before` and one `<key>_after`."""
    import pandas as pd  # slow to import

    rows = []
    for decision in decisions:
        row = dataclasses.asdict(decision)
        before, after = row.pop("before"), row.pop("after")
        source = decision.compared_with if decision.copied else None
        values = {
            f"{key}_{when}": by_key[key] for when, by_key in (("before", before), ("after", after)) for key in by_key
        }
        rows.append(row | {"source_member": source} | dict(sorted(values.items())))
    table = pd.DataFrame(rows)
    numbers = ["compared_with", "source_member", "source_decision", "source_env_frames"]
    fractions = ["fitness", "compared_fitness"]
    return table.astype(dict.fromkeys(numbers, "Int64") | dict.fromkeys(fractions, "float64"))


def write_table(directory: Path, decisions: Sequence[Decision]) -> None:
    """`lineage.parquet`, atomically."""
    table = as_table(decisions)
    path = directory / "lineage.parquet"
    with using(path):
        write_atomically(path, lambda file: table.to_parquet(file, index=False, write_page_checksum=True))
