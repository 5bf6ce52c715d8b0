"""Claims: what the paper says in words, as tests on our own runs (see `ddrl.analysis.claim_tests` for the statistics).

A claim about several comparisons is supported only if each of them is, and contradicted if one of them is at a level
divided by their number.

    supported     the 95 % interval lies above the smallest effect that counts (of a ratio: above the threshold)
    contradicted  it lies below minus that effect (below the threshold)
    inconclusive  neither; also: too few seeds or settings, unequal budgets, or times measured on different hardware.
                  `seeds_needed`: how many would decide
    not_run       there is no run of ours

    ordering       `better` ends above each of `worse`
    monotone       each of `variants` ends above the next
    at_least       each of `variants` ends above a threshold; the effect is the distance from it
    ratio          `better` is more than `threshold` times each of `worse`; the effect is the ratio
    no_worse       each of `variants` has at least the part 1 - `margin` of what `than` has; the effect is the ratio
    diminishing    the steps between `variants` (highest first), as factors, shrink; the effect is what each step's
                   factor is of that of the step above it, for each three in a row
    stability      `better` does better than each of `worse` over the hyperparameter settings that both have been run
                   with: area (under the curve of sorted scores, which is the mean over settings) or near_best (the part
                   of the settings within reach of the best score seen on the task)
    time_to_reach  `better` reaches a training return earlier than each of `worse`; the effect is the time it saves

A setting is not named anywhere: it is the values that the keys `settings` of the claim have in a run's configuration.
The settings of one variant stand in experiments.yaml as variants named <variant>__<setting>.
`p` is two-sided, of no effect at all (ordering, monotone, diminishing, stability, time_to_reach) or of the threshold
itself (at_least, ratio, no_worse).

Metric `return_at_equal_time` is the training return at the moment, in seconds of training, when the fastest run of the
task ended. How times are kept fair: `ddrl.analysis.claim_grounds`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from ddrl.analysis import claim_tests
from ddrl.analysis.claim_grounds import MIN_SEEDS, notes, obstacle, settings
from ddrl.analysis.claim_tests import MIN_SETTINGS, POWER, Contrast
from ddrl.analysis.claim_values import observations
from ddrl.analysis.curves import RunData
from ddrl.analysis.experiments import Experiment
from ddrl.analysis.inference import Sample
from ddrl.analysis.paper import Claim, Paper

_THRESHOLDS = {
    "ratio": "the threshold",
    "no_worse": "what may be lost",
    "diminishing": "steps that do not shrink",
}
"""What a supported claim of such a kind lies above."""
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
    "p",
    "seeds",
    "env_frames",
    "environments",
    "comparisons",
    "seeds_needed",
    "detail",
    "published",
]


def claims(
    paper: Paper, experiments: Mapping[str, Experiment], scores: pd.DataFrame, runs: Sequence[RunData]
) -> pd.DataFrame:
    """Every claim on every origin: columns `COLUMNS`. Origin "run" has a row for each claim."""
    rows = []
    for claim in paper.claims:
        for origin in ("run", "reference"):
            part = scores[(scores["experiment"] == claim.experiment) & (scores["origin"] == origin)]
            if part.empty and origin == "reference":
                continue
            own = [run for run in runs if run.experiment == claim.experiment and run.origin == origin]
            result = evaluate(claim, experiments.get(claim.experiment), part, own, paper.milestones)
            rows.append(_head(claim) | {"origin": origin} | result)
    table = pd.DataFrame(rows, columns=COLUMNS)
    counts = dict.fromkeys(("seeds", "env_frames", "environments", "seeds_needed"), "Int64")
    floats = dict.fromkeys(("effect", "ci95_low", "ci95_high", "hedges_g", "p"), "float64")
    return table.astype({**counts, **floats})


def _head(claim: Claim) -> dict[str, Any]:
    return {
        "claim": claim.name,
        "title": claim.title,
        "text": claim.text,
        "source": claim.source,
        "kind": claim.kind,
        "experiment": claim.experiment,
        "effect_unit": claim.effect_unit,
        "published": ";".join(claim.published),
    }


def evaluate(
    claim: Claim,
    experiment: Experiment | None,
    scores: pd.DataFrame,
    runs: Sequence[RunData] = (),
    milestones: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Verdict, effect and what it rests on, from the scores and runs of one origin and the claim's experiment."""
    if experiment is None:
        return {"verdict": "not_run", "detail": f"planned as experiment '{claim.experiment}'"}
    scores = scores.assign(run=scores["variant"])
    if claim.kind == "stability":
        scores["variant"] = [name.partition("__")[0] for name in scores["variant"]]
    variants = _variants(claim)
    environments = _environments(claim, variants, scores)
    if not environments:
        return {"verdict": "not_run", "detail": f"no environment has been run with {_words(variants)}"}
    used = scores[scores["variant"].isin(variants) & scores["environment"].isin(environments)]
    observed = observations(claim, used, runs, milestones or {})
    group = ["environment", "variant", *(["setting"] if claim.kind == "stability" else [])]
    seeds = observed.groupby(group)["seed"].nunique()
    whole = seeds.groupby("variant").size().reindex(variants, fill_value=0).min() > 0
    ground = {
        "seeds": int(seeds.min()) if whole else 0,
        "env_frames": int(used["env_frames"].min()),
        "environments": len(environments),
    }
    reason = obstacle(claim, used, observed, ground["seeds"], runs)
    if reason:
        few = claim.kind != "stability" and ground["seeds"] < MIN_SEEDS
        return ground | {"verdict": "inconclusive", "detail": reason, "seeds_needed": MIN_SEEDS if few else None}
    found = _judged(claim, experiment, _contrasts(claim, experiment, observed), environments)
    return ground | found | {"detail": found["detail"] + notes(claim, used, runs)}


def _judged(
    claim: Claim, experiment: Experiment, contrasts: Sequence[Contrast], environments: Sequence[str]
) -> dict[str, Any]:
    """The verdict on all contrasts, and the one that decides: the farthest from supporting the claim."""
    smallest, number = claim.smallest_effect, len(contrasts)
    verdicts = {item.verdict(smallest, number) for item in contrasts}
    verdict = (
        "supported" if verdicts == {"supported"} else "contradicted" if "contradicted" in verdicts else "inconclusive"
    )
    decisive = min(contrasts, key=lambda item: item.interval()[0])
    effect, low, high = decisive.shown()
    detail = _detail(claim, experiment, decisive, verdict, environments)
    needed = None
    if verdict == "inconclusive":
        needs = [item.units_needed(smallest, number) for item in contrasts if item.verdict(smallest, number) == verdict]
        fewest = MIN_SETTINGS if claim.kind == "stability" else MIN_SEEDS
        needed = None if None in needs else max(fewest, *(need for need in needs if need is not None))
        if not decisive.is_nothing(smallest):
            detail += f" {_would_decide(claim, needed)}"
    return {
        "verdict": verdict,
        "effect": effect,
        "ci95_low": low,
        "ci95_high": high,
        "hedges_g": decisive.hedges_g,
        "p": decisive.p(),
        "seeds_needed": needed,
        "comparisons": "; ".join(_spelled(item) for item in contrasts),
        "detail": detail,
    }


def _variants(claim: Claim) -> list[str]:
    return [*filter(None, (claim.better, claim.than)), *claim.worse, *claim.variants]


def _environments(claim: Claim, variants: Sequence[str], scores: pd.DataFrame) -> list[str]:
    """Those named by the claim, or all, that every variant has been run on."""
    per_variant = [set(scores["environment"][scores["variant"] == variant]) for variant in variants]
    common = set.intersection(*per_variant) if per_variant else set()
    return sorted(name for name in common if not claim.environments or name in claim.environments)


def _contrasts(claim: Claim, experiment: Experiment, observed: pd.DataFrame) -> list[Contrast]:
    def values(variant: str, environment: str) -> Sample:
        chosen = (observed["variant"] == variant) & (observed["environment"] == environment)
        return observed[chosen].sort_values("seed")["value"].to_numpy(dtype=np.float64)

    def pairs(a: str, b: str) -> list[tuple[Sample, Sample]]:
        return [(values(a, name), values(b, name)) for name in sorted(set(observed["environment"]))]

    def label(a: str, b: str) -> str:
        return f"{experiment.labels.get(a, a)} against {experiment.labels.get(b, b)}"

    better, threshold = str(claim.better), claim.threshold if claim.threshold is not None else math.nan
    if claim.kind == "ratio":
        return [claim_tests.ratio(label(better, worse), pairs(better, worse), threshold) for worse in claim.worse]
    if claim.kind == "no_worse":
        kept, than = 1 - (claim.margin or 0.0), str(claim.than)
        return [claim_tests.ratio(label(name, than), pairs(name, than), kept) for name in claim.variants]
    if claim.kind == "diminishing":
        return _steps(claim, experiment, values, sorted(set(observed["environment"])))
    if claim.kind == "stability":
        tables = {worse: settings(claim, observed, worse) for worse in claim.worse}
        return [
            claim_tests.paired(label(better, worse), *(table[name].to_numpy(dtype=np.float64) for name in table))
            for worse, table in tables.items()
        ]
    if claim.kind == "time_to_reach":  # the time saved: the other's minus the better one's
        return [claim_tests.difference(label(better, worse), pairs(worse, better)) for worse in claim.worse]
    if claim.kind == "at_least":
        names = sorted(set(observed["environment"]))
        return [
            claim_tests.difference(
                experiment.labels.get(variant, variant),
                [(values(variant, name), None) for name in names],
                offset=threshold,
            )
            for variant in claim.variants
        ]
    chosen = [(better, worse) for worse in claim.worse] if claim.kind == "ordering" else pairwise(claim.variants)
    return [claim_tests.difference(label(a, b), pairs(a, b)) for a, b in chosen]


def _steps(
    claim: Claim, experiment: Experiment, values: Callable[[str, str], Sample], environments: Sequence[str]
) -> list[Contrast]:
    """For each three variants in a row: the factor from the lowest to the middle one, over that to the highest."""
    found = []
    for high, middle, low in zip(claim.variants, claim.variants[1:], claim.variants[2:], strict=False):
        names = [experiment.labels.get(name, name) for name in (low, middle, high)]
        groups = [(values(high, name), values(middle, name), values(low, name)) for name in environments]
        label = f"the step from {names[0]} to {names[1]} over that from {names[1]} to {names[2]}"
        found.append(claim_tests.shrinking(label, groups))
    return found


def _spelled(item: Contrast) -> str:
    effect, low, high = (f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}" for value in item.shown())
    return f"{item.label}: {effect} [{low}, {high}]"


def _would_decide(claim: Claim, needed: int | None) -> str:
    """What it would take, where the tests left a claim open."""
    unit = "settings" if claim.kind == "stability" else "seeds a group"
    if needed is None:
        return f"No number of {unit} up to 1000 would decide it, were the observed effects the true ones."
    return f"About {needed} {unit} would decide it, were the observed effects the true ones (power {POWER:g})."


def _detail(claim: Claim, experiment: Experiment, decisive: Contrast, verdict: str, environments: Sequence[str]) -> str:
    """One sentence on what decided."""
    where = _words([name.split("/")[-1] for name in environments])
    if verdict == "supported":
        said = "the interval lies above " + (_THRESHOLDS.get(claim.kind, "every effect too small to count"))
    elif verdict == "contradicted":
        said = "the opposite holds"
    elif decisive.is_nothing(claim.smallest_effect):
        said = "there is no difference that counts"
    else:
        said = "the interval reaches from an effect that counts to none, or to the opposite"
    proxy = "; the tasks stand in for the paper's" if experiment.proxy else ""
    return f"{decisive.label}, on {where}: {said}{proxy}."


def _words(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
