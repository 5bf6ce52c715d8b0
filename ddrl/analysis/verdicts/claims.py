"""Decides claims: the paper's statements as tests on our own runs (statistics: `ddrl.analysis.statistics.claim_tests`).

A claim about several comparisons is supported only if each of them is, and contradicted if one of them is at a level
divided by their number.

    supported     the 95 % interval lies above the smallest effect that counts (of a ratio: above the threshold)
    contradicted  it lies below minus that effect (below the threshold)
    inconclusive  neither; also: too few seeds or settings, unequal budgets, or times measured on different hardware.
                  `seeds_needed`: how many would decide
    not_run       there is no run of ours

    ordering       `better` ends above each of `worse`
    monotone       each of `variants` ends above the next
    at_least       each of `variants` ends above a threshold; the effect is the distance from it. What the paper says
                   without a number has a threshold of ours, and `threshold_from` says where it is from
    ratio          `better` is more than `threshold` times each of `worse`; the effect is the ratio (see below)
    no_worse       each of `variants` has at least 1 - `margin` times what `than` has; the effect is the ratio
    diminishing    the steps between `variants` (highest first), as factors, shrink; the effect is what each step's
                   factor is of that of the step above it, for each three in a row
    interaction    `better` over `worse` is more than `threshold` times (default 1) the ratio named by `over`: that of
                   two other variants on the same tasks, or of the same two on other tasks; the effect is the one over
                   the other
    stability      `better` does better than each of `worse` (with `margin`: loses no more than that against them) over
                   the hyperparameter settings that both have been run with: area (under the curve of sorted scores,
                   which is the mean over settings) or near_best (the fraction of the settings within reach of the
                   best score seen on the task)
    time_to_reach  `better` reaches a training return earlier than each of `worse`; the effect is the share of the
                   other's time that it saves, in percent. A task on which no run of either got there while all of
                   them were watched counts for nothing. The return is `threshold`, else the task's milestone in
                   paper.yaml, else `reference_part` of the way from random play to the task's human or reference
                   score. With `factor`: more than so many times as early; the effect is then that ratio, and runs that
                   never get there contradict only if `worse` is earlier. With metric `seconds_to_final_score` the
                   return is the mean capped training score that `worse` ends with, of agents for several tasks

The comparison that is shown is the one that decides: of those with the claim's verdict, the one whose effect is
smallest over its standard error. Column `comparisons` has all of them, over all tasks and on each.

A setting is the values that the keys `settings` of the claim have in a run's configuration. The settings of one variant
are variants named <variant>__<setting> in experiments.yaml. Column `flags` is env_version_gap if the runs' environments
are of other versions than paper.yaml states. `p` is two-sided, of no effect at all (ordering, monotone, diminishing,
stability, time_to_reach) or of the threshold itself (at_least, ratio, no_worse, interaction, time_to_reach with a
factor); if the effect is against the claim it is multiplied by the number of comparisons, as for the verdict. `p_holm`
is that p after Holm's correction for all claims of the paper that were tested on the same origin.

Returns have a unit of their task's own. If a claim averages differences of them over several tasks, each task's are
divided by its scale first (`ddrl.analysis.verdicts.claim_values.scales`), so that a task on which nobody learns counts
as no difference; the smallest effect that counts is then a fraction of that scale. Ratios and shares are averaged
geometrically and need none. A ratio of returns is one of what was learned above random play, which may be nothing: it
is tested as the difference mean(a) - `threshold` mean(b) (the same question as Fieller's), which is also the effect.

For metrics of `ddrl.analysis.runs.efficiency` of which less is better, `better` names the system that takes more. How
times are kept fair: `ddrl.analysis.verdicts.preconditions`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from ddrl.analysis.runs.flags import version_flag
from ddrl.analysis.runs.milestones import FEWEST_EPISODES
from ddrl.analysis.runs.run_data import RunData, env_label
from ddrl.analysis.statistics.claim_tests import MIN_SETTINGS, Contrast
from ddrl.analysis.statistics.significance import POWER, holm
from ddrl.analysis.verdicts.claim_contrasts import Comparison, compare, compared, short, spelled, words
from ddrl.analysis.verdicts.claim_values import observations, on_scale, returns_to_reach, scales
from ddrl.analysis.verdicts.preconditions import MIN_SEEDS, notes, obstacle
from ddrl.papers.claim_kinds import RETURN_METRICS
from ddrl.papers.experiments import Experiment, system_of
from ddrl.papers.paper import Claim, Paper, Prices

_THRESHOLDS = {"ratio": "the threshold", "no_worse": "what may be lost", "diminishing": "steps that do not shrink"}
"""Kind of claim -> what the interval of a supported claim lies above, in words."""
_OF_CLAIM = ("title", "text", "source", "kind", "experiment", "effect_unit")
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
    "contradicted_below",
    "supported_above",
    "hedges_g",
    "p",
    "p_holm",
    "seeds",
    "env_frames",
    "environments",
    "tasks",
    "decided_by",
    "comparisons",
    "seeds_needed",
    "detail",
    "published",
    "flags",
]


def claims(
    paper: Paper, experiments: Mapping[str, Experiment], scores: pd.DataFrame, runs: Sequence[RunData]
) -> pd.DataFrame:
    """Decide every claim on every origin: columns `COLUMNS`. Origin "run" has a row for each claim."""
    rows = []
    for claim in paper.claims:
        for origin in ("run", "reference"):
            part = scores[(scores["experiment"] == claim.experiment) & (scores["origin"] == origin)]
            if part.empty and origin == "reference":
                continue
            own = [run for run in runs if run.experiment == claim.experiment and run.origin == origin]
            experiment = experiments.get(claim.experiment)
            result = evaluate(claim, experiment, part, own, paper.milestones, paper.prices)
            flags = "" if result["verdict"] == "not_run" else _version_flag(claim, own, paper)
            published = ";".join(claim.published)
            head = {"claim": claim.name, "published": published, "origin": origin, "flags": flags}
            rows.append({name: getattr(claim, name) for name in _OF_CLAIM} | head | result)
    counts = dict.fromkeys(("seeds", "env_frames", "environments", "seeds_needed"), "Int64")
    lines = ("contradicted_below", "supported_above")
    floats = dict.fromkeys(("effect", "ci95_low", "ci95_high", *lines, "hedges_g", "p", "p_holm"), "float64")
    table = pd.DataFrame(rows, columns=COLUMNS).astype(counts | floats)
    return table.assign(p_holm=holm(table, family=["origin"]))


def _version_flag(claim: Claim, runs: Sequence[RunData], paper: Paper) -> str:
    """Return env_version_gap if the environments of a claim's runs have other versions than the paper's."""
    variants = claim.named_variants
    own = [run for run in runs if run.variant in variants or system_of(run.variant) in variants]
    tasks = [run for run in own if not claim.named_environments or run.environment in claim.named_environments]
    return version_flag((str(run.manifest["protocol"]) for run in tasks), paper.protocols.values())


def evaluate(
    claim: Claim,
    experiment: Experiment | None,
    scores: pd.DataFrame,
    runs: Sequence[RunData] = (),
    milestones: Mapping[str, float] | None = None,
    prices: Prices | None = None,
) -> dict[str, Any]:
    """Return verdict, effect and evidence of a claim, from the scores and runs of one origin and its experiment."""
    if experiment is None:
        return {"verdict": "not_run", "detail": f"planned as experiment '{claim.experiment}'"}
    scores = scores.assign(run=scores["variant"])
    if claim.kind == "stability":
        scores["variant"] = scores["variant"].map(system_of)
    variants = claim.named_variants
    environments = _environments(claim, variants, scores)
    if not environments:
        return {"verdict": "not_run", "detail": f"no task was run with {_together(variants)}"}
    used = scores[scores["variant"].isin(variants) & scores["environment"].isin(environments)]
    groups, task_scales = compared(claim), scales(claim, used)
    parts = []
    for names in groups:
        # The best setting counts among those of all variants, not only of the compared ones.
        part = used if claim.kind == "stability" else used[used["variant"].isin(names)]
        parts.append(on_scale(claim, used, observations(claim, part, runs, milestones or {}, prices)))
    observed = pd.concat([part.assign(comparison=index) for index, part in enumerate(parts)], ignore_index=True)
    keys = ["environment", "variant", *(["setting"] if claim.kind == "stability" else [])]
    seeds = observed.groupby(keys)["seed"].nunique()
    whole = seeds.groupby("variant").size().reindex(variants, fill_value=0).min() > 0
    fewest = int(seeds.min()) if whole else 0
    basis = {
        "seeds": fewest,
        "env_frames": int(used["env_frames"].min()),
        "environments": len(environments),
        "tasks": "; ".join(map(env_label, environments)),
        "effect_unit": _unit(claim, task_scales is not None),
    }
    reason = obstacle(claim, used, observed, fewest, runs, task_scales)
    if reason:
        few = claim.kind != "stability" and fewest < MIN_SEEDS
        return basis | {"verdict": "inconclusive", "detail": reason, "seeds_needed": MIN_SEEDS if few else None}
    found = _verdict_on_all(
        claim, experiment, [compare(claim, experiment, *each) for each in zip(groups, parts, strict=True)]
    )
    note = _scale_note(task_scales) + _reach_note(claim, used, milestones or {}) + notes(claim, used, runs)
    return basis | found | {"detail": found["detail"] + note}


def _unit(claim: Claim, scaled: bool) -> str:
    """Return the unit of the effect: as paper.yaml says, unless the test itself sets it."""
    if claim.kind == "time_to_reach" and claim.factor != 1:
        return f"times as {'few frames' if claim.metric == 'env_frames' else 'early'}"
    if claim.kind == "time_to_reach":
        return f"% of the other's {'frames' if claim.metric == 'env_frames' else 'time'} saved"
    unit = claim.effect_unit
    if claim.kind == "ratio" and claim.metric in RETURN_METRICS:
        unit = f"return above {claim.threshold:g} times the other's"
    return f"{unit}, in parts of each task's scale" if scaled else unit


def _scale_note(task_scales: pd.DataFrame | None) -> str:
    """Return the size of the scale of each task, if returns of several tasks are averaged."""
    if task_scales is None:
        return ""
    said = ""
    for stated, what in ((True, "its human or reference score lies"), (False, "its best variant ends")):
        sizes = task_scales["size"][task_scales["stated"] == stated]
        if len(sizes):
            subject = "Else it" if said else "A task's scale"
            said += f" {subject} is how far {what} above random play: {_on_tasks(dict(sizes))}."
    return said


def _reach_note(claim: Claim, used: pd.DataFrame, milestones: Mapping[str, float]) -> str:
    """Return the returns to reach, if they follow from a rule."""
    if claim.reference_part is None or claim.threshold is not None:
        return ""
    wanted = returns_to_reach(claim, used, milestones)
    return f" Returns to reach, as the mean of {FEWEST_EPISODES} episodes or more: {_on_tasks(wanted)}."


def _on_tasks(values: Mapping[str, float]) -> str:
    """Return `0.9 on catch and 1,234 on pong`."""
    numbers = {task: f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" for task, value in values.items()}
    return words([f"{number} on {short(task)}" for task, number in numbers.items()])


def _verdict_on_all(claim: Claim, experiment: Experiment, found: Sequence[Comparison]) -> dict[str, Any]:
    """Return the verdict on all comparisons, and the one that decides: the nearest to contradicting the claim."""
    smallest, number = claim.smallest_effect, len(found)
    tested = [(item, item.contrast, item.contrast.verdict(smallest, number)) for item in found if item.contrast]
    silent = "".join(map(_silent_note, found))
    if not tested:
        return {"verdict": "inconclusive", "detail": silent.strip()}
    verdicts = {own for _, _, own in tested}
    verdict = "contradicted" if "contradicted" in verdicts else "inconclusive"
    if verdicts == {"supported"} and len(tested) == number:
        verdict = "supported"
    deciding = [each for each in tested if each[2] == verdict] or tested
    chosen, decisive, own = min(deciding, key=lambda each: each[1].strength())
    effect, low, high = decisive.shown()
    below, above = decisive.lines(smallest)
    against = decisive.effect < decisive.null
    detail, needed = _detail(claim, experiment, chosen, decisive, own) + silent, None
    if verdict == own == "inconclusive":
        needed = _needed(claim, [contrast for _, contrast, _ in deciding], number, complete=len(tested) == number)
        if not decisive.is_nothing(smallest):
            detail += f" {_would_decide(claim, needed)}"
    return {
        "verdict": verdict,
        "effect": effect,
        "ci95_low": low,
        "ci95_high": high,
        "contradicted_below": below,
        "supported_above": above,
        "hedges_g": decisive.hedges_g,
        "p": min(1.0, decisive.p() * (number if against else 1)),
        "seeds_needed": needed,
        "decided_by": chosen.label,
        "comparisons": "; ".join(spelled(item) for item, _, _ in tested),
        "detail": detail,
    }


def _needed(claim: Claim, undecided: Sequence[Contrast], number: int, *, complete: bool) -> int | None:
    """Return how many seeds (or settings) would decide a claim if the observed effects were the true ones.

    One comparison that contradicts decides it: if some lean against the claim, the fewest of theirs. Otherwise each
    must support it: the most, and None if one comparison says nothing (not `complete`).
    """
    fewest = MIN_SETTINGS if claim.kind == "stability" else MIN_SEEDS
    against = [item for item in undecided if item.effect < item.null]
    needs = [item.units_needed(claim.smallest_effect, number) for item in against or undecided]
    known = [need for need in needs if need is not None]
    if against:
        return max(fewest, min(known)) if known else None
    return max(fewest, *known) if complete and len(known) == len(needs) else None


def _environments(claim: Claim, variants: Sequence[str], scores: pd.DataFrame) -> list[str]:
    """Return the claim's environments that every variant has run on; of an interaction, [] if a side is empty."""
    per_variant = [set(scores["environment"][scores["variant"] == variant]) for variant in variants]
    common = set.intersection(*per_variant) if per_variant else set()
    named = claim.named_environments
    others = set(claim.over.environments) if claim.over else set()
    if others and not (common & others and common & set(claim.environments)):
        return []
    return sorted(name for name in common if not named or name in named)


def _silent_note(item: Comparison) -> str:
    """Return on which tasks a comparison of times has no result."""
    if not item.silent:
        return ""
    where = words([short(name) for name in item.silent])
    return f" {item.label}, on {where}: no run reached the return while both were watched, which says nothing."


def _would_decide(claim: Claim, needed: int | None) -> str:
    """Return how many seeds or settings would decide a claim that the tests left open."""
    unit = "settings" if claim.kind == "stability" else "seeds a group"
    if needed is None:
        return f"No number of {unit} up to 1000 would decide it, were the observed effects the true ones."
    return f"About {needed} {unit} would decide it, were the observed effects the true ones (power {POWER:g})."


def _detail(claim: Claim, experiment: Experiment, chosen: Comparison, decisive: Contrast, verdict: str) -> str:
    """Return one sentence on what decided."""
    where = words([short(name) for name in chosen.by_task])
    against = _multiple_in_words(claim)
    if verdict == "supported":
        kind = "no_worse" if claim.kind == "stability" and claim.margin else claim.kind
        said = f"the interval lies above {against or _THRESHOLDS.get(kind, 'every effect too small to count')}"
    elif verdict == "contradicted":
        said = f"the interval lies below {against}" if against else "the opposite holds"
    elif against and claim.kind != "ratio":
        low, high = decisive.interval()
        said = f"the interval holds {against}"
        if high < decisive.null or low > decisive.null:
            side = "below" if high < decisive.null else "above"
            said = f"the interval lies {side} {against}, but runs that never got there count as if they had at the end"
    elif decisive.is_nothing(claim.smallest_effect):
        said = "there is no difference that counts"
    else:
        said = "the interval reaches from an effect that counts to none, or to the opposite"
    proxy = "; the tasks stand in for the paper's" if experiment.proxy else ""
    return f"{decisive.label}, on {where}: {said}{proxy}."


def _together(variants: Sequence[str]) -> str:
    return f"{['', '', 'both ', 'all of '][min(3, len(variants))]}{words(variants)}"


def _multiple_in_words(claim: Claim) -> str:
    """Return what the effect is compared with, in words, if that is a multiple; else empty."""
    if claim.kind == "interaction":
        return "the other ratio" if claim.threshold in (None, 1) else f"{claim.threshold:g} times the other ratio"
    if claim.kind == "ratio" and claim.threshold != 1:
        return f"{claim.threshold:g} times the other's"
    return f"{claim.factor:g} times" if claim.factor != 1 else ""
