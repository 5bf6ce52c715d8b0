"""Claims: what the paper says in words, as tests on our own runs.

A comparison is a difference of means, averaged over environments, with Welch's interval (Satterthwaite's degrees of
freedom), which keeps its level with three seeds where a bootstrap does not. A claim about several comparisons is
supported only if each of them is, and contradicted if one of them is at a level divided by their number.

    supported     the 95 % interval lies above the smallest effect that counts
    contradicted  it lies below minus that effect
    inconclusive  neither; also: fewer than 3 seeds a group, or unequal budgets
    not_run       there is no run of ours
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from ddrl.analysis.aggregate import Sample
from ddrl.analysis.experiments import Experiment
from ddrl.analysis.paper import Claim, Paper

MIN_SEEDS = 3
ALPHA = 0.05
EQUAL_BUDGET = 0.01
"""Groups whose env_frames differ by more than this part are not compared."""
COLUMNS = [
    "claim",
    "title",
    "text",
    "source",
    "kind",
    "experiment",
    "origin",
    "verdict",
    "effect",
    "effect_unit",
    "ci95_low",
    "ci95_high",
    "hedges_g",
    "seeds",
    "env_frames",
    "environments",
    "comparisons",
    "detail",
]


@dataclass(frozen=True)
class Contrast:
    """mean(a) - factor x mean(b) - offset, averaged over environments, with its standard error."""

    label: str
    effect: float
    error: float
    freedom: float
    hedges_g: float

    def interval(self, alpha: float = ALPHA) -> tuple[float, float]:
        """Two-sided interval of level 1 - alpha."""
        half = float(stats.t.ppf(1 - alpha / 2, self.freedom)) * self.error if self.error > 0 else 0.0
        return self.effect - half, self.effect + half

    def verdict(self, smallest: float, comparisons: int) -> str:
        """supported, contradicted or inconclusive, as one of `comparisons`."""
        if self.interval()[0] > smallest:
            return "supported"
        return "contradicted" if self.interval(ALPHA / comparisons)[1] < -smallest else "inconclusive"


def contrast(
    label: str, pairs: Sequence[tuple[Sample, Sample | None]], *, factor: float = 1.0, offset: float = 0.0
) -> Contrast:
    """From (a [n_a], b [n_b]) of each environment; b None stands for a known zero. Every group has at least 2 seeds."""
    count = len(pairs)
    effects, terms, sizes = [], [], []
    for a, b in pairs:
        groups = [(a, 1.0)] if b is None else [(a, 1.0), (b, factor)]
        effects.append(float(a.mean()) - (0.0 if b is None else factor * float(b.mean())) - offset)
        terms += [(weight**2 * float(g.var(ddof=1)) / len(g) / count**2, len(g) - 1) for g, weight in groups]
        if b is not None:
            sizes.append(_hedges_g(a, b))
    variance = sum(term for term, _ in terms)
    freedom = variance**2 / sum(term**2 / free for term, free in terms if term > 0) if variance > 0 else math.inf
    hedges = float(np.mean(sizes)) if sizes else math.nan
    return Contrast(label, float(np.mean(effects)), math.sqrt(variance), freedom, hedges)


def _hedges_g(a: Sample, b: Sample) -> float:
    """Standardised difference with Hedges' correction; missing where both groups have no spread."""
    free = len(a) + len(b) - 2
    pooled = math.sqrt(((len(a) - 1) * a.var(ddof=1) + (len(b) - 1) * b.var(ddof=1)) / free)
    return float((a.mean() - b.mean()) / pooled * (1 - 3 / (4 * free - 1))) if pooled > 0 else math.nan


def claims(paper: Paper, experiments: Mapping[str, Experiment], scores: pd.DataFrame) -> pd.DataFrame:
    """Every claim on every origin: columns `COLUMNS`. Origin "run" has a row for each claim."""
    rows = []
    for claim in paper.claims:
        own = scores[scores["experiment"] == claim.experiment]
        for origin in ("run", "reference"):
            part = own[own["origin"] == origin]
            if part.empty and origin == "reference":
                continue
            result = evaluate(claim, experiments.get(claim.experiment), part)
            rows.append(_head(claim) | {"origin": origin} | result)
    return pd.DataFrame(rows, columns=COLUMNS).astype(
        {"seeds": "Int64", "env_frames": "Int64", "environments": "Int64"}
    )


def _head(claim: Claim) -> dict[str, Any]:
    return {
        "claim": claim.name,
        "title": claim.title,
        "text": claim.text,
        "source": claim.source,
        "kind": claim.kind,
        "experiment": claim.experiment,
        "effect_unit": claim.effect_unit,
    }


def evaluate(claim: Claim, experiment: Experiment | None, scores: pd.DataFrame) -> dict[str, Any]:
    """Verdict, effect and what it rests on, from the scores of one origin and the claim's experiment."""
    if experiment is None:
        return {"verdict": "not_run", "detail": f"planned as experiment '{claim.experiment}'"}
    variants = _variants(claim)
    environments = _environments(claim, variants, scores)
    if not environments:
        return {"verdict": "not_run", "detail": f"no environment has been run with {_words(variants)}"}
    used = scores[scores["variant"].isin(variants) & scores["environment"].isin(environments)]
    seeds = int(used.groupby(["environment", "variant"])["seed"].nunique().min())
    ground = {"seeds": seeds, "env_frames": int(used["env_frames"].min()), "environments": len(environments)}
    reason = _obstacle(claim, used, seeds)
    if reason:
        return ground | {"verdict": "inconclusive", "detail": reason}
    contrasts = _contrasts(claim, experiment, used, environments)
    verdicts = [item.verdict(claim.smallest_effect, len(contrasts)) for item in contrasts]
    verdict = (
        "supported"
        if set(verdicts) == {"supported"}
        else "contradicted"
        if "contradicted" in verdicts
        else "inconclusive"
    )
    # The contrast that decides: the one farthest from supporting the claim.
    decisive = min(contrasts, key=lambda item: item.interval()[0])
    low, high = decisive.interval()
    return ground | {
        "verdict": verdict,
        "effect": decisive.effect,
        "ci95_low": low,
        "ci95_high": high,
        "hedges_g": decisive.hedges_g,
        "comparisons": "; ".join(_spelled(item) for item in contrasts),
        "detail": _detail(claim, experiment, decisive, verdict, environments),
    }


def _variants(claim: Claim) -> list[str]:
    return [*([claim.better] if claim.better else []), *claim.worse, *claim.variants]


def _environments(claim: Claim, variants: Sequence[str], scores: pd.DataFrame) -> list[str]:
    """Those named by the claim, or all, that every variant has been run on."""
    per_variant = [set(scores["environment"][scores["variant"] == variant]) for variant in variants]
    common = set.intersection(*per_variant) if per_variant else set()
    return sorted(name for name in common if not claim.environments or name in claim.environments)


def _obstacle(claim: Claim, used: pd.DataFrame, seeds: int) -> str:
    """Why no test is made; empty where one is."""
    if seeds < MIN_SEEDS:
        return f"{seeds} seed{'s' if seeds > 1 else ''} a group; a test needs at least {MIN_SEEDS}"
    if used[claim.metric].isna().any():
        return "a task has no random and human score"
    budgets = used.groupby("environment")["env_frames"].agg(["min", "max"])
    uneven = budgets[budgets["max"] > (1 + EQUAL_BUDGET) * budgets["min"]]
    if len(uneven):
        low, high = uneven.iloc[0]
        return f"budgets differ on {uneven.index[0]}: {low:,.0f} against {high:,.0f} frames"
    return ""


def _contrasts(claim: Claim, experiment: Experiment, used: pd.DataFrame, environments: Sequence[str]) -> list[Contrast]:
    def values(variant: str, environment: str) -> Sample:
        chosen = (used["variant"] == variant) & (used["environment"] == environment)
        return used[chosen].sort_values("seed")[claim.metric].to_numpy(dtype=np.float64)

    def compare(a: str, b: str | None, **options: float) -> Contrast:
        pairs = [(values(a, name), None if b is None else values(b, name)) for name in environments]
        label = experiment.labels[a] + (f" against {experiment.labels[b]}" if b else "")
        return contrast(label, pairs, **options)

    threshold = claim.threshold if claim.threshold is not None else math.nan
    if claim.kind == "ordering":
        return [compare(str(claim.better), worse) for worse in claim.worse]
    if claim.kind == "ratio":
        return [compare(str(claim.better), worse, factor=threshold) for worse in claim.worse]
    if claim.kind == "at_least":
        return [compare(variant, None, offset=threshold) for variant in claim.variants]
    steps = list(zip(claim.variants, claim.variants[1:], strict=False))
    return [compare(a, b) for a, b in steps]


def _spelled(item: Contrast) -> str:
    low, high = item.interval()
    return f"{item.label}: {item.effect:.3g} [{low:.3g}, {high:.3g}]"


def _detail(claim: Claim, experiment: Experiment, decisive: Contrast, verdict: str, environments: Sequence[str]) -> str:
    """One sentence on what decided."""
    low, high = decisive.interval()
    small = claim.smallest_effect
    where = _words([name.split("/")[-1] for name in environments])
    if verdict == "supported":
        said = "the interval lies above every effect too small to count"
    elif verdict == "contradicted":
        said = "the opposite holds"
    elif -small <= low and high <= small:
        said = "there is no difference that counts"
    else:
        said = "the interval reaches from an effect that counts to none, or to the opposite"
    proxy = "; the tasks stand in for the paper's" if experiment.proxy else ""
    return f"{decisive.label}, on {where}: {said}{proxy}."


def _words(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
