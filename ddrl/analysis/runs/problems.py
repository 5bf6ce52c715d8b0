"""Runs that cannot be used: each is named in one line and left out; the others go on.

missing              a planned run has not finished, or one of its two result files is gone
unreadable_manifest  run.json is not what a run writes
damaged              curves.parquet cannot be read, or lacks what a run records
not_finite           curves.parquet holds values that are not numbers
different_config     the run was made with another configuration than its place among the runs says
not_evaluated        a task of a suite has no final score, since its environments failed; the run's other tasks have
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from ddrl.analysis.runs.by_task import unevaluated
from ddrl.analysis.runs.flags import flatten, same
from ddrl.analysis.runs.lineage import FILE, read_lineage
from ddrl.analysis.runs.run_data import Fault, RunData, try_run
from ddrl.errors import UserError
from ddrl.papers.experiments import Experiment, Run
from ddrl.system.config_differences import compared

KINDS = ("missing", "unreadable_manifest", "damaged", "not_finite", "different_config", "not_evaluated")
COLUMNS = ["origin", "paper", "experiment", "variant", "environment", "seed", "file", "what", "detail"]
MAX_KEYS = 4
"""So many differing keys are spelled out in one line."""
MAX_MISSING = 5
"""So many missing runs are printed; table `problems` has all of them."""


@dataclass(frozen=True)
class Problem:
    """One run that is left out, and why."""

    origin: str
    paper: str
    experiment: str
    variant: str
    environment: str
    seed: int
    file: Path
    what: str
    """One of `KINDS`."""
    detail: str


@dataclass(frozen=True)
class Gathered:
    """The runs that can be used, and those that cannot."""

    runs: tuple[RunData, ...]
    problems: tuple[Problem, ...]


def gather(
    paper: str,
    planned: Sequence[Run],
    results: Path,
    experiments: Mapping[str, Experiment],
    *,
    allow_missing: bool = False,
) -> Gathered:
    """The planned runs and every run of `results/reference/<paper>`.

    Raises: UserError for a planned run that has not finished, unless allowed; and where runs have problems and none is
    left.
    """
    own = planned_runs(planned, results, allow_missing=allow_missing)
    reference = reference_runs(results / "reference" / paper, paper, experiments)
    found = Gathered(own.runs + reference.runs, own.problems + reference.problems)
    broken = [problem for problem in found.problems if problem.what != "missing"]
    if broken and not found.runs:
        raise UserError(
            f"{broken[0].file}: {broken[0].detail}; no run of {paper} is left, {len(broken)} of "
            f"{len(found.problems)} have such a problem and the others have not finished"
            if len(broken) < len(found.problems)
            else f"{broken[0].file}: {broken[0].detail}; all {len(broken)} runs of {paper} have such problems"
        )
    return found


def planned_runs(planned: Sequence[Run], results: Path, *, allow_missing: bool) -> Gathered:
    """The reader's own runs that have the configuration planned for them, and whose seeds agree in every other key."""
    runs, problems = [], []
    for run in planned:
        directory = run.directory(results)
        found = _with_lineage(directory, try_run(directory, "run", run.paper, run.experiment, run.variant))
        if isinstance(found, Fault) and found.what == "missing" and not allow_missing:
            raise UserError(f"{found.file}: {found.detail}")
        if isinstance(found, RunData):
            detail = _off_plan(found, run)
            found = Fault("different_config", directory / "run.json", detail) if detail else found
        if isinstance(found, Fault):
            place = ("run", run.paper, run.experiment, run.variant, run.environment, run.seed)
            problems.append(Problem(*place, found.file, found.what, found.detail))
        else:
            runs.append((directory, found))
    return _without_odd_seeds(runs, problems)


def reference_runs(folder: Path, paper: str, experiments: Mapping[str, Experiment]) -> Gathered:
    """Every run below `folder` (experiment/variant/environment/seed<k>), sorted; none where the folder is absent."""
    runs, problems = [], []
    for directory in sorted(folder.glob("*/*/*/seed*")):
        if not directory.is_dir() or not re.fullmatch(r"seed[0-9]+", directory.name):
            continue
        experiment, variant, environment = directory.parts[-4:-1]
        found = _with_lineage(directory, try_run(directory, "reference", paper, experiment, variant))
        if experiment not in experiments or variant not in experiments[experiment].variants:
            detail = f"experiments.yaml has no {experiment}/{variant}"
            found = Fault("different_config", directory / "run.json", detail)
        if isinstance(found, Fault):
            seed = int(directory.name.removeprefix("seed"))
            place = ("reference", paper, experiment, variant, environment.replace("-", "/", 1), seed)
            problems.append(Problem(*place, found.file, found.what, found.detail))
        else:
            runs.append((directory, found))
    return _without_odd_seeds(runs, problems)


def _with_lineage(directory: Path, found: RunData | Fault) -> RunData | Fault:
    """A run with its lineage, if it is a population's."""
    if isinstance(found, Fault):
        return found
    try:
        return replace(found, lineage=read_lineage(directory))
    except UserError as error:
        file = directory / FILE
        return Fault("damaged", file, str(error).removeprefix(f"{file}: "))


def _unevaluated(directory: Path, run: RunData) -> list[Problem]:
    """The tasks of a run on a suite that have no final score."""
    place, file = (run.origin, run.paper, run.experiment, run.variant), directory / "curves.parquet"
    detail = "the task has no final score: its environments failed"
    return [Problem(*place, task, run.seed, file, "not_evaluated", detail) for task in unevaluated(run)]


def _off_plan(run: RunData, planned: Run) -> str:
    """Keys in which a run differs from its plan, with both values; empty where there is none."""
    ours, plan = flatten(run.config), flatten(planned.config)
    keys = _differing(ours, plan, filter(compared, plan))
    return _spelled([f"{key} is {_text(ours.get(key))}, experiments.yaml plans {_text(plan[key])}" for key in keys])


def _without_odd_seeds(found: Sequence[tuple[Path, RunData]], problems: Sequence[Problem]) -> Gathered:
    """Leaves out the seeds of a group whose configuration differs from that of most of the others.

    Most: the largest set of seeds with one configuration; of equal ones, that of the lowest seed.
    """
    groups: dict[tuple[str, str, str], list[tuple[Path, RunData]]] = {}
    for directory, run in found:
        groups.setdefault((run.experiment, run.variant, run.environment), []).append((directory, run))
    odd = [problem for group in groups.values() for problem in _odd_seeds(group)]
    left_out = {problem.file.parent for problem in odd}
    kept = [(directory, run) for directory, run in found if directory not in left_out]
    holes = [hole for directory, run in kept for hole in _unevaluated(directory, run)]
    return Gathered(tuple(run for _, run in kept), (*problems, *odd, *holes))


def _odd_seeds(group: Sequence[tuple[Path, RunData]]) -> list[Problem]:
    """The problems of one experiment, variant and environment."""
    flat = {run.seed: flatten(run.config) for _, run in group}
    # A key that an older version did not write yet tells nothing.
    common = set.intersection(*(set(config) for config in flat.values())) - {"seed"}
    keys = sorted(key for key in common if compared(key))
    sets: list[list[int]] = []
    for seed in sorted(flat):
        alike = [members for members in sets if not _differing(flat[seed], flat[members[0]], keys)]
        if alike:
            alike[0].append(seed)
        else:
            sets.append([seed])
    most = max(sets, key=len)  # the first of equal ones
    names = f"seeds {', '.join(map(str, most))} have" if len(most) > 1 else f"seed {most[0]} has"
    problems = []
    for directory, run in group:
        ours, usual = flat[run.seed], flat[most[0]]
        differing = _differing(ours, usual, keys)
        if differing:
            detail = _spelled([f"{key} is {_text(ours[key])}, {names} {_text(usual[key])}" for key in differing])
            place = (run.origin, run.paper, run.experiment, run.variant, run.environment, run.seed)
            problems.append(Problem(*place, directory / "run.json", "different_config", detail))
    return problems


def _differing(ours: Mapping[str, Any], others: Mapping[str, Any], keys: Iterable[str]) -> list[str]:
    return [key for key in keys if not same(ours.get(key), others.get(key))]


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _spelled(differences: Sequence[str]) -> str:
    more = len(differences) - MAX_KEYS
    return "; ".join(differences[:MAX_KEYS]) + (f"; and {more} more" if more > 0 else "")


def problem_table(problems: Iterable[Problem], results: Path) -> pd.DataFrame:
    """Columns `COLUMNS`; `file` is relative to the folder that holds `results`, so it does not name a machine."""
    rows = [vars(problem) | {"file": portable(problem.file, results)} for problem in problems]
    table = pd.DataFrame(rows, columns=COLUMNS)
    order = ["origin", "experiment", "variant", "environment", "seed"]
    table = table.astype({name: "int64" if name == "seed" else "string" for name in COLUMNS})
    return table.sort_values(order, ascending=[False, *[True] * (len(order) - 1)], ignore_index=True)


def portable(file: Path, results: Path) -> str:
    """`file` relative to the folder that holds `results`: the same on every machine."""
    relative = file.relative_to(results) if file.is_relative_to(results) else Path(file.name)
    return (Path(results.resolve().name) / relative).as_posix()


def lines(table: pd.DataFrame) -> list[str]:
    """One line per problem, as the command line prints them; of many missing runs, the first few and their number."""
    missing = table[table["what"] == "missing"]
    shown = table.drop(missing.index[MAX_MISSING:])
    found = [f"{row['file']}: {row['what']}: {row['detail']}; left out" for row in shown.to_dict("records")]
    more = len(table) - len(shown)
    return [*found, f"and {more} more runs that have not finished; left out"] if more else found
