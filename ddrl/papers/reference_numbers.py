"""Reads the numbers of references that a claim's verdict depends on, for its digest. No pandas here.

Of a task: the scores of random play and of 100 %, the best return that its rules allow, and the standard error of
random play's score. Types and rules of these files: `ddrl.papers.published`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from ddrl.errors import UserError
from ddrl.papers.claim_kinds import FINAL_METRICS, RETURN_METRICS, TO_SCORE
from ddrl.papers.paper import Claim, Paper
from ddrl.system.csv_cells import read_rows

REFERENCES = Path(__file__).parents[2] / "replications" / "references"
BEST = "best.csv"
STATED_ERROR = re.compile(r"standard error ([0-9]+(?:\.[0-9]+)?)")
"""The standard error of random play's score, in the notes of a reference."""
Numbers = Mapping[str, tuple[float | str | None, ...]]
"""Environment -> random, human or reference score, best return, standard error; None: not known."""


def references_of(directory: Path) -> Path:
    """Return the folder with random and human scores for a paper's folder: beside it, or else that of this package."""
    beside = directory.parent / "references"
    return beside if beside.is_dir() else REFERENCES


def reference_numbers(paper: Paper) -> Numbers:
    """Return the numbers of every task that the rules of a paper name. Raise `UserError` for a file that is missing."""
    folder = references_of(paper.directory)
    best = {row["environment"]: row["best"] for row in _rows(folder / BEST)} if (folder / BEST).exists() else {}
    found: dict[str, tuple[float | str | None, ...]] = {}
    for rule in paper.references:
        rows = _rows(folder / rule.file)
        for variant in rule.variants:
            for row in rows:
                if row.get("variant") == variant:
                    name = rule.environments.replace("{task}", row["task"])
                    stated = STATED_ERROR.match(row.get("notes", ""))
                    texts = (row["random"], row["human"], best.get(name, ""), stated[1] if stated else "")
                    found[name] = tuple(map(_number, texts))
    return found


def numbers_of(claim: Claim, numbers: Numbers, tasks: Iterable[str]) -> dict[str, tuple[float | str | None, ...]]:
    """Return the numbers that the verdict on a claim depends on, whose runs have these environments.

    An environment without numbers of its own is a set of tasks: it has those of all tasks with its prefix.
    """
    if not _reads_references(claim):
        return {}
    found: dict[str, tuple[float | str | None, ...]] = {}
    for name in tasks:
        prefix = name.partition("/")[0] + "/"
        names = [name] if name in numbers else [task for task in numbers if task.startswith(prefix)]
        found |= {task: numbers[task] for task in names}
    return found


def _reads_references(claim: Claim) -> bool:
    """Return whether the test of a claim takes anything from the references."""
    if claim.metric in FINAL_METRICS and claim.metric not in RETURN_METRICS:
        return True
    scaled = claim.metric in RETURN_METRICS and claim.kind != "at_least"
    return scaled or claim.metric == TO_SCORE or (claim.reference_part is not None and claim.threshold is None)


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        return read_rows(path)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None


def _number(text: str) -> float | str | None:
    """Return the number of a cell, None of an empty one; what is no number stays a text, which `ddrl check` refuses."""
    try:
        return float(text) if text.strip() else None
    except ValueError:
        return text
