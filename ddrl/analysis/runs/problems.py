"""Finds runs that cannot be used: each is named in one line and left out; the others go on.

missing              a planned run has not finished, or one of its two result files is gone
unreadable_manifest  run.json is not what a run writes
damaged              curves.parquet cannot be read, or lacks what a run records
not_finite           curves.parquet holds values that are not numbers
different_config     the run was made with another configuration than its place among the runs says
identical            the losses and returns are those of a lower seed: a copy, which is no run of its own. Or they and
                     their times are those of another variant, so nobody can tell whose they are: both are left out
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
from ddrl.analysis.runs.run_data import RunData, RunFault, read_lineage, try_run
from ddrl.errors import UserError
from ddrl.papers.experiments import Experiment, PlannedRun
from ddrl.system.config_differences import LEFT_OUT, compared

KINDS = ("missing", "unreadable_manifest", "damaged", "not_finite", "different_config", "identical", "not_evaluated")
COLUMNS = ["origin", "paper", "experiment", "variant", "environment", "seed", "file", "what", "detail"]
Place = tuple[str, str, str, str, str, int]
"""Origin, paper, experiment, variant, environment, seed."""
FEWEST_VALUES = 10
"""Fewest different losses and returns by which two runs can be called copies."""
_LEARNED = r"_return$|loss$|^entropy$|^gradient_norm$"
"""Metrics that follow from the seed alone and hold no time."""
MAX_KEYS = 4
"""Number of differing keys that one line spells out."""
MAX_MISSING = 5
"""Number of missing runs that are printed; table `problems` has all of them."""


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
    """The runs that can be used, and the problems of the others."""

    runs: tuple[RunData, ...]
    problems: tuple[Problem, ...]


def gather(
    paper: str,
    planned: Sequence[PlannedRun],
    results: Path,
    experiments: Mapping[str, Experiment],
    *,
    allow_missing: bool = False,
) -> Gathered:
    """Return the planned runs and every run of `results/reference/<paper>`.

    Raise UserError for an unfinished planned run, unless allowed, and if runs have problems and none is left.
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


def planned_runs(planned: Sequence[PlannedRun], results: Path, *, allow_missing: bool) -> Gathered:
    """Return the reader's own runs, sorted into usable ones and those with another configuration than planned."""
    found = []
    for run in planned:
        directory = run.directory(results)
        read = _read(directory, "run", run.paper, run.experiment, run.variant)
        if isinstance(read, RunFault) and read.what == "missing" and not allow_missing:
            raise UserError(f"{read.file}: {read.detail}")
        if isinstance(read, RunData):
            plan = flatten(run.config)
            made = {**LEFT_OUT, **flatten(read.config)}
            detail = _differences(made, plan, filter(compared, plan), "experiments.yaml plans")
            read = RunFault("different_config", directory / "run.json", detail) if detail else read
        found.append((directory, ("run", run.paper, run.experiment, run.variant, run.environment, run.seed), read))
    return _separated(found)


def reference_runs(folder: Path, paper: str, experiments: Mapping[str, Experiment]) -> Gathered:
    """Return every run below `folder` (experiment/variant/environment/seed<k>); none if the folder is absent."""
    found = []
    for directory in sorted(folder.glob("*/*/*/seed*")):
        if not directory.is_dir() or not re.fullmatch(r"seed[0-9]+", directory.name):
            continue
        experiment, variant, environment = directory.parts[-4:-1]
        read = _read(directory, "reference", paper, experiment, variant)
        if experiment not in experiments or variant not in experiments[experiment].variants:
            detail = f"experiments.yaml has no {experiment}/{variant}"
            read = RunFault("different_config", directory / "run.json", detail)
        seed = int(directory.name.removeprefix("seed"))
        place = ("reference", paper, experiment, variant, environment.replace("-", "/", 1), seed)
        found.append((directory, place, read))
    return _separated(found)


def _read(directory: Path, origin: str, paper: str, experiment: str, variant: str) -> RunData | RunFault:
    """Return a run, with its lineage if it is a population's, or what is wrong with it."""
    found = try_run(directory, origin, paper, experiment, variant)
    if isinstance(found, RunFault):
        return found
    file = directory / "lineage.parquet"
    try:
        return replace(found, lineage=read_lineage(file))
    except UserError as error:
        return RunFault("damaged", file, str(error).removeprefix(f"{file}: "))


def _separated(found: Sequence[tuple[Path, Place, RunData | RunFault]]) -> Gathered:
    """Separate usable runs from problems: faults, seeds with an odd configuration, and tasks without a final score."""
    problems = [
        Problem(*place, fault.file, fault.what, fault.detail)
        for _, place, fault in found
        if isinstance(fault, RunFault)
    ]
    runs = [(directory, run) for directory, _, run in found if isinstance(run, RunData)]
    groups: dict[tuple[str, str, str], list[tuple[Path, RunData]]] = {}
    for directory, run in runs:
        groups.setdefault((run.experiment, run.variant, run.environment), []).append((directory, run))
    odd = [problem for group in groups.values() for problem in _odd_seeds(group)]
    left_out = {problem.file.parent for problem in odd}
    odd += _of_other_variants([one for one in runs if one[0] not in left_out])
    left_out |= {problem.file.parent for problem in odd}
    odd += [copy for group in groups.values() for copy in _copies([one for one in group if one[0] not in left_out])]
    left_out |= {problem.file.parent for problem in odd}
    kept = [(directory, run) for directory, run in runs if directory not in left_out]
    detail = "the task has no final score: its environments failed"
    unscored = [
        Problem(*_place(replace(run, environment=task)), directory / "curves.parquet", "not_evaluated", detail)
        for directory, run in kept
        for task in unevaluated(run)
    ]
    return Gathered(tuple(run for _, run in kept), (*problems, *odd, *unscored))


def _place(run: RunData) -> Place:
    return run.origin, run.paper, run.experiment, run.variant, run.environment, run.seed


def _odd_seeds(group: Sequence[tuple[Path, RunData]]) -> list[Problem]:
    """Return a problem for each seed of a group (one experiment, variant and environment) with an odd configuration.

    Odd: different from the largest set of seeds with one configuration; of equal sets, that of the lowest seed.
    """
    flat = {run.seed: flatten(run.config) for _, run in sorted(group, key=lambda pair: pair[1].seed)}
    # Ignore keys that not all runs have: an older version did not write them yet.
    common = set.intersection(*(set(config) for config in flat.values())) - {"seed"}
    keys = sorted(key for key in common if compared(key))
    sets = [[seed for seed in flat if not _differences(flat[seed], own, keys, "")] for own in flat.values()]
    most = max(sets, key=len)  # the first of equal ones
    names = f"seeds {', '.join(map(str, most))} have" if len(most) > 1 else f"seed {most[0]} has"
    problems = []
    for directory, run in group:
        detail = _differences(flat[run.seed], flat[most[0]], keys, names)
        if detail:
            problems.append(Problem(*_place(run), directory / "run.json", "different_config", detail))
    return problems


def _copies(group: Sequence[tuple[Path, RunData]]) -> list[Problem]:
    """Return a problem for each seed of a group whose losses and returns are those of a lower seed, value by value.

    Seeds whose few values agree by chance are no copies: it takes `FEWEST_VALUES` different ones.
    """
    lowest: dict[bytes, int] = {}
    problems = []
    for directory, run in sorted(group, key=lambda pair: pair[1].seed):
        digest = _digest(run, ["env_frames", "metric", "value"])
        first = lowest.setdefault(digest, run.seed) if digest else run.seed
        if first != run.seed:
            detail = f"every loss and return is that of seed {first}"
            problems.append(Problem(*_place(run), directory / "curves.parquet", "identical", detail))
    return problems


def _of_other_variants(runs: Sequence[tuple[Path, RunData]]) -> list[Problem]:
    """Return a problem for each run whose losses and returns came at the times of a run of another variant.

    Both are of one experiment and task. Without the times they may be alike, if what differs between two variants does
    not change what is learned.
    """
    alike: dict[tuple[str, str, bytes], list[tuple[Path, RunData]]] = {}
    for directory, run in runs:
        if digest := _digest(run, ["env_frames", "seconds", "metric", "value"]):
            alike.setdefault((run.experiment, run.environment, digest), []).append((directory, run))
    problems = []
    for group in alike.values():
        for directory, run in group:
            other = next((one for _, one in group if one.variant != run.variant), None)
            if other:
                detail = f"every loss and return, with its time, is that of {other.variant}, seed {other.seed}"
                problems.append(Problem(*_place(run), directory / "curves.parquet", "identical", detail))
    return problems


def _digest(run: RunData, columns: list[str]) -> bytes:
    """Return a digest of the losses and returns of a run; empty if they have too few values to be a copy."""
    own = run.curves[run.curves["metric"].str.contains(_LEARNED)]
    if own["value"].nunique() < FEWEST_VALUES:
        return b""
    return pd.util.hash_pandas_object(own[columns], index=False).to_numpy().tobytes()


def _differences(ours: Mapping[str, Any], others: Mapping[str, Any], keys: Iterable[str], whose: str) -> str:
    """Return the keys in which two flat configurations differ, with both values; empty if there is none."""
    found = [
        f"{key} is {_text(ours.get(key))}, {whose} {_text(others.get(key))}"
        for key in keys
        if not same(ours.get(key), others.get(key))
    ]
    more = len(found) - MAX_KEYS
    return "; ".join(found[:MAX_KEYS]) + (f"; and {more} more" if more > 0 else "")


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def problem_table(problems: Iterable[Problem], results: Path) -> pd.DataFrame:
    """Return columns `COLUMNS`; `file` is relative to the folder that holds `results`, so it names no machine."""
    rows = [vars(problem) | {"file": portable(problem.file, results)} for problem in problems]
    table = pd.DataFrame(rows, columns=COLUMNS)
    order = ["origin", "experiment", "variant", "environment", "seed"]
    table = table.astype({name: "int64" if name == "seed" else "string" for name in COLUMNS})
    return table.sort_values(order, ascending=[False, *[True] * (len(order) - 1)], ignore_index=True)


def portable(file: Path, results: Path) -> str:
    """Return `file` relative to the folder that holds `results`: the same on every machine."""
    relative = file.relative_to(results) if file.is_relative_to(results) else Path(file.name)
    return (Path(results.resolve().name) / relative).as_posix()


def lines(table: pd.DataFrame) -> list[str]:
    """Return one line per problem, for the command line; of many missing runs the first few and their number."""
    missing = table[table["what"] == "missing"]
    shown = table.drop(missing.index[MAX_MISSING:])
    found = [f"{row['file']}: {row['what']}: {row['detail']}; left out" for row in shown.to_dict("records")]
    more = len(table) - len(shown)
    return [*found, f"and {more} more runs that have not finished; left out"] if more else found
