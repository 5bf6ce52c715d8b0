"""Holds the seeds of a claim's runs against its plan, and against the seeds with which settings were chosen.

A claim is not decided by a selection of runs. Reference runs are held against the plan of scale workstation, by which
they were made. A run whose seed the plan lacks is one that nobody planned (`unplanned`), and a planned seed without a
run, of a variant and task that has other runs, may have been left out for what it showed (`missing`). That holds as
well of one whose files are there but cannot be used: a run is dropped by breaking it, too. A run with whose seed its
settings were chosen was made to come out well (`tuned`). Each of the three leaves a claim inconclusive, with its
numbers.

A planned task of a claim that has no run at all leaves a note, which names it: the claim then speaks of the other
tasks alone.

A reader's own runs have the seeds that the reader asked for, which are the reader's plan: where they differ from the
plan in experiments.yaml a note says so, and no more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ddrl.analysis.runs.run_data import RunData, env_label
from ddrl.analysis.verdicts.preconditions import Obstacle
from ddrl.papers.experiments import Experiment
from ddrl.papers.paper import Claim
from ddrl.papers.plans import name_in, used_by
from ddrl.papers.table_names import REFERENCE
from ddrl.system.wording import counted

OF_REFERENCE = "workstation"
"""The scale whose plan the reference runs were made by."""
SEED_COUNTS = ("plan_runs", "tuned_runs", "unplanned_runs", "missing_runs")
"""Columns of the table of claims: the runs that a claim uses, and of `Seeds` what a reader must know."""
MISSING_TASKS = "missing_tasks"
"""Column of the table of claims: the planned tasks without a run."""
Seat = tuple[str, str, str, int]
"""Experiment, variant, task (or set of tasks) and seed of a reference run."""


class Seeds(NamedTuple):
    """How the seeds of a claim's runs lie to its plan, as numbers of runs."""

    runs: int
    unplanned: int
    """Runs whose seed the plan does not have."""
    missing: int
    """Planned runs without one that can be used, of variants and tasks that have other runs, or such as cannot."""
    tuned: int
    """Runs with whose seed their settings were chosen on their task."""


def plan_of(origin: str, scale: str) -> str:
    """Return the scale by whose plan runs of an origin were made; `scale` is that of the report."""
    return OF_REFERENCE if REFERENCE in (scale, origin) else scale


def used(claim: Claim, runs: Iterable[RunData]) -> list[RunData]:
    """Return the runs of one origin that a claim uses; of a run on several tasks one part."""
    own = [run for run in runs if run.experiment == claim.experiment]
    chosen = used_by(claim, [(run.variant, run.environment, run) for run in own])
    whole = {(run.variant, run.suite or run.environment, run.seed): run for run in chosen}
    return list(whole.values())


def seeds_of(
    claim: Claim, experiment: Experiment | None, runs: Sequence[RunData], scale: str, unusable: Collection[Seat] = ()
) -> Seeds:
    """Return how the seeds of the runs that a claim uses lie to the plan of its experiment at a scale.

    `unusable`: runs of any claim that are there and cannot be used. A variant and task of which no run can be used, but
    some are there, lacks all its planned runs.
    """
    if experiment is None:
        return Seeds(len(runs), 0, 0, 0)
    groups: dict[tuple[str, str], set[int]] = {}
    for run in runs:
        groups.setdefault((run.variant, run.suite or run.environment), set()).add(run.seed)
    for name, variant, task, _ in unusable:
        if name == claim.experiment and _asked(claim, variant, task):
            groups.setdefault((variant, task), set())
    unplanned, missing = 0, 0
    for (variant, task), seeds in groups.items():
        planned = _planned(experiment, scale, variant, task)
        unplanned += len(seeds - planned)
        missing += len(planned - seeds)
    return Seeds(len(runs), unplanned, missing, sum(_tuned(experiment, run) for run in runs))


def _asked(claim: Claim, variant: str, task: str) -> bool:
    """Return whether a claim is about a variant and task."""
    return name_in(claim, variant) is not None and (not claim.named_environments or task in claim.named_environments)


def tasks_without_runs(
    claim: Claim, experiment: Experiment | None, runs: Sequence[RunData], scale: str
) -> tuple[str, ...]:
    """Return the tasks that every variant of a claim has in the plan of a scale, and of which none of `runs` is.

    Nothing where there is no run at all, or where the variants have no task in common.
    """
    plan = experiment.scales.get(scale) if experiment else None
    if plan is None or experiment is None or not runs:
        return ()
    places = [
        (variant, task, task)
        for variant in plan.variants or experiment.variants
        for task in plan.every_environment
        if plan.has(variant, task)
    ]
    there = {run.suite or run.environment for run in runs}
    return tuple(sorted(set(used_by(claim, places)) - there))


def _planned(experiment: Experiment, scale: str, variant: str, task: str) -> set[int]:
    """Return the seeds that a variant has on a task at a scale."""
    plan = experiment.scales.get(scale)
    if plan is None or not plan.has(variant, task) or (plan.variants and variant not in plan.variants):
        return set()
    return set(plan.seeds)


def _tuned(experiment: Experiment, run: RunData) -> bool:
    """Return whether the settings of a run were chosen with its seed, on its task."""
    return any(entry.used(run.variant, run.suite or run.environment, run.seed) for entry in experiment.tuning)


def seed_obstacles(found: Seeds, origin: str) -> list[Obstacle]:
    """Return which seeds keep the runs that a claim uses, all of one origin, from deciding it."""
    against = []
    if found.tuned:
        reason = f"settings were chosen with the seeds of {found.tuned} of {found.runs} runs"
        against.append(Obstacle("tuned", reason))
    if origin != REFERENCE:
        return against
    if found.unplanned:
        against.append(Obstacle("unplanned", _not_planned(found.unplanned)))
    if found.missing:
        against.append(Obstacle("missing", _not_there(found.missing)))
    return against


def plan_columns(found: Seeds, tasks: Iterable[str]) -> dict[str, int | str]:
    """Return the columns `SEED_COUNTS` and `MISSING_TASKS` of a claim."""
    counts = zip(SEED_COUNTS, (found.runs, found.tuned, found.unplanned, found.missing), strict=True)
    return {**dict(counts), MISSING_TASKS: "; ".join(map(env_label, tasks))}


def in_words(row: Mapping[Any, Any]) -> list[str]:
    """Return what a reader must know of the seeds and tasks of a claim, from its `plan_columns`."""
    runs, tuned, unplanned, missing = (int(row[name]) for name in SEED_COUNTS)
    said = [f"settings chosen with the seeds of {tuned} of {runs} runs"] if tuned else []
    if unplanned:
        said.append(_not_planned(unplanned))
    if missing:
        said.append(_not_there(missing))
    if tasks := row[MISSING_TASKS]:
        said.append(f"{counted(tasks.count(';') + 1, 'planned task')} without a run ({tasks.replace(';', ',')})")
    return said


def _not_planned(number: int) -> str:
    return "1 run is not in the plan" if number == 1 else f"{number} runs are not in the plan"


def _not_there(number: int) -> str:
    return "1 planned run is missing" if number == 1 else f"{number} planned runs are missing"
