"""The journal of a population's decisions, `lineage.jsonl`, and `lineage.parquet`, its table at the end.

Each decision is a line that is on the disk before the decision is carried out. The first line names the population, and
each start adds a line of its own. A last line that a kill cut short is removed: its decision was never carried out, and
is made again with the same random draws. Lines are numbered, so that a lost line is noticed: later decisions depend on
it.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ddrl.errors import UserError, about, using
from ddrl.system.files import append, read_file
from ddrl.system.json_lines import Lines, aside_of, rewrite, split
from ddrl.training.config.population import Values
from ddrl.training.records.finished import DECISIONS

if TYPE_CHECKING:
    import pandas as pd

LINE = "line"
"""Key of a line's number, from 0; files of former versions have none."""
BURN_IN, EVOLVE, DIVERGED, FINAL = "burn_in", "evolve", "diverged", "final"
"""Kinds of decisions: `evolve` may copy another member, `diverged` must; `final` records how a member ended."""


@dataclass(frozen=True)
class Decision:
    """A decision of a member at the end of a segment, and the member's counts until then."""

    member: int
    decision: int
    """Its number among the member's decisions, from 0."""
    kind: str
    env_frames: int
    agent_steps: int
    updates: int
    episodes: int
    """This and the counts above are the member's own, also after it has copied another one."""
    fitness: float | None
    compared_with: int | None
    compared_fitness: float | None
    copied: bool
    source_decision: int | None
    """The decision of the other member at which its weights had `compared_fitness`; those are copied."""
    source_env_frames: int | None
    before: Values
    """Hyperparameters during the segment."""
    after: Values
    seconds: float
    """Wall-clock seconds of the population, over all starts."""


class Start(NamedTuple):
    """A start of the population, the first one or after an interruption."""

    started: str
    git_sha: str | None


class Journal:
    """The file `lineage.jsonl`. A line is on the disk when the method that writes it returns."""

    def __init__(self, directory: Path) -> None:
        """Read the file; remove a last line that is cut short, and move damaged lines to another file.

        Raise UserError if a line is lost that later ones depend on.
        """
        self.path = directory / DECISIONS
        self.about: dict[str, Any] | None = None
        """The `Identity.recorded` of the population that the file belongs to; None: the file is new."""
        self.starts: list[Start] = []
        self.decisions: list[Decision] = []
        self.note = ""
        """A line about what was damaged; empty if nothing was."""
        self._num_lines = 0
        self._by_member: defaultdict[int, list[Decision]] = defaultdict(list)
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
                raise _lost_line(f"line {number} follows line {self._num_lines - 1}", found)
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
            raise _lost_line("the line that names the population is missing", found)
        if "started" in record:
            self.starts.append(Start(**record))
            return
        decision = Decision(**record)
        if decision.decision != (expected := len(self.of(decision.member))):
            wrong = f"decision {decision.decision} of member {decision.member} stands where {expected} belongs"
            raise _lost_line(wrong, found)
        self._keep(decision)

    @property
    def identity(self) -> str | None:
        """The name of the population; None if the file is new."""
        return self.about["identity"] if self.about else None

    def begin(self, about: Mapping[str, Any], start: Start) -> None:
        """Write that the population was started, and into a new file first which population it is."""
        if self.about is None:
            self.about = dict(about)
            self._write({"population" if key == "identity" else key: value for key, value in about.items()})
        self.starts.append(start)
        self._write(start._asdict())

    def append(self, decision: Decision) -> None:
        """Write a decision."""
        self._write(dataclasses.asdict(decision))
        self._keep(decision)

    def _keep(self, decision: Decision) -> None:
        self.decisions.append(decision)
        self._by_member[decision.member].append(decision)

    def _write(self, record: dict[str, Any]) -> None:
        with using(self.path), self.path.open("ab", buffering=0) as file:
            append(self.path, file, (json.dumps({LINE: self._num_lines, **record}, allow_nan=False) + "\n").encode())
            os.fsync(file.fileno())
        self._num_lines += 1

    def of(self, member: int) -> list[Decision]:
        """Return the decisions of a member, in order."""
        return self._by_member[member]

    def newest(self, member: int) -> Decision | None:
        """Return the last decision of a member; None if it has made none."""
        return self.of(member)[-1] if self.of(member) else None


def _is_record(record: dict[str, Any]) -> bool:
    """Return whether a journal writes such a line."""
    names = set(record) - {LINE}
    if "population" in names:
        return names <= {"population", "config", "version"} and isinstance(record["population"], str)
    if "started" in names:
        return names == set(Start._fields)
    whole = names == {field.name for field in dataclasses.fields(Decision)}
    return whole and all(isinstance(record[name], int) for name in ("member", "decision", "env_frames"))


def _lost_line(what: str, found: Lines) -> UserError:
    damage = f" ({found.describe()})" if found.describe() else ""
    return UserError(
        f"{what}{damage}: a decision that others follow from is lost; put the line back, or train in another directory"
    )


class Piece(NamedTuple):
    """The records of `member` with start < env_frames <= end."""

    member: int
    start: int
    end: int


def ancestry(decisions: Sequence[Decision], member: int) -> list[Piece]:
    """Return where the weights that `member` ended with were trained, from the first ancestor to the member itself.

    A member that copies keeps its own count of frames, which may be lower than the source's. What the source did beyond
    that count is left out, so that frames only grow along the pieces (Espeholt et al. 2018, Appendix F:
    "backtracking").
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
    """Return a table with a row per decision, and columns `<key>_before` and `<key>_after` per hyperparameter."""
    import pandas as pd  # slow to import

    rows = []
    for decision in decisions:
        row = dataclasses.asdict(decision)
        values = {f"{key}_{when}": value for when in ("before", "after") for key, value in row.pop(when).items()}
        source = decision.compared_with if decision.copied else None
        rows.append(row | {"source_member": source} | dict(sorted(values.items())))
    numbers = ["compared_with", "source_member", "source_decision", "source_env_frames"]
    fractions = ["fitness", "compared_fitness"]
    return pd.DataFrame(rows).astype(dict.fromkeys(numbers, "Int64") | dict.fromkeys(fractions, "float64"))
