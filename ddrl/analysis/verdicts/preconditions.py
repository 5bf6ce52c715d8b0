"""Finds what keeps runs from deciding a claim: an accelerator or cores they lack, too few tasks or seeds, budgets.

Each obstacle has a name (`ddrl.papers.claim_verdicts`). Some leave a claim not testable: such runs do not show it. The
others leave it inconclusive, since other runs of the same kind would. The effect is measured all the same where it can
be, and shown beside the verdict.

A claim whose times, speeds or costs the paper measured with an accelerator needs one (`needs: {gpu: true}`): paper.yaml
says so of every claim of such a metric, by that one rule. What counts is the device that each run used: a run on the
CPUs of a machine with a GPU has none. Times and speeds of two variants compare only if both ran on
the same kind of machine, and numbers of workers only on as many cores. Other load on the machines is not recorded;
beside the verdict stands how many of the claim's own runs went side by side.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

import pandas as pd

from ddrl.analysis.runs.run_data import RunData, clock_of, gpu_of, machine_of, machines_of
from ddrl.analysis.statistics import claim_tests
from ddrl.analysis.statistics.claim_tests import MIN_SETTINGS
from ddrl.analysis.statistics.significance import EQUAL_BUDGET
from ddrl.papers.claim_kinds import EARLY, RETURN_METRICS, SUITE_METRICS, TIMED_METRICS, divides
from ddrl.papers.paper import Claim

MIN_SEEDS = 3
MIN_CONFIGURATIONS = MIN_SETTINGS
"""Fewest configurations that speak against a bound over configurations."""


class Obstacle(NamedTuple):
    """Why runs do not decide a claim: the name of the reason, and a sentence's part that says it."""

    name: str
    reason: str


def obstacles(
    claim: Claim,
    used: pd.DataFrame,
    observed: pd.DataFrame,
    seeds: int,
    runs: Sequence[RunData],
    task_scales: pd.DataFrame | None,
) -> list[Obstacle]:
    """Return what forbids a verdict, except for what was learned (`ddrl.analysis.verdicts.learning_range`).

    `used`: scores, `observed`: values of each comparison, `seeds`: fewest per group, `task_scales`: of `scales`.
    """
    own = taken(used, runs)
    timed = claim.metric in TIMED_METRICS
    found = {
        "tasks": _too_few_tasks(claim, used),
        "gpu": _no_accelerator(claim, own),
        "cores": _fewer_cores_than_needed(claim, own) or (too_few_cores(own) if timed else ""),
        "budgets": _unequal_budgets(claim, used, own),
        "hardware": other_machines(own) if timed else "",
        "few_settings": _too_few_settings(claim, observed),
        "seeds": _too_few_seeds(claim, seeds),
        "values": _unusable_values(claim, observed, task_scales),
    }
    return [Obstacle(name, reason) for name, reason in found.items() if reason]


def notes(claim: Claim, used: pd.DataFrame, runs: Sequence[RunData]) -> str:
    """Return what a reader of the verdict must know of the runs behind it; empty if there is nothing."""
    own = taken(used, runs)
    own_threshold = f" The threshold is ours: {claim.threshold_from.rstrip('.')}." if claim.threshold_from else ""
    return own_threshold + _machine_note(claim, own)


def taken(used: pd.DataFrame, runs: Iterable[RunData]) -> list[RunData]:
    """Return the runs that the rows of `used` come from."""
    chosen = set(zip(used["run"], used["environment"], used["seed"], strict=True))
    return [run for run in runs if (run.variant, run.environment, run.seed) in chosen]


def unfair_times(metric: str, runs: Sequence[RunData]) -> str:
    """Return why times or speeds of these runs do not compare; empty if they do, or `metric` is no time."""
    return (other_machines(runs) or too_few_cores(runs)) if metric in TIMED_METRICS else ""


def _too_few_tasks(claim: Claim, used: pd.DataFrame) -> str:
    tasks = used["environment"].nunique()
    if claim.needs.tasks is None or tasks >= claim.needs.tasks:
        return ""
    return f"{tasks} of the {claim.needs.tasks} tasks; the number is an aggregate over all of them"


def _no_accelerator(claim: Claim, runs: Sequence[RunData]) -> str:
    if not claim.needs.gpu or all(map(gpu_of, runs)):
        return ""
    return "the paper timed this with an accelerator, which these runs did not use"


def _fewer_cores_than_needed(claim: Claim, runs: Sequence[RunData]) -> str:
    if claim.needs.cores is None or not runs:
        return ""
    cores = min(int(run.manifest["hardware"]["cores"]) for run in runs)
    if cores >= claim.needs.cores:
        return ""
    return f"{cores} cores of the {claim.needs.cores} that the claim is about"


def other_machines(runs: Sequence[RunData]) -> str:
    """Return why times or speeds cannot be compared: they were measured on different hardware; empty if they can."""
    if len({clock_of(run) for run in runs}) > 1:
        return "some runs were timed in CPU seconds of one core (runtime serial), others by the clock on the wall"
    found = sorted(set[str]().union(*map(machines_of, runs)))
    if len(found) < 2:
        return ""
    return f"times on different hardware say nothing about the variants: {'; '.join(found)}"


def too_few_cores(runs: Sequence[RunData]) -> str:
    """Return why workers cannot show their speed: more workers with local inference than cores, in wall-clock time."""
    if any(clock_of(run) == "cpu" for run in runs):
        return ""
    topologies = [run.config.get("topology", {}) for run in runs]
    counts = {int(one.get("num_actors", 1)) for one in topologies if one.get("inference", "local") == "local"}
    cores = min((int(run.manifest["hardware"]["cores"]) for run in runs), default=0)
    if len(counts) < 2 or max(counts) <= cores:
        return ""
    return f"fewer cores than workers: {cores} cores for up to {max(counts)} workers"


def _machine_note(claim: Claim, runs: Sequence[RunData]) -> str:
    """Return on what machine times or speeds were measured, and how many of the runs went side by side."""
    if claim.metric not in TIMED_METRICS or not runs:
        return ""
    where = machine_of(runs[0])
    if clock_of(runs[0]) == "cpu":
        return (
            f" In CPU seconds of one core each; all on {where}. Acting and learning took turns in one thread, so what "
            "a system gains by doing both at once does not show."
        )
    most = _most_at_once(runs)
    beside = f"; up to {most} of these runs went side by side" if most > 1 else "; these runs went one by one"
    return f" All on {where}{beside if most else ''}. Other load is not recorded."


def _most_at_once(runs: Sequence[RunData]) -> int:
    """Return the most runs that were under way at one moment; 0 if their times are not known."""
    changes = []
    for run in runs:
        times = [run.manifest.get(name) for name in ("started", "finished")]
        if not all(times):
            return 0
        begin, end = (datetime.fromisoformat(str(time)) for time in times)
        changes += [(begin, 1), (end, -1)]
    under_way = most = 0
    for _, change in sorted(changes):  # an end comes before a beginning at the same moment
        under_way += change
        most = max(most, under_way)
    return most


def _unequal_budgets(claim: Claim, used: pd.DataFrame, runs: Sequence[RunData]) -> str:
    """Return why budgets forbid a comparison; a metric per second or in seconds needs no equal number of frames.

    Nor do variants that are each compared with a number, and not with each other, nor the configurations of a bound,
    each of which is a comparison of its own. A metric over all tasks has the frames of all of them: one agent for
    thirty tasks is compared with thirty agents that share its budget.
    """
    if claim.metric in TIMED_METRICS:
        return ""
    if claim.metric in SUITE_METRICS and claim.kind != "at_least":
        return _budget_difference("over all tasks", _frames_of_all_tasks(used, runs))
    groups = [used[used["variant"].isin(pair)] for pair in claim.configurations] or [used]
    together = ["environment", "variant"] if claim.kind == "at_least" else ["environment"]
    reasons = (
        _budget_difference(f"on {place}", rows["env_frames"])
        for group in groups
        for (place, *_), rows in group.groupby(together)
    )
    return next(filter(None, reasons), "")


def _budget_difference(where: str, env_frames: pd.Series) -> str:
    low, high = env_frames.min(), env_frames.max()
    return f"budgets differ {where}: {low:,.0f} against {high:,.0f} frames" if high > (1 + EQUAL_BUDGET) * low else ""


def _frames_of_all_tasks(used: pd.DataFrame, runs: Sequence[RunData]) -> pd.Series:
    """Return the frames of each variant's seeds that have every task; an agent for several tasks counts once."""
    columns = ["variant", "seed", "task", "trained_on", "frames"]
    rows = [(r.variant, r.seed, r.environment, r.suite or r.environment, int(r.manifest["env_frames"])) for r in runs]
    agents = pd.DataFrame(rows, columns=columns).groupby(["variant", "seed"])
    whole = agents.filter(lambda own: own["task"].nunique() == used["environment"].nunique())
    return whole.drop_duplicates(["variant", "seed", "trained_on"]).groupby(["variant", "seed"])["frames"].sum()


def _too_few_settings(claim: Claim, observed: pd.DataFrame) -> str:
    """Return why there are too few settings, if those are the unit."""
    if claim.kind != "stability":
        return ""
    fewest = min(len(settings(claim, observed, worse)) for worse in claim.worse)
    return f"{fewest} settings in common; a test needs at least {MIN_SETTINGS}" if fewest < MIN_SETTINGS else ""


def _too_few_seeds(claim: Claim, seeds: int) -> str:
    if claim.kind == "stability" or seeds >= MIN_SEEDS or not seeds:
        return ""
    return f"{seeds} seed{'s' if seeds != 1 else ''} a group; a test needs at least {MIN_SEEDS}"


def _unusable_values(claim: Claim, observed: pd.DataFrame, task_scales: pd.DataFrame | None) -> str:
    """Return why the test cannot take the values."""
    if observed.empty:
        return "no task has a random and a human score"
    several = observed["environment"].nunique() > 1
    if several and task_scales is not None and (unknown := task_scales["size"].isna()).any():
        where = task_scales.index[unknown][0]
        return f"{where} has no scale: random play is not known there, or no variant ends above it"
    if observed["value"].isna().any():
        if claim.kind == "time_to_reach":
            return "a task has no return to reach"
        if claim.metric in TIMED_METRICS:
            return "a run has recorded no return"
        if claim.metric == EARLY:
            return "a run ended with no return above 0, or was not evaluated early enough while it trained"
        return f"a task has no random {'score' if claim.metric in RETURN_METRICS else 'and human score'}"
    means = observed.groupby(["comparison", "environment", "variant"])["value"].mean()
    return "a ratio needs positive means" if divides(claim.kind, claim.metric) and (means <= 0).any() else ""


def settings(claim: Claim, observed: pd.DataFrame, worse: str) -> pd.DataFrame:
    """Return the values of `better` and `worse` per setting that both have been run with on every task."""
    values = observed
    if claim.statistic == "near_best" and claim.within is not None:
        values = claim_tests.near_best(observed, claim.within)
    pair = [str(claim.better), worse]
    return claim_tests.over_settings(values[values["variant"].isin(pair)]).reindex(columns=pair).dropna()
