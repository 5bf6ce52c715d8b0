"""Decides a claim from its comparisons, and again after Holm's correction for the other claims of its paper.

A claim with several comparisons ("above A and B") is a statement that needs all of them: it is false if one of them is.
Three things can be decided, each by a two-sided p against effects that lie just on its other side:

    supported      the effect is larger than the smallest that counts. All comparisons must show it: the largest p
    contradicted   it is as large the other way round. What is below A is not above A and B, so one comparison is
                   enough: the smallest p times their number
    no_difference  it is too small to count, in either direction. One comparison is enough for the claim not to hold as
                   stated (the smallest p times their number), but none may leave open whether it is contradicted: each
                   must rule out an opposite effect that counts (the largest p). The larger of the two

So a claim of which one comparison shows no difference, and another may show the opposite, is inconclusive. Where the
comparisons show different things the detail says what each shows. A comparison that cannot be tested
(`ddrl.analysis.verdicts.learning_range`) takes no part: the claim can then be contradicted, by another one, and nothing
else. If it is not, it is not testable; it stays in the family, since that does not depend on what the runs show.

A claim that two variants are alike is supported by no difference that counts, and contradicted by one in either
direction. A bound over configurations (`up_to`) is supported by one of them, and contradicted by all of them.

The family of Holm's correction is all claims of a paper that were tested on runs of one origin. A decision stands if
its p after the correction is at most 5 %; what is shown beside it is the claim's own 95 % interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from ddrl.analysis.statistics.claim_tests import ALPHA, Contrast
from ddrl.analysis.statistics.significance import holm
from ddrl.analysis.verdicts.claim_contrasts import Comparison, short, spelled, words
from ddrl.analysis.verdicts.claim_seeds import Outlook
from ddrl.papers.claim_verdicts import DECIDED
from ddrl.papers.experiments import Experiment
from ddrl.papers.paper import Claim

_LINES = {"at_least": "the value to reach", "no_worse": "what may be lost"}
"""Kind of claim -> the line that its interval is held against, in words."""
_THRESHOLDS = {
    **_LINES,
    "ratio": "the threshold",
    "diminishing": "steps that do not shrink",
    "up_to": "the bound",
}
"""Kind of claim -> what the interval of a supported claim lies above, in words."""
_ALONE = {
    "supported": "holds",
    "contradicted": "does not hold",
    "no_difference": "shows no difference",
    "inconclusive": "remains open",
}
"""What one of several comparisons shows alone -> the same in a sentence."""
Tested = list[tuple[Comparison, Contrast]]


class Sizes(NamedTuple):
    """What counts for a claim, on its tested scale."""

    smallest: float
    """The smallest effect that counts, beyond the null value."""
    of_interest: float
    """The effect that seeds are counted for."""


def decide(claim: Claim, experiment: Experiment, found: Sequence[Comparison], sizes: Sizes) -> dict[str, Any]:
    """Return the verdict on all comparisons, without correction, and the comparison that decides.

    It is that with the verdict which is nearest to contradicting the claim (of a bound: which shows the most).
    """
    tested = [(item, item.contrast) for item in found if item.contrast and item.tested]
    tested = tested or [(item, item.contrast) for item in found if item.contrast]  # shown, whatever stands in the way
    silent = "".join(map(_silent_note, found))
    if not tested:
        return {"verdict": "inconclusive", "obstacle": "silent", "detail": silent.strip()}
    complete = len(tested) == len(found)
    values = _p_values(claim, [contrast for _, contrast in tested], len(found), sizes, complete=complete)
    verdict, p = _best_of(values)
    chosen, decisive = _deciding(claim, tested, verdict, len(found), sizes)
    own = _alone(claim, decisive, len(found), sizes)
    effect, low, high = decisive.shown()
    below, above = (math.nan, math.nan) if claim.kind == "alike" else decisive.lines(sizes.smallest)
    against = decisive.effect < decisive.null
    result = {
        "verdict": verdict,
        "effect": effect,
        "ci95_low": low,
        "ci95_high": high,
        "contradicted_below": below,
        "supported_above": above,
        "hedges_g": decisive.hedges_g,
        "p": min(1.0, decisive.p() * (len(found) if against else 1)),
        "p_decision": p,
        "decided_by": chosen.label,
        "comparisons": "; ".join(spelled(item) for item in found if item.contrast),
        "detail": _detail(claim, experiment, chosen, decisive, own)
        + _others(claim, tested, chosen, len(found), sizes)
        + silent,
    }
    outlook = Outlook(claim, [item.contrast for item in found], decisive, sizes.smallest, sizes.of_interest)
    result["outlook"] = outlook
    if verdict != "inconclusive":
        return result
    return result | {"seeds_needed": outlook.units(), "detail": f"{result['detail']} {outlook.note()}"}


def of_one_seed(found: Sequence[Comparison]) -> dict[str, Any]:
    """Return the effect that is nearest to contradicting a claim, of groups that are too small for an interval."""
    tested = [(item, item.contrast) for item in found if item.contrast]
    if not tested:
        return {"verdict": "inconclusive", "detail": "".join(map(_silent_note, found)).strip()}
    chosen, decisive = min(tested, key=lambda each: each[1].effect - each[1].null)
    where = words([short(name) for name in chosen.by_task])
    said = f"{chosen.label}, on {where}: one seed, which has no interval."
    effect = decisive.shown()[0]
    every = "; ".join(spelled(item) for item in found if item.contrast)
    return {
        "verdict": "inconclusive",
        "effect": effect,
        "decided_by": chosen.label,
        "comparisons": every,
        "detail": said,
    }


def untested(found: Sequence[Comparison], unit: str) -> dict[str, Any]:
    """Return what is shown of comparisons that no test can be made of, each task in its own `unit`; {} if none."""
    if not found:
        return {}
    every = "; ".join(map(spelled, found))
    shown = {"verdict": "inconclusive", "effect_unit": unit, "comparisons": every, "detail": f"in {unit}: {every}."}
    whole = [(item, item.contrast) for item in found if item.contrast]
    if not whole:
        return shown
    chosen, least = min(whole, key=lambda each: each[1].effect)
    effect, low, high = least.shown()
    ends = {} if math.isnan(least.error) else {"ci95_low": low, "ci95_high": high}
    return shown | ends | {"effect": effect, "decided_by": chosen.label}


def _alone(claim: Claim, contrast: Contrast, number: int, sizes: Sizes) -> str:
    """Return what one of `number` comparisons shows."""
    return _best_of(_p_values(claim, [contrast], number, sizes, complete=True))[0]


def _p_values(
    claim: Claim, contrasts: Sequence[Contrast], number: int, sizes: Sizes, *, complete: bool
) -> dict[str, float]:
    """Return the p of each decision, of `number` comparisons; not `complete`: some of them say nothing."""
    if claim.kind == "alike":
        inside = [item.p_no_difference(sizes.of_interest) for item in contrasts]
        outside = [item.p_outside(sizes.of_interest) for item in contrasts]
        return {"contradicted": _any(outside, number), "supported": max(inside) if complete else 1.0}
    above = [item.p_supported(sizes.smallest) for item in contrasts]
    below = [item.p_contradicted(sizes.smallest) for item in contrasts]
    if claim.kind == "up_to":
        return {"contradicted": max(below) if complete else 1.0, "supported": _any(above, number)}
    none = _any([item.p_no_difference(sizes.smallest) for item in contrasts], number)
    not_opposite = max(item.p_not_opposite(sizes.smallest) for item in contrasts)
    return {
        "contradicted": _any(below, number),
        "supported": max(above) if complete else 1.0,
        "no_difference": max(none, not_opposite) if complete else 1.0,
    }


def _any(values: Sequence[float], number: int) -> float:
    return min(1.0, number * min(values))


def _best_of(values: Mapping[str, float]) -> tuple[str, float]:
    """Return the verdict without correction and its p: one that contradicts goes before the others."""
    if values["contradicted"] <= ALPHA:
        return "contradicted", values["contradicted"]
    name = min(values, key=lambda one: values[one])
    return (name if values[name] <= ALPHA else "inconclusive"), values[name]


def _deciding(claim: Claim, tested: Tested, verdict: str, number: int, sizes: Sizes) -> tuple[Comparison, Contrast]:
    """Return the comparison that is shown."""
    if claim.kind == "up_to":
        return max(tested, key=lambda each: each[1].effect)
    alone = [_alone(claim, contrast, number, sizes) for _, contrast in tested]
    deciding = [each for each, own in zip(tested, alone, strict=True) if own == verdict] or tested
    if claim.kind == "alike":
        return max(deciding, key=lambda each: abs(each[1].strength()))
    return min(deciding, key=lambda each: each[1].strength())


def _others(claim: Claim, tested: Tested, chosen: Comparison, number: int, sizes: Sizes) -> str:
    """Return what the comparisons that are not shown say, if any of them says something else than that which is."""
    alone = {item.label: _alone(claim, contrast, number, sizes) for item, contrast in tested}
    own = alone.pop(chosen.label)
    if claim.kind == "up_to" or all(found == own for found in alone.values()):
        return ""
    said = [f"{label} {_ALONE[found]}" for label, found in alone.items()]
    return f" The claim needs all of its comparisons: {words(said)}."


def _silent_note(item: Comparison) -> str:
    """Return on which tasks a comparison of times has no result."""
    if not item.silent:
        return ""
    where = words([short(name) for name in item.silent])
    return f" {item.label}, on {where}: no run reached the return while both were watched, which says nothing."


def _detail(claim: Claim, experiment: Experiment, chosen: Comparison, decisive: Contrast, verdict: str) -> str:
    """Return one sentence on what decided."""
    where = words([short(name) for name in chosen.by_task])
    against = _multiple_in_words(claim)
    kind = "no_worse" if claim.kind == "stability" and claim.margin else claim.kind
    if verdict == "no_difference":
        said = "the interval holds only effects too small to count"
    elif claim.kind == "alike":
        sides = {"supported": "lies within the margin", "contradicted": "lies outside of the margin"}
        said = f"the interval {sides.get(verdict, 'reaches beyond the margin')}"
    elif verdict == "supported":
        said = f"the interval lies above {against or _THRESHOLDS.get(kind, 'every effect too small to count')}"
    elif verdict == "contradicted":
        line = against or _LINES.get(kind)
        said = f"the interval lies below {line}" if line else "the opposite holds"
    elif against and claim.kind not in ("ratio", "up_to"):
        said = _undecided(decisive, against)
    elif kind in _LINES:
        said = f"the interval holds {_LINES[kind]}"
    else:
        said = "the interval reaches from an effect that counts to none, or to the opposite"
    proxy = "; the tasks stand in for the paper's" if experiment.proxy else ""
    return f"{decisive.label}, on {where}: {said}{proxy}."


def _undecided(decisive: Contrast, against: str) -> str:
    """Return how an interval lies to a multiple that it decides nothing about."""
    low, high = decisive.interval()
    if low <= decisive.null <= high:
        return f"the interval holds {against}"
    side = "below" if high < decisive.null else "above"
    cut = "runs that never got there count as if they had at the end"
    why = cut if decisive.cut else "not by more than is too small to count"
    return f"the interval lies {side} {against}, but {why}"


def _multiple_in_words(claim: Claim) -> str:
    """Return what the effect is compared with, in words, if that is a multiple; else empty."""
    if claim.kind == "interaction":
        return "the other ratio" if claim.threshold in (None, 1) else f"{claim.threshold:g} times the other ratio"
    if claim.kind in ("ratio", "up_to") and claim.threshold != 1:
        return f"{claim.threshold:g} times the other's"
    return f"{claim.factor:g} times" if claim.factor != 1 else ""


def corrected(table: pd.DataFrame, paper: str, outlooks: Sequence[Outlook | None] = ()) -> pd.DataFrame:
    """Return the claims of a paper with p_holm and family, and those inconclusive whose decision does not outlast it.

    The family is all claims with a p_decision on the same origin. `outlooks`, one a row: the seeds that an inconclusive
    claim needs are counted at the level that the correction asks of the smallest p of the family.
    """
    adjusted = holm(table, p="p_decision", family=["origin"])
    counts = table["p_decision"].notna().groupby(table["origin"]).transform("sum")
    tested = table["p_decision"].notna()
    names = [
        f"{count} claim{'s' if count != 1 else ''} of {paper} tested on {origin} runs" if known else ""
        for count, origin, known in zip(counts, table["origin"], tested, strict=True)
    ]
    lost = tested & table["verdict"].isin(DECIDED) & (adjusted > ALPHA)
    details = [
        f"{_lost_note(verdict, p, int(count))}: {detail}" if gone else detail
        for detail, verdict, p, count, gone in zip(
            table["detail"], table["verdict"], adjusted, counts, lost, strict=True
        )
    ]
    verdicts = table["verdict"].mask(lost, "inconclusive")
    result = table.assign(p_holm=adjusted, family=names, detail=details, verdict=verdicts)
    still_open = tested & (verdicts == "inconclusive")
    for row, outlook in zip(table.index, outlooks or [None] * len(table), strict=True):
        if outlook and still_open[row]:
            family, detail = int(counts[row]), str(result.at[row, "detail"])
            alone, note = outlook.note(), outlook.note(family)
            if outlook.obstacles:  # decided but for the correction, though a comparison cannot be tested
                result.at[row, "verdict"] = "not_testable"
                result.at[row, "obstacle"] = ";".join(dict.fromkeys(one.name for one in outlook.obstacles))
                continue
            result.at[row, "seeds_needed"] = outlook.units(family)
            result.at[row, "detail"] = f"{detail} {note}" if lost[row] else detail.replace(alone, note)
    return result


def _lost_note(verdict: str, p: float, count: int) -> str:
    alone = {"supported": "support the claim", "no_difference": "show no difference"}
    what = alone.get(verdict, "contradict the claim")
    return f"After Holm's correction for {count} claims its p is {p:.2g}, which decides nothing. Alone it would {what}"
