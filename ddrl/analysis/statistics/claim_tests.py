"""The tests behind claims: an effect, its standard error and degrees of freedom, from one value per seed or setting.

difference   mean(a) - mean(b), averaged over tasks, with Welch's interval (Satterthwaite's degrees of freedom), which
             keeps its level with three seeds where a bootstrap does not. Also from a known number (b is None).
ratio        mean(a) / mean(b), the geometric mean over tasks. The interval is Welch's for the difference of the
             logarithms of the means, whose variance is (s / mean)^2 / n (delta method), raised again to a ratio. All
             means must be positive.
interaction  (mean(a) / mean(b)) / (mean(c) / mean(d)): a ratio over another, each the geometric mean over its tasks,
             tested as a ratio is.
shrinking    mean(b)^2 / (mean(a) mean(c)) of three groups, high to low: the factor from c to b over that from b to a,
             tested as a ratio is.
paired       mean of a - b over hyperparameter settings that both have been run with, with Student's interval. The
             settings, drawn once for all variants, are the unit here and not the seeds.
restricted   the time until a return is first reached, cut at a horizon that every run of the comparison has reached
             (the shortest run of the two variants on a task). A run that never gets there counts as the horizon. The
             mean of such times (the restricted mean survival time) is an ordinary mean, compared as a ratio and shown
             as the share saved, 1 - mean(a) / mean(b). If every run is censored nothing is compared.
             A claim about how many times as early one is (`factor`) needs longer times, since no ratio can exceed
             the horizon over the earlier time: its horizon is the shortest of the runs that never get there, and if
             all do there is none. It is shown as the ratio mean(b) / mean(a). A run that is cut draws the ratio
             towards 1, so it may show that the factor is surpassed, and never that it is missed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from ddrl.analysis.statistics.significance import Sample, hedges_g, t_quantile, t_tail

ALPHA = 0.05
MIN_SETTINGS = 5


@dataclass(frozen=True)
class Contrast:
    """An effect on the scale on which it is tested: a difference, or the logarithm of a ratio."""

    label: str
    effect: float
    error: float
    freedom: float
    hedges_g: float
    deviations: tuple[float, float]
    """Standard deviations of one unit (seed or setting) of either group, on the tested scale."""
    null: float = 0.0
    """The value of `effect` that is neither for nor against the claim."""
    form: Literal["difference", "ratio", "saved"] = "difference"
    """The shown form: the effect, the ratio whose logarithm it is, or the percentage saved, 100 (1 - 1 / ratio)."""
    cut: bool = False
    """True if values were cut at a horizon: the true effect may lie further from 0, on the same side."""

    def interval(self, alpha: float = ALPHA) -> tuple[float, float]:
        """Return the two-sided interval of level 1 - alpha, on the tested scale."""
        half = float(t_quantile(1 - alpha / 2, self.freedom)) * self.error if self.error > 0 else 0.0
        return self.effect - half, self.effect + half

    def shown(self) -> tuple[float, float, float]:
        """Return effect and 95 % interval in the shown form."""
        low, high = self.interval()
        return self._shown(self.effect), self._shown(low), self._shown(high)

    def lines(self, smallest: float) -> tuple[float, float]:
        """Return, in the shown form, what the interval of a contradicted effect lies below, of a supported one above.

        Between the two lies what is too small to count.
        """
        low, high = self.open()
        return self._shown(low - smallest), self._shown(high + smallest)

    def _shown(self, value: float) -> float:
        if self.form == "saved":
            return -100 * math.expm1(-value)
        return math.exp(value) if self.form == "ratio" else value

    def strength(self) -> float:
        """Return the effect over its standard error: the smaller, the nearer to contradicting a claim."""
        distance = self.effect - self.null
        return distance / self.error if self.error > 0 else math.copysign(math.inf, distance) if distance else 0.0

    def p(self) -> float:
        """Return the two-sided p of the null value; without any spread 1 or 0."""
        distance = self.beyond()
        return 2 * float(t_tail(distance / self.error, self.freedom)) if self.error > 0 else float(distance == 0)

    def p_supported(self, smallest: float) -> float:
        """Return the two-sided p of an effect that is just too small to count, against one that is larger."""
        return self._p_beyond(self.effect - (self.open()[1] + smallest))

    def p_contradicted(self, smallest: float) -> float:
        """Return the two-sided p of an opposite effect that is just too small to count, against a larger one."""
        return self._p_beyond(self.open()[0] - smallest - self.effect)

    def p_not_opposite(self, smallest: float) -> float:
        """Return the two-sided p of an opposite effect that just counts, against one less against the claim."""
        return self._p_beyond(self.effect - (self.open()[0] - smallest))

    def p_no_difference(self, smallest: float) -> float:
        """Return the two-sided p of an effect that just counts, for or against, against one too small to count.

        It is twice the larger p of two one-sided tests (Schuirmann 1987): at 5 % the 95 % interval lies within the
        smallest effect. What was cut may be larger, so its p is 1.
        """
        inside = smallest - abs(self.effect - self.null)
        return 1.0 if self.cut or smallest <= 0 else self._p_beyond(inside)

    def p_outside(self, smallest: float) -> float:
        """Return the two-sided p of an effect that is just too small to count, against a larger one of either sign."""
        return min(1.0, 2 * self._p_beyond(abs(self.effect - self.null) - smallest))

    def _p_beyond(self, distance: float) -> float:
        """Return the two-sided p of an effect that lies `distance` beyond a line; 1 if it lies on its other side."""
        if self.error > 0:
            return min(1.0, 2 * float(t_tail(distance / self.error, self.freedom)))
        return float(distance <= 0)

    def open(self) -> tuple[float, float]:
        """Return the range in which an effect is neither for nor against: the null value, if `cut` up to 0."""
        return (min(self.null, 0.0), max(self.null, 0.0)) if self.cut else (self.null, self.null)

    def beyond(self) -> float:
        """Return how far the effect lies outside of `open`."""
        low, high = self.open()
        return max(self.effect - high, low - self.effect, 0.0)


def difference(label: str, pairs: Sequence[tuple[Sample, Sample | None]], *, offset: float = 0.0) -> Contrast:
    """Return mean(a) - mean(b) - offset over the tasks' (a [n_a], b [n_b]); b None stands for a known zero."""
    effects = [float(a.mean()) - (0.0 if b is None else float(b.mean())) - offset for a, b in pairs]
    return _contrast(label, effects, [(a,) if b is None else (a, b) for a, b in pairs], "difference")


def ratio(label: str, pairs: Sequence[tuple[Sample, Sample]], threshold: float) -> Contrast:
    """Return log(mean(a) / mean(b)) over the tasks' ([n_a], [n_b]). Raise ValueError unless all means are positive."""
    _check_positive(pairs)
    effects = [math.log(float(a.mean()) / float(b.mean())) for a, b in pairs]
    return _contrast(label, effects, pairs, "ratio", null=math.log(threshold))


def interaction(
    label: str, first: Sequence[tuple[Sample, Sample]], second: Sequence[tuple[Sample, Sample]], threshold: float
) -> Contrast:
    """Return `ratio` of `first`, less that of `second`, which are other runs. Raise ValueError as `ratio`."""
    over, under = ratio(label, first, 1.0), ratio(label, second, 1.0)
    variance = over.error**2 + under.error**2
    # The degrees of freedom of each ratio already include the sum over its groups.
    parts = over.error**4 / over.freedom + under.error**4 / under.freedom
    (a, b), (c, d) = over.deviations, under.deviations
    return Contrast(
        label,
        over.effect - under.effect,
        math.sqrt(variance),
        variance**2 / parts if parts > 0 else math.inf,
        math.nan,
        (math.hypot(a, d), math.hypot(b, c)),
        null=math.log(threshold),
        form="ratio",
    )


def shrinking(label: str, groups: Sequence[tuple[Sample, Sample, Sample]]) -> Contrast:
    """Return 2 log mean(b) - log mean(a) - log mean(c) over the tasks' ([n_a], [n_b], [n_c]). Raise as `ratio`."""
    _check_positive(groups)
    effects = [2 * math.log(b.mean()) - math.log(a.mean()) - math.log(c.mean()) for a, b, c in groups]
    return _contrast(label, effects, groups, "ratio", signs=(-1, 2, -1))


def paired(label: str, a: Sample, b: Sample) -> Contrast:
    """Return mean(a - b) over settings [K] that both have; position i is the same setting in both."""
    gaps, count = a - b, len(a)
    deviation = math.sqrt(_variance(gaps))
    error = deviation / math.sqrt(count)
    return Contrast(label, float(gaps.mean()), error, count - 1, hedges_g(a, b), (deviation, 0.0))


def _variance(values: Sample) -> float:
    """Return the variance of one seed; exactly 0 for equal numbers, whose mean may be rounded. Missing for one."""
    if len(values) < 2:
        return math.nan
    return 0.0 if not np.ptp(values) else float(values.var(ddof=1))


def _check_positive(tasks: Sequence[Sequence[Sample]]) -> None:
    if any(group.mean() <= 0 for groups in tasks for group in groups):
        raise ValueError("a ratio needs positive means")


def _contrast(
    label: str,
    effects: Sequence[float],
    tasks: Sequence[Sequence[Sample]],
    form: Literal["difference", "ratio"],
    *,
    signs: Sequence[int] = (1, -1),
    null: float = 0.0,
) -> Contrast:
    """Return the mean of the tasks' effects, with Satterthwaite's degrees of freedom.

    `signs`: how often the mean (of a ratio: the logarithm of the mean) of each group of a task counts in its effect.
    """
    count = len(tasks)
    terms: list[tuple[float, int]] = []
    above = below = 0.0
    for groups in tasks:
        plus = minus = 0.0
        for group, sign in zip(groups, signs, strict=False):
            spread = sign**2 * _variance(group) / (float(group.mean()) ** 2 if form == "ratio" else 1.0)
            terms.append((spread / len(group) / count**2, len(group) - 1))
            plus, minus = (plus + spread, minus) if sign > 0 else (plus, minus + spread)
        above, below = above + plus, below + minus
    variance = sum(term for term, _ in terms)
    freedom = variance**2 / sum(term**2 / free for term, free in terms) if variance > 0 else math.inf
    sizes = [hedges_g(*groups) for groups in tasks if len(groups) == 2]
    hedges = float(np.mean(sizes)) if sizes else math.nan
    deviations = (math.sqrt(above) / count, math.sqrt(below) / count)
    return Contrast(label, float(np.mean(effects)), math.sqrt(variance), freedom, hedges, deviations, null, form)


def near_best(scores: pd.DataFrame, within: float) -> pd.DataFrame:
    """Return `scores` with value 1 if at most `within` below the best of all rows of its environment, else 0."""
    best = scores.groupby("environment")["value"].transform("max")
    return scores.assign(value=(scores["value"] >= best - within).astype("float64"))


def over_settings(scores: pd.DataFrame) -> pd.DataFrame:
    """Return a setting x variant table of `value`, averaged over seeds, then over environments; missing if not run.

    Its column means are the areas under the curves of sorted scores, where each of K settings is 1/K wide.
    """
    per_task = scores.groupby(["variant", "setting", "environment"])["value"].mean()
    grid = per_task.unstack("environment").mean(axis=1, skipna=False)
    return grid.unstack("variant")


def first_reached(returns: pd.DataFrame, threshold: float, clock: str) -> float:
    """Return `clock` (env_frames or seconds) at the first record of `value` >= `threshold`; inf if there is none."""
    ordered = returns.sort_values("env_frames")
    reached = ordered[clock][ordered["value"] >= threshold]
    return float(reached.iloc[0]) if len(reached) else math.inf
