"""Decides one cell: our seeds against a published number, by the rules of `ddrl.analysis.verdicts.cells`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ddrl.analysis.statistics import significance
from ddrl.analysis.statistics.printed import PrintedMean, difference
from ddrl.analysis.statistics.significance import POWER, Sample

MIN_SEEDS = 5
LEVEL = 0.90


@dataclass(frozen=True)
class Verdict:
    """The result of comparing one cell; the p values are missing if no test is made."""

    verdict: str
    seeds_needed: int | None
    detail: str
    p_equivalence: float = math.nan
    p_difference: float = math.nan


def decide(ours: Sample, published: PrintedMean, margin: float, found: Sequence[str]) -> Verdict:
    """Return the verdict on one cell from our seeds [n], by the rules of `cells`; `found` are hard flags."""
    if found:
        return Verdict("not_comparable", None, f"not comparable: {', '.join(found)}")
    if len(ours) < MIN_SEEDS:
        return _too_few(ours, published, margin)
    between = difference(ours, published)
    if not _usable(margin):
        detail = "no margin: the task has no random and human score"
        return Verdict("inconclusive", None, detail, math.nan, between.p_of_difference())
    interval = between.interval(LEVEL)
    p_values = (between.p_of_equivalence(margin), between.p_of_difference())
    name = f"the {100 * LEVEL:g} % interval of the difference" if published.error else f"our {100 * LEVEL:g} % interval"
    if -margin <= interval.low and interval.high <= margin:
        return Verdict("equivalent", None, f"{name} lies within the margin", *p_values)
    if interval.high < -margin or interval.low > margin:
        word = "below" if interval.high < -margin else "above"
        return Verdict(word, None, f"{name} lies {word} the margin", *p_values)
    if interval.high - interval.low > 2 * margin:
        needed = seeds_needed(ours, margin, published.error)
        detail = f"{name} is wider than the margins; {_would_show(needed, 'if there were no difference')}"
        return Verdict("inconclusive", needed, detail, *p_values)
    low, high = significance.prediction_interval(ours, 0.95, published.seeds or 1)
    if low <= published.value <= high:
        detail = "inside our 95 % prediction interval, which is no evidence of equality"
        return Verdict("consistent", None, detail, *p_values)
    needed = _seeds_at_edge(ours, published, margin)
    detail = f"{name} reaches over the edge of the margin; {_would_show(needed, 'if our mean were exact')}"
    return Verdict("inconclusive", needed, detail, *p_values)


def _too_few(ours: Sample, published: PrintedMean, margin: float) -> Verdict:
    """Return the verdict on fewer than `MIN_SEEDS` seeds."""
    detail = f"{len(ours)} seed{'s' if len(ours) > 1 else ''}; a verdict needs at least {MIN_SEEDS}"
    if len(ours) == 1 or not _usable(margin):
        return Verdict("inconclusive", MIN_SEEDS, detail)
    needed = seeds_needed(ours, margin, published.error)
    if needed is None:
        detail += f"; {_would_show(needed, 'if there were no difference')}"
    return Verdict("inconclusive", needed and max(MIN_SEEDS, needed), detail)


def seeds_needed(ours: Sample, margin: float, published_error: float = 0.0) -> int | None:
    """Return the seeds that would show equality with power `POWER` if there is no difference.

    None: over 1000, or never, since the published number is too uncertain itself.
    """
    if not _usable(margin):
        return None
    deviation = float(ours.std(ddof=1))
    return _beside(significance.seeds_for_equivalence(deviation, margin), deviation, published_error)


def _beside(alone: int | None, deviation: float, published_error: float) -> int | None:
    """Return how many seeds have the standard error of a mean, published error included, that `alone` have without."""
    if alone is None or not published_error:
        return alone
    left = deviation**2 / alone - published_error**2
    needed = math.ceil(deviation**2 / left) if left > 0 else None
    return needed if needed is None or needed <= significance.MAX_SEEDS else None


def _usable(margin: float) -> bool:
    return math.isfinite(margin) and margin > 0


def _seeds_at_edge(ours: Sample, published: PrintedMean, margin: float) -> int | None:
    """Return how many seeds would show on which side of the margin's edge our mean lies, if our mean is exact."""
    deviation, bias = float(ours.std(ddof=1)), abs(float(ours.mean()) - published.value)
    if bias < margin:
        alone = significance.seeds_for_equivalence(deviation, margin, bias=bias)
    else:
        # One group against a known number, one-sided at 5 %, which matches the 90 % interval.
        alone = significance.seeds_for_difference(deviation, 0.0, bias - margin, alpha=1 - LEVEL)
    return _beside(alone, deviation, published.error)


def _would_show(needed: int | None, condition: str) -> str:
    """Return how many seeds would decide a cell; None: not even `MAX_SEEDS`, which may be none at all."""
    number = f"{significance.MAX_SEEDS} seeds would not" if needed is None else f"{needed} seeds would"
    return f"{number} decide it, {condition} (power {POWER:g})"
