"""Decides if a claim is tested at all: enough seeds, tasks and settings, equal budgets, one kind of machine.

Times and speeds of two variants compare only if both ran on the same kind of machine. So a claim about times on
different hardware is not decided, nor one about numbers of workers on a machine with fewer cores, nor one about a GPU
on a machine without. Other load on the machines is not recorded; beside the verdict stands how many of the claim's own
runs went side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import pandas as pd

from ddrl.analysis.runs.run_data import RunData, clock_of, machine
from ddrl.analysis.statistics import claim_tests
from ddrl.analysis.statistics.claim_tests import MIN_SETTINGS
from ddrl.analysis.statistics.significance import EQUAL_BUDGET
from ddrl.papers.claim_kinds import RATIO_KINDS, RETURN_METRICS, SUITE_METRICS, TIMED_METRICS
from ddrl.papers.paper import Claim

MIN_SEEDS = 3


def obstacle(
    claim: Claim,
    used: pd.DataFrame,
    observed: pd.DataFrame,
    seeds: int,
    runs: Sequence[RunData],
    task_scales: pd.DataFrame | None,
) -> str:
    """Return why no test is made; empty if one is.

    `used`: scores, `observed`: values of each comparison, `seeds`: fewest per group, `task_scales`: of `scales`.
    """
    tasks, own = used["environment"].nunique(), taken(used, runs)
    if claim.tasks is not None and tasks < claim.tasks:
        return f"{tasks} of the {claim.tasks} tasks; the number is an aggregate over all of them"
    if claim.gpu and not all(run.manifest["hardware"]["gpu"] for run in own):
        return "the paper says this of a GPU, which these runs had none of"
    return (
        _unequal_budgets(claim, used, own)
        or unfair_times(str(claim.metric), own)
        or _too_few_units(claim, observed, seeds)
        or _unusable_values(claim, observed, task_scales)
    )


def notes(claim: Claim, used: pd.DataFrame, runs: Sequence[RunData]) -> str:
    """Return what a reader of the verdict must know of the runs behind it; empty if there is nothing."""
    own = taken(used, runs)
    own_threshold = f" The threshold is ours: {claim.threshold_from.rstrip('.')}." if claim.threshold_from else ""
    return own_threshold + _machine_note(claim, own)


def taken(used: pd.DataFrame, runs: Sequence[RunData]) -> list[RunData]:
    """Return the runs that the rows of `used` come from."""
    chosen = set(zip(used["run"], used["environment"], used["seed"], strict=True))
    return [run for run in runs if (run.variant, run.environment, run.seed) in chosen]


def unfair_times(metric: str, runs: Sequence[RunData]) -> str:
    """Return why times or speeds of these runs do not compare; empty if they do, or `metric` is no time."""
    return (_other_machines(runs) or _too_few_cores(runs)) if metric in TIMED_METRICS else ""


def _other_machines(runs: Sequence[RunData]) -> str:
    """Return why times or speeds cannot be compared: they were measured on different hardware."""
    if len({clock_of(run) for run in runs}) > 1:
        return "some runs were timed in CPU seconds of one core (runtime serial), others by the clock on the wall"
    found = sorted({machine(run.manifest["hardware"]) for run in runs})
    if len(found) < 2:
        return ""
    return f"times on different hardware say nothing about the variants: {'; '.join(found)}"


def _too_few_cores(runs: Sequence[RunData]) -> str:
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
    where = machine(runs[0].manifest["hardware"])
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

    Nor do variants that are each compared with a number, and not with each other. A metric over all tasks has the
    frames of all of them: one agent for thirty tasks is compared with thirty agents that share its budget.
    """
    if claim.metric in TIMED_METRICS:
        return ""
    if claim.metric in SUITE_METRICS and claim.kind != "at_least":
        return _budget_difference("over all tasks", _frames_of_all_tasks(used, runs))
    together = ["environment", "variant"] if claim.kind == "at_least" else ["environment"]
    reasons = (_budget_difference(f"on {place}", group) for (place, *_), group in used.groupby(together)["env_frames"])
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


def _too_few_units(claim: Claim, observed: pd.DataFrame, seeds: int) -> str:
    """Return why there are too few seeds, or settings if those are the unit."""
    if claim.kind == "stability":
        counts = [len(settings(claim, observed, worse)) for worse in claim.worse]
        if min(counts) < MIN_SETTINGS:
            return f"{min(counts)} settings in common; a test needs at least {MIN_SETTINGS}"
    elif seeds < MIN_SEEDS:
        return f"{seeds} seed{'s' if seeds != 1 else ''} a group; a test needs at least {MIN_SEEDS}"
    return ""


def _unusable_values(claim: Claim, observed: pd.DataFrame, task_scales: pd.DataFrame | None) -> str:
    """Return why the test cannot take the values."""
    if task_scales is not None and (unknown := task_scales["size"].isna()).any():
        where = task_scales.index[unknown][0]
        return f"{where} has no scale: random play is not known there, or no variant ends above it"
    if observed["value"].isna().any():
        if claim.kind == "time_to_reach":
            return "a task has no return to reach"
        if claim.metric in TIMED_METRICS:
            return "a run has recorded no return"
        return f"a task has no random {'score' if claim.metric in RETURN_METRICS else 'and human score'}"
    means = observed.groupby(["comparison", "environment", "variant"])["value"].mean()
    positive = claim.kind in (*RATIO_KINDS, "time_to_reach")
    if claim.kind == "ratio" and claim.metric in RETURN_METRICS:
        positive = False  # tested as a difference
    return "a ratio needs positive means" if positive and (means <= 0).any() else ""


def settings(claim: Claim, observed: pd.DataFrame, worse: str) -> pd.DataFrame:
    """Return the values of `better` and `worse` per setting that both have been run with on every task."""
    values = observed
    if claim.statistic == "near_best" and claim.within is not None:
        values = claim_tests.near_best(observed, claim.within)
    pair = [str(claim.better), worse]
    return claim_tests.over_settings(values[values["variant"].isin(pair)]).reindex(columns=pair).dropna()
