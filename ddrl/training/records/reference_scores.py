"""Random and human scores of tasks, from `replications/references/`, for runs that must know while they train.

Reports read the same files with more care (`ddrl.papers.published`), and by each paper's own choice of variants; a
run takes the first row of a task that has both scores.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ddrl.environments.base import registry
from ddrl.system.text_files import read_text

FOLDER = Path(__file__).parents[3] / "replications" / "references"


class Reference(NamedTuple):
    """The raw returns that are 0 % and 100 % of a human-normalised score."""

    random: float
    human: float

    def capped(self, episode_return: float) -> float:
        """Return the human-normalised score, at most 1 (Espeholt et al. 2018, Table 3)."""
        return min(1.0, (episode_return - self.random) / (self.human - self.random))


def references(tasks: Sequence[str]) -> dict[str, Reference]:
    """Return task -> reference, of the tasks that have one; names are `prefix/task`."""
    found: dict[str, Reference] = {}
    for prefix in dict.fromkeys(task.partition("/")[0] for task in tasks):
        path = FOLDER / (registry.reference_file(prefix) or "")
        if not path.is_file():
            continue
        for row in csv.DictReader(io.StringIO(read_text(path), newline="")):
            name = f"{prefix}/{row['task']}"
            if name in tasks and name not in found and row["random"] and row["human"]:
                found[name] = Reference(float(row["random"]), float(row["human"]))
    return found
