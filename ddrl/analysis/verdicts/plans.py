"""Says of each claim which of its runs are older than its plan, by rule, whatever the verdict.

    plan            the digest of the plan in force, from the register (`ddrl.papers.plans`)
    plan_since      the date since which its test is in force (UTC)
    plan_runs       the number of runs that the claim uses
    late_runs       those that are older than the test
    resettled_runs  those that are older than the settings: tasks, seeds or configurations were changed after them
    redefined_runs  those that are older than what counts as the paper's own setting (`ddrl.papers.ground_rules`)
    tuned_runs      those whose seed was used to choose their settings (`tuning` in experiments.yaml)
    unplanned_runs  those whose seed is not in the plan
    missing_runs    planned runs that are not there, of variants and tasks that have other runs
    missing_tasks   planned tasks of the claim that have no run
    late            all of these in words; empty where there is none

A run that carries digests (`plans` in run.json) is older than a plan whose half it does not carry. One that carries it
is younger if the register of the commit that it was made with has the plan, and the checkout was clean. In all other
cases the dates decide: a run is older if it began before the plan counts (`ddrl.papers.plan_dates`); of a run whose
beginning is not known nobody can say that the plan was there first, so it counts as older. Reference runs are held
against the settings of scale workstation.

A changed rule by which all claims are judged is a test that was written after the runs, too. `RULES` lists them, and
each report has a table of those that are younger than runs (`changed_rules`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ddrl.analysis.runs.run_data import RunData
from ddrl.analysis.verdicts.planned_seeds import MISSING_TASKS, SEED_COUNTS, in_words, plan_of, used
from ddrl.papers.experiments import load_experiments
from ddrl.papers.ground_rules import EVERY, ground_rules, removed, setting_key
from ddrl.papers.paper import Claim, Paper
from ddrl.papers.plan_dates import at_commit, dated
from ddrl.papers.plans import Registered, halves, in_force, since

_COUNTS = ("late_runs", "resettled_runs", "redefined_runs")
COLUMNS = ["plan", "plan_since", "plan_runs", *_COUNTS, *SEED_COUNTS[1:], MISSING_TASKS, "late"]

_IN_WORDS = {
    "late_runs": "test written",
    "resettled_runs": "tasks, seeds or settings of the plan changed",
    "redefined_runs": "what counts as the paper's own setting changed",
}
TUNING_REMOVED = "a recorded tuning of its experiment was removed"


@dataclass(frozen=True)
class Rule:
    """A change of the rules by which all claims are judged, with the time from which on it holds (ISO 8601, UTC)."""

    date: str
    text: str


RULES: tuple[Rule, ...] = (
    Rule("2026-11-21T12:02:10+00:00", "runs of one thread are timed by their CPU time"),
    Rule(
        "2026-11-21T14:41:57+00:00",
        "differences of returns are averaged over tasks in parts of each task's scale, and of several comparisons the "
        "one nearest to contradicting a claim is shown",
    ),
    Rule("2026-11-24T08:29:14+00:00", "variants that are each held against a number may have budgets of their own"),
    Rule("2026-11-25T01:26:28+00:00", "a metric over all tasks compares the frames of all tasks"),
    Rule(
        "2026-11-25T20:07:51+00:00",
        "a return is reached where the mean of 20 episodes is there, and a task's scale is that of its human or "
        "reference score",
    ),
    Rule(
        "2026-11-27T12:48:14+00:00",
        "what counts as 100 % has one definition in a set of tasks: on first-person tasks the best of 40 episodes of "
        "an oracle",
    ),
    Rule(
        "2026-11-27T12:56:00+00:00",
        "a claim is decided only if its decision outlasts Holm's correction for all claims of its paper, and one whose "
        "effect is too small to count shows no difference",
    ),
    Rule(
        "2026-11-27T12:56:00+00:00",
        "a claim is not testable where no variant learned or all are at the best there is, and one of times, speeds or "
        "costs that the paper measured with an accelerator where there is none",
    ),
    Rule(
        "2026-11-27T12:56:00+00:00",
        "ratios of returns are of what lies above random play, and what has another unit is averaged over tasks in "
        "parts of each task's scale",
    ),
    Rule(
        "2026-11-27T13:34:57+00:00",
        "seeds of a variant on a task deviate by at least the standard errors of their final scores, which contain the "
        "variance between versions of the parameters where several were scored",
    ),
    Rule(
        "2026-11-27T14:02:00+00:00",
        "the smallest effect of returns on one task is a number in their unit, as it was until 2026-11-27, 12:54; a "
        "task of several without a human or reference score has the scale of the best return that its rules allow",
    ),
    Rule(
        "2026-11-27T14:10:00+00:00",
        "a claim is inconclusive where settings were chosen with the seeds of its runs, where reference runs are not "
        "in the plan, and where planned ones are missing",
    ),
    Rule(
        "2026-11-27T17:09:24+00:00",
        "of several comparisons one without a difference decides only if all rule out the opposite effect, and one "
        "whose variants are all at random play, or all at the best there is, is not tested",
    ),
    Rule(
        "2026-11-27T17:09:24+00:00",
        "hyperparameter settings that tell nothing of the two that are compared are left out of the effect, and are "
        "found with the noise of random play",
    ),
    Rule(
        "2026-11-27T17:09:24+00:00",
        "planned reference runs that cannot be used are missing, and runs with the curves of another variant cannot be "
        "used",
    ),
)
"""All of them, oldest first."""


def with_plans(table: pd.DataFrame, paper: Paper, scale: str, runs: Sequence[RunData]) -> pd.DataFrame:
    """Return the table of claims with the columns `COLUMNS` last; `runs` are those that it was made from."""
    register, plans = dated(paper.directory), in_force(paper.directory)
    rules, experiments = ground_rules(paper.directory), load_experiments(paper.directory)
    without = {name for name, _ in removed(register, experiments)}
    claims = {claim.name: claim for claim in paper.claims}
    found = []
    for row in table.to_dict("records"):
        claim, origin = claims[row["claim"]], row["origin"]
        own = used(claim, [run for run in runs if run.origin == origin])
        older = _row(paper.directory, claim, own, register, plans, plan_of(origin, scale))
        date = since_rule(register, rules, setting_key(claim))
        older["redefined_runs"] = sum(began_before(run, date) for run in own)
        said = [TUNING_REMOVED] if claim.experiment in without else []
        found.append(older | {"late": "; ".join([*_in_words(row, older), *said])})
    names = ["plan", "plan_since", *_COUNTS, "late"]
    columns = pd.DataFrame(found, columns=names, index=table.index).astype(dict.fromkeys(_COUNTS, "Int64"))
    first = [name for name in table.columns if name not in COLUMNS]
    return table.assign(**{name: columns[name] for name in names})[[*first, *COLUMNS]]


def since_rule(register: Sequence[Registered], rules: Mapping[tuple[str, str], str], key: str) -> str:
    """Return the date since which a ground rule counts as it is now; empty where it is not registered."""
    newest = next((row.digest for row in reversed(register) if (row.claim, row.scale) == (key, EVERY)), "")
    return since(register, key, EVERY, 0) if newest and newest == rules.get((key, EVERY)) else ""


def _in_words(row: Mapping[Hashable, Any], older: Mapping[str, Any]) -> list[str]:
    """Return what a reader must know of a claim: `test written after 3 of 6 runs`."""
    runs = row["plan_runs"]
    said = [f"{text} after {older[name]} of {runs} runs" for name, text in _IN_WORDS.items() if older[name]]
    return [*said, *in_words(row)]


def _row(
    directory: Path,
    claim: Claim,
    runs: Sequence[RunData],
    register: Sequence[Registered],
    plans: Mapping[tuple[str, str], str],
    scale: str,
) -> dict[str, Any]:
    """Return what a claim's plan is, and how many runs are older. One that is not registered is younger than all."""
    plan = plans.get((claim.name, scale), "")
    newest = next((row.digest for row in reversed(register) if (row.claim, row.scale) == (claim.name, scale)), "")
    counts, dates = [], []
    for half in (0, 1):
        current = halves(plan)[half]
        date = since(register, claim.name, scale, half) if plan and halves(newest)[half] == current else ""
        dates.append(date)
        alike = {halves(digest)[half] for (name, _), digest in plans.items() if name == claim.name}
        counts.append(sum(_older(directory, run, claim.name, half, alike, date) for run in runs))
    return {
        "plan": plan,
        "plan_since": dates[0],
        "late_runs": counts[0],
        "resettled_runs": counts[1],
    }


def _older(directory: Path, run: RunData, claim: str, half: int, current: set[str], date: str) -> bool:
    """Return whether a run is older than half of a plan that is in force since `date` (empty: not registered)."""
    carried = run.manifest.get("plans")
    if isinstance(carried, Mapping) and carried:
        own = halves(str(carried.get(claim, "")))[half]
        if own not in current:
            return True
        if _was_registered(directory, run.manifest, claim, half, own):
            return False
    return began_before(run, date)


def _was_registered(directory: Path, manifest: Mapping[str, Any], claim: str, half: int, own: str) -> bool:
    """Return whether the commit that a run was made with has half of a plan in its register."""
    sha, began = str(manifest.get("git_sha") or ""), str(manifest.get("started") or "")
    if not sha or manifest.get("git_dirty") is not False:
        return False
    found = at_commit(directory, sha)
    if found is None or not began or began < found.date:
        return False
    return any(name == claim and halves(digest)[half] == own for name, digest in found.rows)


def began_before(run: RunData, date: str) -> bool:
    """Return whether a run began before a date, or nobody knows: either of them is empty."""
    began = str(run.manifest.get("started") or "")
    return not date or not began or began < date


def changed_rules(began: Iterable[str], rules: Sequence[Rule] = RULES) -> list[dict[str, Any]]:
    """Return the rules for all claims that are younger than some runs, which began then: date, older, runs and text."""
    times = list(began)
    counts = {rule: sum(not time or time < rule.date for time in times) for rule in rules}
    return [
        {"date": rule.date[:10], "older": older, "runs": len(times), "text": rule.text}
        for rule, older in counts.items()
        if older
    ]
