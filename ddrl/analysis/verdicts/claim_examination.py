"""Examines one claim on the runs of one origin: its numbers, what stands in the way of a verdict, and the verdict.

The comparisons are made and the notes written whatever stands in the way. Only then is the verdict decided, so that an
obstacle hides neither what was measured nor what must be known of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from ddrl.analysis.runs.milestones import FEWEST_EPISODES
from ddrl.analysis.runs.run_data import RunData, env_label
from ddrl.analysis.verdicts.claim_contrasts import Comparison, compare, compared, short, task_by_task, words
from ddrl.analysis.verdicts.claim_decisions import Sizes, decide, of_one_seed, untested
from ddrl.analysis.verdicts.claim_setting import stand_ins
from ddrl.analysis.verdicts.claim_values import (
    REFERENCE_SCORE,
    RULES_OF_GAME,
    RUNS,
    above_random,
    effect_of_interest,
    observations,
    on_scale,
    returns_to_reach,
    scales,
    what_counts,
)
from ddrl.analysis.verdicts.learning_range import Ends, Range, ranges, unknown_note
from ddrl.analysis.verdicts.preconditions import (
    MIN_CONFIGURATIONS,
    MIN_SEEDS,
    Obstacle,
    notes,
    obstacles,
    settings,
    taken,
)
from ddrl.papers.claim_kinds import FINAL_METRICS, RETURN_METRICS, UNIT_METRICS, divides
from ddrl.papers.claim_verdicts import OBSTACLES
from ddrl.papers.experiments import Experiment, system_of
from ddrl.papers.paper import Claim, Prices

_SCALES = {
    REFERENCE_SCORE: "its human or reference score lies",
    RULES_OF_GAME: "the best return that its rules allow lies",
    RUNS: "its best variant ends",
}
"""Where a scale is from -> what lies above random play, in words."""
_FROM_RUNS = "The scale comes from the runs themselves"


@dataclass(frozen=True)
class Known:
    """What a paper's files say that its claims are examined with."""

    milestones: Mapping[str, float] = field(default_factory=dict)
    prices: Prices | None = None
    full_budget: float = 1.0
    ends: Ends = field(default_factory=Ends)


def evaluate(
    claim: Claim,
    experiment: Experiment | None,
    scores: pd.DataFrame,
    runs: Sequence[RunData] = (),
    known: Known | None = None,
    seeds: Sequence[Obstacle] = (),
) -> dict[str, Any]:
    """Return verdict, effect and evidence of a claim, from the scores and runs of one origin and its experiment.

    The verdict is that of the claim alone, before the correction for other claims. `seeds` keep its runs from deciding
    it (`ddrl.analysis.verdicts.planned_seeds.seed_obstacles`).
    """
    known = known or Known()
    if experiment is None:
        return _not_run(f"planned as experiment '{claim.experiment}'")
    scores = scores.assign(run=scores["variant"])
    if claim.kind == "stability":
        scores["variant"] = scores["variant"].map(system_of)
    variants = claim.named_variants
    environments = _environments(claim, variants, scores)
    if not environments:
        gone = [obstacle.reason for obstacle in seeds if obstacle.name == "missing"]
        detail = f"no task was run with {_together(variants)}"
        if gone:  # there are runs, and none that can be used
            detail = f"no task has runs that can be used with {_together(variants)}; {gone[0]}."
        return {"verdict": "inconclusive", "obstacle": "missing", "detail": detail} if gone else _not_run(detail)
    used = scores[scores["variant"].isin(variants) & scores["environment"].isin(environments)]
    raw, observed, task_scales = _values(claim, used, runs, known)
    fewest = _fewest_seeds(claim, observed if len(observed) else used)
    basis = {
        "seeds": fewest,
        "env_frames": int(used["env_frames"].min()),
        "environments": len(environments),
        "tasks": "; ".join(map(env_label, environments)),
        "effect_unit": _unit(claim, task_scales),
    }
    against = obstacles(claim, used, observed, fewest, runs, task_scales)
    against += seeds
    tellable = ranges(claim, compared(claim), used, raw, known.ends, task_scales)
    found, made = _compared(claim, experiment, _telling(observed, tellable), task_scales, against, fewest, tellable)
    found = found or _untested(claim, experiment, used, raw)
    against += _bound_obstacles(claim, found)
    against, partial = _of_ranges(found, made, tellable, against)
    own = taken(used, runs)
    note = (
        partial
        + unknown_note(claim, used)
        + _scale_note(claim, task_scales)
        + _reach_note(claim, used, known.milestones)
        + notes(claim, used, runs)
    )
    return basis | _with_verdict(claim, found, against, stand_ins(claim, experiment, own, known.full_budget), note)


def _not_run(detail: str) -> dict[str, Any]:
    return {"verdict": "not_run", "detail": detail}


def _values(
    claim: Claim, used: pd.DataFrame, runs: Sequence[RunData], known: Known
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame | None]:
    """Return the claim's values as recorded and as tested, each with the number of its comparison, and the scales."""
    parts = []
    for names in compared(claim):
        # The best setting counts among those of all variants, not only of the compared ones.
        part = used if claim.kind == "stability" else used[used["variant"].isin(names)]
        parts.append(observations(claim, part, runs, known.milestones, known.prices))
    raw = pd.concat([part.assign(comparison=index) for index, part in enumerate(parts)], ignore_index=True)
    task_scales = scales(claim, used, raw, known.ends.best)
    return raw, on_scale(above_random(claim, used, raw), task_scales), task_scales


def _fewest_seeds(claim: Claim, observed: pd.DataFrame) -> int:
    """Return the fewest seeds of a group; 0 if a variant has none."""
    keys = ["environment", "variant", *(["setting"] if "setting" in observed else [])]
    seeds = observed.groupby(keys)["seed"].nunique()
    whole = seeds.groupby("variant").size().reindex(claim.named_variants, fill_value=0).min() > 0
    return int(seeds.min()) if whole else 0


def _compared(
    claim: Claim,
    experiment: Experiment,
    observed: pd.DataFrame,
    task_scales: pd.DataFrame | None,
    against: Sequence[Obstacle],
    fewest: int,
    tellable: Sequence[Range],
) -> tuple[dict[str, Any], list[Comparison]]:
    """Return what the comparisons show, and them; nothing if values or seeds are missing that they are made of."""
    names = {obstacle.name for obstacle in against}
    few = "few_settings" in names and min(len(settings(claim, observed, worse)) for worse in claim.worse) < 2
    if few or "values" in names or (fewest < 1 and claim.kind != "stability"):
        return {}, []
    parts = [part for _, part in observed.groupby("comparison")]
    found = [
        replace(compare(claim, experiment, names, part), obstacles=own.obstacles)
        for names, part, own in zip(compared(claim), parts, tellable, strict=True)
    ]
    if fewest < 2 and claim.kind != "stability":
        return of_one_seed(found), found
    sizes = Sizes(what_counts(claim, task_scales), effect_of_interest(claim, task_scales))
    return decide(claim, experiment, found, sizes), found


def _untested(claim: Claim, experiment: Experiment, used: pd.DataFrame, raw: pd.DataFrame) -> dict[str, Any]:
    """Return what is shown of values that the claim's own test cannot take: scores without references in returns."""
    values, unit = raw, claim.effect_unit if claim.kind in ("ordering", "monotone") else "the unit of the values"
    if claim.metric in FINAL_METRICS and (raw.empty or raw["value"].isna().any()):
        values, unit = used.assign(value=used["final_return"]), "return"
    if "value" not in values or claim.kind == "stability":
        return {}
    columns = [name for name in ("environment", "variant", "seed", "value") if name in values]
    return untested(task_by_task(experiment, compared(claim), values[columns].drop_duplicates()), unit)


def _telling(observed: pd.DataFrame, tellable: Sequence[Range]) -> pd.DataFrame:
    """Return `observed` with `tells`, if only some settings tell something: whether a row's setting is one of them."""
    if all(own.telling is None for own in tellable):
        return observed
    pairs = zip(observed["comparison"], observed["setting"], strict=True)
    tells = [
        tellable[number].telling is None or setting in (tellable[number].telling or ()) for number, setting in pairs
    ]
    return observed.assign(tells=tells)


def _of_ranges(
    found: dict[str, Any], made: Sequence[Comparison], tellable: Sequence[Range], against: Sequence[Obstacle]
) -> tuple[list[Obstacle], str]:
    """Return the obstacles with those of comparisons that cannot be tested, and a note on what a test was made of.

    If one that can be tested contradicts the claim, the others stand in the way of nothing: the note names them.
    """
    labels = [item.label for item in made] or [""] * len(tellable)
    note = "".join(f" {label}: {own.note}" for label, own in zip(labels, tellable, strict=True) if own.note)
    blocked = [own.obstacles for own in tellable]
    if not any(blocked):
        return list(against), note
    alike = len(set(blocked)) == 1
    own_obstacles = [
        Obstacle(one.name, one.reason if alike or not label else f"{label}: {one.reason}")
        for label, several in zip(labels, blocked, strict=True)
        for one in several
    ]
    own_obstacles = list(dict.fromkeys(own_obstacles))
    if any(item.tested for item in made) and not against:
        found["in_family"] = True
        if found.get("verdict") == "contradicted":
            found["outlook"] = replace(found["outlook"], obstacles=tuple(own_obstacles))
            return [], f"{note} Not tested: {'; '.join(one.reason for one in own_obstacles)}."
    return [*against, *own_obstacles], note


def _bound_obstacles(claim: Claim, found: Mapping[str, Any]) -> list[Obstacle]:
    """Return that a bound over configurations was not reached in too few of them to speak against it."""
    measured = len(claim.configurations)
    if claim.kind != "up_to" or found.get("verdict") == "supported" or measured >= MIN_CONFIGURATIONS:
        return []
    return [
        Obstacle("settings", f"the best of {measured} configurations says nothing against a bound over all of them")
    ]


def _with_verdict(
    claim: Claim, found: Mapping[str, Any], against: Sequence[Obstacle], differs: Sequence[str], note: str
) -> dict[str, Any]:
    """Return what was found with the verdict that the obstacles leave, and its detail."""
    if not against:
        verdict, detail = found["verdict"], found["detail"]
        if verdict == "contradicted" and differs:
            verdict = "contradicted_here"
            detail += f" Not the paper's own setting: {words(list(differs))}."
        return {**found, "verdict": verdict, "detail": detail + note}
    testable = [obstacle for obstacle in against if obstacle.name not in OBSTACLES]
    final = [obstacle for obstacle in against if obstacle.name in OBSTACLES]
    reasons = "; ".join(obstacle.reason for obstacle in (*final, *testable))
    few = any(obstacle.name == "seeds" for obstacle in testable)
    shown = str(found.get("detail", ""))
    if final and (outlook := found.get("outlook")):  # no number of such seeds decides it
        shown = shown.replace(outlook.note(), f"{outlook.leans}.")
    measured = f" Measured: {shown}" if shown else ""
    return {
        **found,
        "verdict": "not_testable" if final else "inconclusive",
        "obstacle": ";".join(dict.fromkeys(obstacle.name for obstacle in (*final, *testable))),
        "p_decision": found.get("p_decision") if found.get("in_family") else None,
        "seeds_needed": MIN_SEEDS if few and not final else None,
        "detail": f"{reasons}.{measured}{note}",
    }


def _unit(claim: Claim, task_scales: pd.DataFrame | None) -> str:
    """Return the unit of the effect: as paper.yaml says, unless the test itself sets it."""
    if claim.kind == "time_to_reach" and claim.factor != 1:
        return f"times as {'few frames' if claim.metric == 'env_frames' else 'early'}"
    if claim.kind == "time_to_reach":
        return f"% of the other's {'frames' if claim.metric == 'env_frames' else 'time'} saved"
    unit = claim.effect_unit
    if claim.kind == "ratio" and claim.metric in RETURN_METRICS:
        unit = f"return above {claim.threshold:g} times the other's"
    elif claim.metric in RETURN_METRICS and divides(claim.kind, claim.metric):
        unit = f"{unit}, of returns above random play"
    return f"{unit}, in parts of each task's scale" if task_scales is not None and len(task_scales) > 1 else unit


def _scale_note(claim: Claim, task_scales: pd.DataFrame | None) -> str:
    """Return the size of the scale of each task, if effects or what counts are parts of them, and if runs set it."""
    if task_scales is None:
        return ""
    if claim.metric in UNIT_METRICS:
        largest = _on_tasks(dict(task_scales["size"].dropna()))
        return f" A task's scale is the largest mean of a variant: {largest}. {_FROM_RUNS}." if largest else ""
    said = ""
    for source, what in _SCALES.items():
        sizes = task_scales["size"][task_scales["taken_from"] == source].dropna()
        if len(sizes):
            subject = "Else it" if said else "A task's scale"
            own = f" {_FROM_RUNS}{' there' if said else ''}." if source == RUNS else ""
            said += f" {subject} is how far {what} above random play: {_on_tasks(dict(sizes))}.{own}"
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


def _environments(claim: Claim, variants: Sequence[str], scores: pd.DataFrame) -> list[str]:
    """Return the claim's environments that every variant has run on; of an interaction, [] if a side is empty."""
    per_variant = [set(scores["environment"][scores["variant"] == variant]) for variant in variants]
    common = set.intersection(*per_variant) if per_variant else set()
    named = claim.named_environments
    others = set(claim.over.environments) if claim.over else set()
    if others and not (common & others and common & set(claim.environments)):
        return []
    return sorted(name for name in common if not named or name in named)


def _together(variants: Sequence[str]) -> str:
    return f"{['', '', 'both ', 'all of '][min(3, len(variants))]}{words(variants)}"
