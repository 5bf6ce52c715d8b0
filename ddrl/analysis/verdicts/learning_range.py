"""Finds comparisons of returns that nothing can decide: nobody learned, or everybody reached the best there is.

Two agents that both play at random differ by nothing, and so do two that both play as well as the rules allow; that
says nothing of what the paper claims, nor that the two are alike. Such a comparison is not tested, whatever its claim
would be decided as. Times to a return are exempt: they differ also where all runs end at the best. So are claims that
hold one agent against a number, and multiples of a return.

Nobody learned: on no task is a variant of the comparison shown to be above random play, by a one-sided t test (level
5 %, divided by the number of the claim's variants and tasks) whose standard error includes that of the mean of random
play. At the ceiling: on every task the mean of each of its variants is nearer to the best possible return than the
smallest effect that counts. On one task that is an amount of return, on several a part of what lies between random play
and the best. The best is known only where the rules say it (`replications/references/best.csv`). Both rules are applied
task by task, where random play is known. Of other tasks nothing is known, so a comparison with such a task is tested,
and the detail of its claim names the task.

A claim about hyperparameter settings is looked at setting by setting, and comparison by comparison. A setting tells
nothing of two variants if on each task neither is above random play, by the same test and by what counts, or both are
at the best. Such settings are left out of the effect. If fewer are left than a test takes, the comparison is not
tested, and what is shown of it is over all settings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pandas as pd

from ddrl.analysis.statistics.claim_tests import ALPHA, MIN_SETTINGS
from ddrl.analysis.statistics.significance import t_tail
from ddrl.analysis.verdicts.preconditions import Obstacle, settings
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


class Range(NamedTuple):
    """What one comparison can tell, by where its variants end between random play and the best."""

    obstacles: tuple[Obstacle, ...] = ()
    """nobody_learned, ceiling, or both, with the reasons; none if it can be tested."""
    telling: frozenset[str] | None = None
    """Of a claim about settings: those that it is tested on. None: all."""
    note: str = ""
    """What a reader must know of the settings."""


def ranges(
    claim: Claim,
    comparisons: Sequence[tuple[str, ...]],
    used: pd.DataFrame,
    observed: pd.DataFrame,
    ends: Ends,
    task_scales: pd.DataFrame | None = None,
) -> list[Range]:
    """Return what each comparison (names of variants) can tell; `observed`: raw values, with `comparison` numbers."""
    if not _has_range(claim):
        return [Range() for _ in comparisons]
    random = used.groupby("environment")["random"].first().astype("float64")
    if claim.kind == "stability":
        sizes = {} if task_scales is None else {str(task): float(size) for task, size in task_scales["size"].items()}
        parts = [observed[observed["comparison"] == number] for number in range(len(comparisons))]
        return [
            _of_settings(claim, names, _returns(claim, used, part), random, ends, sizes)
            for names, part in zip(comparisons, parts, strict=True)
        ]
    values = _returns(claim, used, observed)
    groups = {
        (str(task), str(variant)): own["value"].to_numpy(np.float64)
        for (task, variant), own in values.groupby(["environment", "variant"])
    }
    p_values = {
        place: above_random(own, float(random[place[0]]), ends.random_error.get(place[0], 0.0))
        for place, own in groups.items()
        if not math.isnan(random[place[0]])
    }
    means = {place: float(own.mean()) for place, own in groups.items()}
    return [_of_comparison(claim, names, means, p_values, random, ends) for names in comparisons]


def unknown_note(claim: Claim, used: pd.DataFrame) -> str:
    """Return on which tasks nobody knows whether anybody learned; empty if random play is known on all."""
    random = used.groupby("environment")["random"].first()
    where = _short([str(task) for task in random.index[random.isna()]])
    if not _has_range(claim) or not where:
        return ""
    return f" Random play is not known on {where}, so nobody can tell whether anybody learned there."


def _short(tasks: Sequence[str]) -> str:
    """Return toy/catch and atari/pong as `catch, pong`."""
    return ", ".join(task.split("/")[-1] for task in tasks)


def _has_range(claim: Claim) -> bool:
    return claim.kind in _KINDS and claim.metric in (*FINAL_METRICS, *RETURN_METRICS)


def _of_comparison(
    claim: Claim,
    names: tuple[str, ...],
    means: Mapping[tuple[str, str], float],
    p_values: Mapping[tuple[str, str], float],
    random: pd.Series,
    ends: Ends,
) -> Range:
    """Return what a comparison can tell; `means` and `p_values` (above random play) by task and variant."""
    low, high = [], []
    for task in map(str, random.index):
        places = [place for place in means if place[0] == task and place[1] in names]
        known = [p_values[place] for place in places if place in p_values]
        if known and min(known) > ALPHA / len(means):
            low.append(task)
        elif places and all(_is_at_best(claim, means[place], task, random, ends) for place in places):
            high.append(task)
    if len(low) + len(high) < len(random):
        return Range()
    found = []
    if low:
        smallest = min(p for (task, name), p in p_values.items() if task in low and name in names)
        level = f"p is {smallest:.2g} or more, at a level of {ALPHA / len(means):.2g}"
        where = _short(low) if high else "any task"
        found.append(Obstacle("nobody_learned", f"no variant is shown to be above random play on {where} ({level})"))
    if high:
        where = f" on {_short(high)}" if low else ""
        reason = f"every variant is at the best return there is{where}, nearer than what counts"
        found.append(Obstacle("ceiling", reason))
    return Range(tuple(found))


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


def _of_settings(
    claim: Claim,
    names: tuple[str, ...],
    values: pd.DataFrame,
    random: pd.Series,
    ends: Ends,
    sizes: Mapping[str, float],
) -> Range:
    """Return what two variants can tell in the settings that both have; `sizes`: of the scale of each task."""
    common = settings(claim, values, names[1]).index
    values = values[values["variant"].isin(names) & values["setting"].isin(common)]
    groups = dict(iter(values.groupby(["setting", "environment", "variant"])))
    level = ALPHA / max(1, len(groups))
    rows = []
    for (setting, place, _), own in groups.items():
        task = str(place)
        room = _room(claim, own, task, random, ends, sizes)
        low = not _learned(claim, own, float(random[task]), room, ends.random_error.get(task, 0.0), level)
        high = _is_at_best(claim, float(own["value"].mean()), task, random, ends)
        rows.append((setting, task, low, high))
    ends_of = pd.DataFrame(rows, columns=["setting", "task", "low", "high"]).astype({"low": bool, "high": bool})
    both = ends_of.groupby(["setting", "task"])[["low", "high"]].all()
    silent = both.any(axis=1).groupby(level="setting").all()
    nobody = silent & both["low"].groupby(level="setting").any()
    telling = frozenset(map(str, silent.index[~silent]))
    counts = int(nobody.sum()), int((silent & ~nobody).sum())
    of = f"of {len(silent)} settings"
    said = {
        "nobody_learned": f"in {counts[0]} {of} no variant is shown to have learned",
        "ceiling": f"in {counts[1]} {of} every variant is at the best return there is",
    }
    said = {name: words for (name, words), count in zip(said.items(), counts, strict=True) if count}
    if len(telling) >= MIN_SETTINGS or not said:
        left_out = f"; those are left out: {', and '.join(said.values())}" if said else ""
        return Range((), telling, f"{len(telling)} {of} tell something{left_out}.")
    last = list(said)[-1]
    verb = "is" if len(telling) == 1 else "are"
    said[last] += f"; the other {len(telling)} {verb} too few for a test"
    return Range(tuple(Obstacle(name, words) for name, words in said.items()))


def _learned(claim: Claim, own: pd.DataFrame, random: float, room: float, error: float, level: float) -> bool:
    """Return whether runs of a variant with one setting end above random play, by `room` and beyond its noise.

    Where random play is not known nobody can say that they do not.
    """
    if math.isnan(random):
        return True
    scores = own["value"].to_numpy(np.float64)
    if len(scores) == 1 and claim.metric == "final_return" and "score_error" in own:
        error = math.hypot(error, float(own["score_error"].fillna(0.0).iloc[0]))
    return float(scores.mean()) - random > room and above_random(scores, random, error) <= level


def _room(
    claim: Claim, own: pd.DataFrame, task: str, random: pd.Series, ends: Ends, sizes: Mapping[str, float]
) -> float:
    """Return what counts above random play on a task, in the unit of returns; 0 where its scale is not known."""
    if len(random) == 1 and not claim.margin:
        return claim.smallest_effect
    human = float(own["human"].iloc[0]) if "human" in own else math.nan
    size = sizes.get(task, math.nan)
    size = ends.best.get(task, human) - float(random[task]) if math.isnan(size) else size
    return 0.0 if math.isnan(size) else _part(claim) * size


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
