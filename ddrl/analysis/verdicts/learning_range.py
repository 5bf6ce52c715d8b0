"""Finds claims about returns that nothing can decide: nobody learned, or everybody reached the best there is.

Two agents that both play at random differ by nothing, and so do two that both play as well as the rules allow; that
says nothing of what the paper claims. Times to a return are exempt: they differ also where all runs end at the best.
So are claims that hold one agent against a number, and multiples of a return. A claim about hyperparameter settings is
looked at setting by setting: one in which nobody learned, or everybody is at the best, tells nothing, and it takes as
many that tell something as a test does.

Nobody learned: no variant's runs are above random play on any task, by a one-sided t test (level 5 %, divided by the
number of variants and tasks) whose standard error includes that of the mean of random play. At the ceiling: on every
task each variant's mean is nearer to the best possible return than the smallest effect that counts. On one task that is
an amount of return, on several a part of what lies between random play and the best. The best is known only where the
rules say it (`replications/references/best.csv`). A claim that is decided by two such variants, while another one is
not there, keeps its verdict, and its detail says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from ddrl.analysis.statistics.claim_tests import ALPHA, MIN_SETTINGS
from ddrl.analysis.statistics.significance import t_tail
from ddrl.analysis.verdicts.preconditions import Obstacle
from ddrl.papers.claim_kinds import FINAL_METRICS, RETURN_METRICS
from ddrl.papers.paper import Claim

NEAR = 0.05
"""The part that counts for scores over tasks, whose smallest effect is in percentage points, or of a human score."""
_KINDS = ("ordering", "monotone", "no_worse", "alike", "stability", "diminishing")


@dataclass(frozen=True)
class Ends:
    """The ends of what can be learned on a task, by environment."""

    best: Mapping[str, float] = field(default_factory=dict)
    """The best possible return, where the rules say it."""
    random_error: Mapping[str, float] = field(default_factory=dict)
    """The standard error of the mean of random play, where it was measured."""


def range_obstacles(claim: Claim, used: pd.DataFrame, observed: pd.DataFrame, ends: Ends) -> list[Obstacle]:
    """Return nobody_learned or ceiling with the reason, if one of them holds; `observed`: raw values of the metric."""
    if claim.kind not in _KINDS or claim.metric not in (*FINAL_METRICS, *RETURN_METRICS):
        return []
    values = _returns(claim, used, observed)
    groups = dict(iter(values.groupby(["environment", "variant"])["value"]))
    random = used.groupby("environment")["random"].first().astype("float64")
    if random.isna().any():
        return []
    if claim.kind == "stability":
        return _silent_settings(claim, values, random, ends)
    level = ALPHA / len(groups)
    learned = any(
        above_random(own.to_numpy(np.float64), float(random[task]), ends.random_error.get(task, 0.0)) <= level
        for (task, _), own in groups.items()
    )
    if not learned:
        return [Obstacle("nobody_learned", "no variant ends above random play on any task, beyond its noise")]
    if all(_is_at_best(claim, float(own.mean()), task, random, ends) for (task, _), own in groups.items()):
        return [Obstacle("ceiling", "every variant is at the best return there is, nearer than what counts")]
    return []


def ceiling_note(claim: Claim, names: Sequence[str], used: pd.DataFrame, observed: pd.DataFrame, ends: Ends) -> str:
    """Return that all of the compared variants `names` are at the best there is on each task; empty if they are not.

    The verdict stays: another comparison of the claim is about variants that are not.
    """
    if claim.kind not in _KINDS or claim.kind == "stability" or claim.metric not in (*FINAL_METRICS, *RETURN_METRICS):
        return ""
    values = _returns(claim, used, observed)
    random = used.groupby("environment")["random"].first().astype("float64")
    groups = values[values["variant"].isin(names)].groupby(["environment", "variant"])["value"]
    best = [_is_at_best(claim, float(own.mean()), str(task), random, ends) for (task, _), own in groups]
    if random.isna().any() or not all(best):
        return ""
    sides = "Both sides" if len(names) == 2 else "All sides"
    return f" {sides} of this comparison are at the best return there is, nearer than what counts."


def _returns(claim: Claim, used: pd.DataFrame, observed: pd.DataFrame) -> pd.DataFrame:
    """Return one return per environment, variant, setting and seed as column `value`."""
    values = observed if claim.metric in RETURN_METRICS else used.assign(value=used["final_return"])
    return values.drop_duplicates([name for name in ("environment", "variant", "setting", "seed") if name in values])


def above_random(scores: np.ndarray[tuple[int], np.dtype[np.float64]], random: float, error: float) -> float:
    """Return the one-sided p that scores [n] are no higher in the mean than random play with this standard error.

    A single score, or scores without any spread, are held against the error of random play alone.
    """
    own = float(scores.std(ddof=1)) / math.sqrt(len(scores)) if len(scores) > 1 and np.ptp(scores) else 0.0
    whole = math.hypot(own, error)
    distance = float(scores.mean()) - random
    if whole == 0:
        return float(distance <= 0)
    # Satterthwaite; random play was measured over many episodes, so its part has no uncertainty of its own.
    freedom = (len(scores) - 1) * (whole / own) ** 4 if own > 0 else 1e6
    return float(t_tail(distance / whole, freedom))


def _silent_settings(claim: Claim, values: pd.DataFrame, random: pd.Series, ends: Ends) -> list[Obstacle]:
    """Return both obstacles if too few settings have a variant between random play and the best, on any task."""
    means = values.groupby(["setting", "environment", "variant"])["value"].mean().reset_index()
    task = means["environment"]
    low, best = task.map(random), task.map(ends.best).astype("float64")
    room = _room(claim, (best - low).fillna(0.0), task.nunique())
    means = means.assign(low=means["value"] <= low + room, high=means["value"] >= best - room)
    every = means.groupby("setting")[["low", "high"]].all()
    telling = len(every) - int(every.any(axis=1).sum())
    if telling >= MIN_SETTINGS:
        return []
    nobody, everybody = int(every["low"].sum()), int(every["high"].sum())
    found = []
    if nobody:
        found.append(Obstacle("nobody_learned", f"in {nobody} of {len(every)} settings no variant learned"))
    if everybody:
        what = f"in {everybody} of {len(every)} settings every variant is at the best return there is"
        found.append(Obstacle("ceiling", f"{what}; the other {telling} are too few for a test"))
    return found


def _room(claim: Claim, span: pd.Series, tasks: int) -> pd.Series:
    """Return how near to an end counts as being there, in the unit of returns, of a claim on so many tasks."""
    return span * 0 + claim.margin if claim.margin else claim.smallest_effect * (span if tasks > 1 else span * 0 + 1)


def _is_at_best(claim: Claim, mean: float, task: str, random: pd.Series, ends: Ends) -> bool:
    """Return whether a mean is at the best return of a task; `random` has every task of the claim."""
    if task not in ends.best:
        return False
    of_one_task = len(random) == 1 and claim.metric in RETURN_METRICS and not claim.margin
    room = claim.smallest_effect if of_one_task else _part(claim) * (ends.best[task] - random[task])
    return bool(ends.best[task] - mean <= room)


def _part(claim: Claim) -> float:
    """Return what counts, as a part of what lies between random play and the best."""
    if claim.metric in RETURN_METRICS:
        return claim.margin or claim.smallest_effect
    return NEAR
