"""Makes the comparisons of a claim: which variants, and the contrast between them over all tasks and on each alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pandas as pd

from ddrl.analysis.statistics import claim_tests
from ddrl.analysis.statistics.claim_tests import Contrast
from ddrl.analysis.statistics.significance import Sample
from ddrl.analysis.verdicts.preconditions import Obstacle, settings
from ddrl.papers.claim_kinds import RETURN_METRICS
from ddrl.papers.experiments import Experiment
from ddrl.papers.paper import Claim


@dataclass(frozen=True)
class Comparison:
    """The result of comparing two variants (at_least: one, diminishing: three, interaction: up to four)."""

    label: str
    contrast: Contrast | None
    """None: no task says anything."""
    by_task: Mapping[str, Contrast]
    """The contrast on each task that says something; for an interaction of tasks the ratio on each."""
    silent: tuple[str, ...]
    """Tasks on which no run reached the return while all of them were watched."""
    obstacles: tuple[Obstacle, ...] = ()
    """What keeps it from being tested. It is shown all the same."""

    @property
    def tested(self) -> bool:
        """True if it takes part in the decision."""
        return self.contrast is not None and not self.obstacles


def compared(claim: Claim) -> list[tuple[str, ...]]:
    """Return the variants of each comparison."""
    if claim.kind in ("no_worse", "alike"):
        return [(name, str(claim.than)) for name in claim.variants]
    if claim.kind == "up_to":
        return list(claim.configurations)
    if claim.kind == "monotone":
        return list(pairwise(claim.variants))
    if claim.kind == "diminishing":
        return list(zip(claim.variants, claim.variants[1:], claim.variants[2:], strict=False))
    if claim.kind == "at_least":
        return [(name,) for name in claim.variants]
    others = (claim.over.better, claim.over.worse) if claim.over else ()
    return [(str(claim.better), worse, *filter(None, others)) for worse in claim.worse]


def compare(claim: Claim, experiment: Experiment, names: tuple[str, ...], observed: pd.DataFrame) -> Comparison:
    """Compare `names` by `observed`: variant, environment, seed, value, and censored if the value is a time.

    Of settings, `tells` says of each row whether its setting is one that the test is made on.
    """
    tasks = sorted(set(observed["environment"]))
    silent: list[str] = []
    if claim.kind == "time_to_reach":
        never = observed.groupby("environment")["censored"].all()
        silent = [name for name in tasks if never[name]]
    telling = [name for name in tasks if name not in silent]
    label = _label(claim, experiment, names, telling)
    alone = replace(claim, kind="ratio", threshold=1.0) if claim.over and claim.over.environments else claim
    by_task = {name: _contrast(alone, label, names, observed[observed["environment"] == name]) for name in telling}
    whole = _contrast(claim, label, names, observed[observed["environment"].isin(telling)]) if telling else None
    return Comparison(label, whole, by_task, tuple(silent))


def _label(claim: Claim, experiment: Experiment, names: tuple[str, ...], tasks: Sequence[str]) -> str:
    labels = [_named(experiment, name) for name in names]
    if claim.kind == "diminishing":
        high, middle, low = labels
        return f"the step from {low} to {middle} over that from {middle} to {high}"
    if claim.over and claim.over.environments:
        sides = (claim.environments, claim.over.environments)
        above, below = (words([short(task) for task in tasks if task in side]) for side in sides)
        return f"{labels[0]} against {labels[1]} on {above}, over the same on {below}"
    if claim.over:
        return f"{labels[0]} against {labels[1]}, over {labels[2]} against {labels[3]}"
    return " against ".join(labels)


def _named(experiment: Experiment, name: str) -> str:
    """Return the label of a variant; for a sweep, what the labels of its settings begin with."""
    labels = experiment.labels
    settings = (label for variant, label in labels.items() if variant.startswith(f"{name}__"))
    return labels.get(name) or next(settings, name).partition(",")[0]


def _contrast(claim: Claim, label: str, names: tuple[str, ...], observed: pd.DataFrame) -> Contrast:
    tasks = sorted(set(observed["environment"]))

    def values(variant: str) -> list[Sample]:
        own = observed[observed["variant"] == variant].sort_values("seed")
        return [own["value"][own["environment"] == task].to_numpy(dtype=np.float64) for task in tasks]

    threshold = claim.threshold if claim.threshold is not None else float("nan")
    if claim.kind == "stability":
        table = settings(claim, observed, names[1])
        if "tells" in observed:
            table = table[table.index.isin(observed["setting"][observed["tells"]])]
        contrast = claim_tests.paired(label, *(table[name].to_numpy(dtype=np.float64) for name in names))
        return replace(contrast, null=-(claim.margin or 0.0))
    groups = [values(name) for name in names]
    if claim.kind == "at_least":
        return claim_tests.difference(label, [(own, None) for own in groups[0]], offset=threshold)
    if claim.kind == "diminishing":
        return claim_tests.shrinking(label, list(zip(*groups, strict=True)))
    if claim.kind == "interaction" and claim.over:
        above, below = list(zip(*groups[:2], strict=True)), list(zip(*groups[2:], strict=True))
        if claim.over.environments:
            below = [pair for task, pair in zip(tasks, above, strict=True) if task in claim.over.environments]
            above = [pair for task, pair in zip(tasks, above, strict=True) if task in claim.environments]
        return claim_tests.interaction(label, above, below, claim.threshold or 1.0)
    pairs = list(zip(*groups, strict=True))
    if claim.kind == "time_to_reach":
        times = claim_tests.ratio(label, [(b, a) for a, b in pairs], claim.factor)
        if claim.factor == 1:
            return replace(times, form="saved")
        return replace(times, cut=bool(observed["censored"].any()))
    if claim.kind == "no_worse":
        return claim_tests.ratio(label, pairs, 1 - (claim.margin or 0.0))
    if claim.kind == "alike":
        return claim_tests.ratio(label, pairs, 1.0)
    if claim.kind == "ratio" and claim.metric in RETURN_METRICS:
        return claim_tests.difference(label, [(a, threshold * b) for a, b in pairs])
    if claim.kind in ("ratio", "up_to"):
        return claim_tests.ratio(label, pairs, threshold)
    return claim_tests.difference(label, pairs)


def task_by_task(
    experiment: Experiment, comparisons: Sequence[tuple[str, ...]], values: pd.DataFrame
) -> list[Comparison]:
    """Return the plain difference of two variants (the mean of one) on each task alone, in its own unit.

    It is what can be shown of values that a claim's own test cannot take. `values`: variant, environment and value.
    """
    groups = {
        (str(task), str(name)): own["value"].to_numpy(dtype=np.float64)
        for (task, name), own in values.dropna(subset=["value"]).groupby(["environment", "variant"])
    }
    found = []
    for names in comparisons:
        label = " against ".join(_named(experiment, name) for name in names[:2])
        by_task = {}
        for task in sorted({place for place, _ in groups}):
            several = [groups.get((task, name)) for name in names[:2]]
            first, second = several[0], several[1] if len(several) > 1 else None
            if first is not None and all(own is not None for own in several):
                by_task[task] = claim_tests.difference(label, [(first, second)])
        if by_task:
            found.append(Comparison(label, next(iter(by_task.values())) if len(by_task) == 1 else None, by_task, ()))
    return found


def spelled(item: Comparison) -> str:
    """Return effect and interval of a comparison, and of each of its tasks if there are several."""
    whole = f"{item.label}: {_effect(item.contrast)}" if item.contrast else item.label
    if len(item.by_task) < 2:
        return f"{whole} (on {short(next(iter(item.by_task)))} alone)" if item.silent and item.by_task else whole
    return f"{whole} ({', '.join(f'{short(task)} {_effect(found)}' for task, found in item.by_task.items())})"


def _effect(contrast: Contrast) -> str:
    if math.isnan(contrast.error):
        return f"{_number(contrast.shown()[0])} (one seed)"
    effect, low, high = map(_number, contrast.shown())
    return f"{effect} [{low}, {high}]"


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def short(environment: str) -> str:
    """Return mujoco/Hopper-v5 as Hopper-v5."""
    return environment.split("/")[-1]


def words(names: Sequence[str]) -> str:
    """Return `a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
