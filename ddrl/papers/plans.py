"""The plan of each claim at each scale, its digest, and the register that says since when a plan has been in force.

A digest is `<test>-<settings>`. The first half is that of the test: kind, metric, compared variants, tasks, thresholds,
margins, smallest effect, and the returns to reach or the prices that it takes from paper.yaml. So are the numbers that
it takes from replications/references: random play, 100 % and the best return of the tasks that the claim uses at any
scale (`ddrl.papers.reference_numbers`). The second half is that of the experiment at that scale: the tasks, the seeds
and the configuration of each run that the claim uses. A key that has its default is left out, so that a new key of the
tests changes no older digest. Words (title, text, source, unit) are no part of a plan, nor are keys of a configuration
that change no result.

`replications/<paper>/plans.csv` is the register, a row for each plan that has ever been in force. It is committed, and
rows are only appended (`ddrl register`). A plan counts from the date of its row on, or from the commit that added the
row if that is later (`ddrl.papers.plan_dates`). If an older plan returns, it counts from its return.

When the numbers of references became part of the test, on 27 November 2026, the rows of the tests in force then got
their digests anew, once: with the date of their row, or that of the last change of such a number if it is later. Since
then git's history shows that no row was changed (`ddrl register --check`). No pandas here.
"""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ddrl.errors import UserError
from ddrl.papers.expansion import expand
from ddrl.papers.experiments import SCALES, PlannedRun, system_of
from ddrl.papers.paper import Claim, Paper, Prices, load_paper
from ddrl.papers.reference_numbers import numbers_of, reference_numbers
from ddrl.system.config_differences import compared, flatten
from ddrl.system.csv_cells import plain, write_rows
from ddrl.system.files import replacing
from ddrl.system.wording import counted

REGISTER = "plans.csv"
COLUMNS = ("claim", "scale", "digest", "date", "commit")
PLANS = "plans.json"
"""The file of a run directory with the digests in force when the run was planned: claim -> digest."""
WORDS = ("name", "title", "text", "source", "published", "effect_unit", "threshold_from")
"""Fields of a claim that describe it and decide nothing."""
DIGITS = 12
AnyRun = TypeVar("AnyRun")
Places = Mapping[str, Sequence[PlannedRun]]


@dataclass(frozen=True)
class Registered:
    """A row of the register: a plan, since when it has been in force (UTC), and the commit that brought it."""

    claim: str
    scale: str
    digest: str
    date: str
    commit: str
    """Empty for a plan that was registered before its commit was made: the commit that added the row."""


def halves(digest: str) -> tuple[str, str]:
    """Return the half of the test and the half of the settings of a digest."""
    test, _, settings = digest.partition("-")
    return test, settings


def canonical(value: Any) -> Any:
    """Return plain data in which equal values look the same: 2.0 as 2, tuples as lists, mappings without order."""
    if isinstance(value, Mapping):
        return {str(key): canonical(value[key]) for key in sorted(value, key=str)}
    if isinstance(value, list | tuple):
        return [canonical(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def shortened(value: Any) -> str:
    """Return the first `DIGITS` digits of the SHA-256 of plain data as canonical JSON."""
    text = json.dumps(canonical(value), separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def half_of_test(
    claim: Claim,
    milestones: Mapping[str, float],
    prices: Prices | None,
    tasks: Iterable[str],
    references: Mapping[str, Sequence[Any]] | None = None,
) -> str:
    """Return the digest of a claim's test.

    `tasks` are all of its experiment, at any scale; `references` the numbers that its verdict depends on, by task.
    """
    plan = _not_default(claim)
    if claim.kind == "time_to_reach" and claim.threshold is None:
        wanted = claim.named_environments or tuple(tasks)
        plan["milestones"] = {task: milestones[task] for task in wanted if task in milestones}
    if claim.metric is not None and claim.metric.startswith("dollars") and prices is not None:
        plan["prices"] = [prices.cpu_core_hour, prices.accelerator_hour]
    if references:
        plan["references"] = references
    return shortened(plan)


def _not_default(record: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that decide something and do not have their default."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if field.name in WORDS or value == field.default:
            continue
        if field.name == "needs":  # its parts were keys of the test before, and their digests stay
            found |= _not_default(value)
        else:
            found[field.name] = _not_default(value) if dataclasses.is_dataclass(value) else value
    return found


def runs_of(claim: Claim, runs: Iterable[PlannedRun]) -> list[PlannedRun]:
    """Return the planned runs that a claim uses: of its variants, on its tasks, which every variant has.

    Where the variants have no task in common, all runs: one agent for several tasks is compared with one for each.
    """
    own = [run for run in runs if run.experiment == claim.experiment]
    found = used_by(claim, [(run.variant, run.environment, run) for run in own])
    named = [run for run in own if name_in(claim, run.variant) is not None]
    everyone = {name_in(claim, run.variant) for run in named} == set(claim.named_variants)
    return found or (named if everyone else [])


def used_by(claim: Claim, found: Sequence[tuple[str, str, AnyRun]]) -> list[AnyRun]:
    """Return what a claim uses of (variant, task, anything) of its experiment."""
    tasks: dict[str, set[str]] = {name: set() for name in claim.named_variants}
    for variant, task, _ in found:
        if (name := name_in(claim, variant)) is not None:
            tasks[name].add(task)
    common = set.intersection(*tasks.values()) if tasks else set()
    if claim.named_environments:
        common &= set(claim.named_environments)
    return [one for variant, task, one in found if task in common and name_in(claim, variant) is not None]


def name_in(claim: Claim, variant: str) -> str | None:
    """Return the variant that a claim names and this one is, or is a setting of; None where it names none."""
    return next((name for name in (variant, system_of(variant)) if name in claim.named_variants), None)


def half_of_settings(runs: Sequence[PlannedRun]) -> str:
    """Return the digest of the planned runs that a claim uses: seeds, and configurations by variant and task."""
    plan: dict[str, Any] = {}
    for run in runs:
        place = plan.setdefault(f"{run.variant} {run.environment}", {"seeds": []})
        place["seeds"].append(run.seed)
        if len(place["seeds"]) == 1:
            config = flatten({**run.config, "seed": None})
            place["config"] = {key: value for key, value in config.items() if compared(key) and key != "seed"}
    for place in plan.values():
        place["seeds"].sort()
    return shortened(plan)


def plans_of(paper: Paper, runs: Places, claims: Sequence[Claim] | None = None) -> dict[tuple[str, str], str]:
    """Return (claim, scale) -> digest; `runs` are those planned at each scale, `claims` those of the paper.

    A claim that no run of a scale speaks of has no plan there.
    """
    found = {}
    tasks: dict[str, dict[str, None]] = {}
    by_experiment: dict[tuple[str, str], list[PlannedRun]] = {}
    for scale, planned in runs.items():
        for run in planned:
            tasks.setdefault(run.experiment, {})[run.environment] = None
            by_experiment.setdefault((scale, run.experiment), []).append(run)
    numbers = reference_numbers(paper)
    for claim in paper.claims if claims is None else claims:
        own = {scale: runs_of(claim, by_experiment.get((scale, claim.experiment), ())) for scale in runs}
        places = sorted({run.environment for part in own.values() for run in part})
        known = numbers_of(claim, numbers, places)
        every = sorted(tasks.get(claim.experiment, ()))
        test = half_of_test(claim, paper.milestones, paper.prices, every, known)
        for scale, part in own.items():
            if part:
                found[claim.name, scale] = f"{test}-{half_of_settings(part)}"
    return found


def in_force(directory: Path) -> dict[tuple[str, str], str]:
    """Return (claim, scale) -> digest of every plan of a paper as its files are now.

    Raise `UserError` as `load_paper` and `expand`.
    """
    planned = {scale: expand(directory.name, scale, root=directory.parent) for scale in SCALES}
    return plans_of(load_paper(directory), planned)


def read_register(directory: Path) -> list[Registered]:
    """Return the register of a paper, oldest rows first; nothing where there is none.

    Raise `UserError` for a header or a row with other columns.
    """
    path = directory / REGISTER
    if not path.exists():
        return []
    known = ", ".join(COLUMNS)
    with path.open(encoding="utf-8", newline="") as file:
        header, *lines = list(csv.reader(file)) or [[]]
    if header != list(COLUMNS):
        wrong = next((name for name in COLUMNS if name not in header), "")
        said = f"has no column '{wrong}'" if wrong else f"has the columns {', '.join(header)}"
        raise UserError(f"{path}: line 1 {said}; allowed: {known}")
    for line, row in enumerate(lines, start=2):
        if len(row) != len(COLUMNS):
            raise UserError(f"{path}: line {line} has {counted(len(row), 'column')}; allowed: {known}")
    return [Registered(*map(plain, row)) for row in lines]


def write_register(directory: Path, rows: Iterable[Registered]) -> Path:
    """Write the whole register of a paper, and return its path."""
    path = directory / REGISTER
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        write_rows(file, COLUMNS, (vars(row) for row in rows))
    return path


def latest(rows: Iterable[Registered]) -> dict[tuple[str, str], str]:
    """Return (claim, scale) -> the digest of the newest row."""
    return {(row.claim, row.scale): row.digest for row in rows}


def since(rows: Iterable[Registered], claim: str, scale: str, half: int) -> str:
    """Return the date since which the newest test (`half` 0) or settings (1) of a claim hold; empty: unknown."""
    own = [row for row in rows if row.claim == claim and row.scale == scale]
    if not own:
        return ""
    current, date = halves(own[-1].digest)[half], own[-1].date
    for row in reversed(own):
        if halves(row.digest)[half] != current:
            break
        date = row.date
    return date


def appended(
    rows: Iterable[Registered], found: Mapping[tuple[str, str], str], date: str, commit: str
) -> Iterator[Registered]:
    """Yield a row for each plan that is not the newest of its claim and scale."""
    known = latest(rows)
    for (claim, scale), digest in found.items():
        if known.get((claim, scale)) != digest:
            yield Registered(claim, scale, digest, date, commit)


def carried(directory: Path, scale: str, runs: Iterable[PlannedRun]) -> dict[str, dict[str, str]]:
    """Return run directory's key -> claim -> digest in force, of claims of a paper that use the run.

    Only plans that stand in the register count: what nobody registered was not fixed beforehand. A run that the scale
    does not have, such as one with another seed, carries the half of the test alone.
    """
    known, plans = latest(read_register(directory)), in_force(directory)
    whole = expand(directory.name, scale, root=directory.parent)
    keys = {run.key for run in whole}
    found: dict[str, dict[str, str]] = {run.key: {} for run in runs}
    for claim in load_paper(directory).claims:
        digest = plans.get((claim.name, scale))
        if digest is None or known.get((claim.name, scale)) != digest:
            continue
        used = {_place(run.key) for run in runs_of(claim, whole)}
        own = [key for key in found if _place(key) in used]
        for key in own:
            found[key][claim.name] = digest if key in keys else f"{halves(digest)[0]}-"
    return found


def _place(key: str) -> str:
    """Return the key of a run without its seed."""
    return key.rpartition("/")[0]
