"""Claims: what the paper says in words, as tests on our own runs (see `ddrl.analysis.claim_tests` for the statistics).

A claim about several comparisons is supported only if each of them is, and contradicted if one of them is at a level
divided by their number.

    supported     the 95 % interval lies above the smallest effect that counts (of a ratio: above the threshold)
    contradicted  it lies below minus that effect (below the threshold)
    inconclusive  neither; also: too few seeds or settings, or unequal budgets. `seeds_needed`: how many would decide
    not_run       there is no run of ours

    ordering       `better` ends above each of `worse`
    monotone       each of `variants` ends above the next
    at_least       each of `variants` ends above a threshold; the effect is the distance from it
    ratio          `better` is more than `threshold` times each of `worse`; the effect is the ratio
    stability      `better` does better than each of `worse` over the hyperparameter settings that both have been run
                   with: area (under the curve of sorted scores, which is the mean over settings) or near_best (the part
                   of the settings within reach of the best score seen on the task)
    time_to_reach  `better` reaches a training return earlier than each of `worse`; the effect is the time it saves

A setting is not named anywhere: it is the values that the keys `settings` of the claim have in a run's configuration.
The settings of one variant stand in experiments.yaml as variants named <variant>__<setting>.
`p` is two-sided, of no effect at all (ordering, monotone, stability, time_to_reach) or of the threshold itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ddrl.analysis import claim_tests
from ddrl.analysis.claim_tests import MIN_SETTINGS, POWER, Contrast
from ddrl.analysis.curves import RunData
from ddrl.analysis.experiments import Experiment
from ddrl.analysis.flags import flatten
from ddrl.analysis.inference import EQUAL_BUDGET, Sample
from ddrl.analysis.own_values import suite_values
from ddrl.analysis.paper import SUITE_METRICS, Claim, Paper

MIN_SEEDS = 3
_TIMED = ("frames_per_second", "seconds")
SUITE = "suite"
"""Stands for the environment where one value is over all tasks."""
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
    observed = _observations(claim, used, runs, milestones or {})
    group = ["environment", "variant", *(["setting"] if claim.kind == "stability" else [])]
    seeds = observed.groupby(group)["seed"].nunique()
    whole = seeds.groupby("variant").size().reindex(variants, fill_value=0).min() > 0
    ground = {
        "seeds": int(seeds.min()) if whole else 0,
        "env_frames": int(used["env_frames"].min()),
        "environments": len(environments),
    }
    reason = _few_tasks(claim, environments) or _uneven(claim, used) or _obstacle(claim, observed, ground["seeds"])
    if reason:
        few = claim.kind != "stability" and ground["seeds"] < MIN_SEEDS
        return ground | {"verdict": "inconclusive", "detail": reason, "seeds_needed": MIN_SEEDS if few else None}
    found = _judged(claim, experiment, _contrasts(claim, experiment, observed), environments)
    return (
        ground | found | {"detail": found["detail"] + _machines(claim, used, runs) + _afterthought(claim, used, runs)}
    )


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
    return [*([claim.better] if claim.better else []), *claim.worse, *claim.variants]


def _environments(claim: Claim, variants: Sequence[str], scores: pd.DataFrame) -> list[str]:
    """Those named by the claim, or all, that every variant has been run on."""
    per_variant = [set(scores["environment"][scores["variant"] == variant]) for variant in variants]
    common = set.intersection(*per_variant) if per_variant else set()
    return sorted(name for name in common if not claim.environments or name in claim.environments)


def _observations(
    claim: Claim, used: pd.DataFrame, runs: Sequence[RunData], milestones: Mapping[str, float]
) -> pd.DataFrame:
    """variant, environment, seed and value (and setting, of stability): what the claim's metric is in each run."""
    metric = str(claim.metric)
    if metric in SUITE_METRICS:
        values = {name: suite_values(part, metric) for name, part in used.groupby("variant")}
        parts = [
            pd.DataFrame({"variant": name, "environment": SUITE, "seed": range(len(found)), "value": found})
            for name, found in values.items()
        ]
        return pd.concat(parts, ignore_index=True)
    if claim.kind == "stability":
        facts = [{"setting": setting_of(run.config, claim.settings)} for run in runs]
        return _joined(used, runs, facts).assign(value=lambda table: table[metric].astype("float64"))
    if claim.kind == "time_to_reach":
        table = _joined(used, runs, [_reached(claim, run, milestones) for run in runs])
        horizons = table.groupby("environment")["watched"].transform("min")
        return table.assign(value=np.minimum(table["value"], horizons))  # a missing value stays missing
    if metric == "frames_per_second":
        speeds = [run.manifest["env_frames"] / max(float(run.manifest["seconds"]), 1e-9) for run in runs]
        return _joined(used, runs, [{"value": speed} for speed in speeds])
    return used.assign(value=used[metric].astype("float64"))


def _joined(used: pd.DataFrame, runs: Sequence[RunData], facts: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """`used` with the columns of `facts`, one per run."""
    keys = ["run", "environment", "seed"]
    rows = [
        {"run": run.variant, "environment": run.environment, "seed": run.seed, **fact}
        for run, fact in zip(runs, facts, strict=True)
    ]
    return used.merge(pd.DataFrame(rows, columns=[*keys, *facts[0]]), on=keys, how="left", validate="1:1")


def _reached(claim: Claim, run: RunData, milestones: Mapping[str, float]) -> dict[str, float]:
    """When a run first reaches the return (inf: never; missing: none is stated), and how long it was watched."""
    threshold = milestones.get(run.environment, math.nan) if claim.threshold is None else claim.threshold
    returns = run.curves[run.curves["metric"] == "episode_return"]
    reached = claim_tests.first_reached(returns, threshold, str(claim.metric))
    return {
        "value": reached if math.isfinite(threshold) else math.nan,
        "watched": float(run.manifest[str(claim.metric)]),
    }


def setting_of(config: Mapping[str, Any], keys: Sequence[str]) -> str:
    """A run's setting, from the named keys of its config: `optimizer.learning_rate=0.0006, entropy_cost=0.01`."""
    flat = flatten(config)
    return ", ".join(f"{key.removeprefix('hyperparameters.')}={flat.get(key)}" for key in keys)


def _taken(used: pd.DataFrame, runs: Sequence[RunData]) -> list[RunData]:
    """The runs that the rows of `used` come from."""
    taken = set(zip(used["run"], used["environment"], used["seed"], strict=True))
    return [run for run in runs if (run.variant, run.environment, run.seed) in taken]


def _afterthought(claim: Claim, used: pd.DataFrame, runs: Sequence[RunData]) -> str:
    """A warning where the test was written when some of its runs had begun."""
    began = [str(run.manifest.get("started") or "") for run in _taken(used, runs)]
    late = any(time and time < claim.stated for time in began)
    return " This test was written after the runs." if late else ""


def _machines(claim: Claim, used: pd.DataFrame, runs: Sequence[RunData]) -> str:
    """A warning where speeds or times were measured on different hardware."""
    if claim.metric not in _TIMED:
        return ""
    hardware = [run.manifest.get("hardware") for run in _taken(used, runs)]
    return "" if all(one == hardware[0] for one in hardware) else " The runs were not all on the same hardware."


def _few_tasks(claim: Claim, environments: Sequence[str]) -> str:
    """Why the tasks are too few for a number that is an aggregate over all of them."""
    if claim.tasks is None or len(environments) >= claim.tasks:
        return ""
    return f"{len(environments)} of the {claim.tasks} tasks; the number is an aggregate over all of them"


def _uneven(claim: Claim, used: pd.DataFrame) -> str:
    """Why budgets forbid a comparison; what is measured per second or in seconds needs no equal number of frames."""
    if claim.metric in _TIMED:
        return ""
    budgets = used.groupby("environment")["env_frames"].agg(["min", "max"])
    uneven = budgets[budgets["max"] > (1 + EQUAL_BUDGET) * budgets["min"]]
    if uneven.empty:
        return ""
    low, high = uneven.iloc[0]
    return f"budgets differ on {uneven.index[0]}: {low:,.0f} against {high:,.0f} frames"


def _obstacle(claim: Claim, observed: pd.DataFrame, seeds: int) -> str:
    """Why no test is made; empty where one is."""
    if claim.kind == "stability":
        counts = [len(_settings(claim, observed, worse)) for worse in claim.worse]
        if min(counts) < MIN_SETTINGS:
            return f"{min(counts)} settings in common; a test needs at least {MIN_SETTINGS}"
    elif seeds < MIN_SEEDS:
        return f"{seeds} seed{'s' if seeds != 1 else ''} a group; a test needs at least {MIN_SEEDS}"
    if observed["value"].isna().any():
        return (
            "a task has no return to reach" if claim.kind == "time_to_reach" else "a task has no random and human score"
        )
    if claim.kind == "ratio" and (observed.groupby(["environment", "variant"])["value"].mean() <= 0).any():
        return "a ratio needs positive means"
    return ""


def _settings(claim: Claim, observed: pd.DataFrame, worse: str) -> pd.DataFrame:
    """Per setting that both have been run with on every task: value of `better` and of `worse`."""
    values = observed
    if claim.statistic == "near_best" and claim.within is not None:
        values = claim_tests.near_best(observed, claim.within)
    pair = [str(claim.better), worse]
    return claim_tests.over_settings(values[values["variant"].isin(pair)]).reindex(columns=pair).dropna()


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
    if claim.kind == "stability":
        tables = {worse: _settings(claim, observed, worse) for worse in claim.worse}
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
    steps = zip(claim.variants, claim.variants[1:], strict=False)
    chosen = [(better, worse) for worse in claim.worse] if claim.kind == "ordering" else list(steps)
    return [claim_tests.difference(label(a, b), pairs(a, b)) for a, b in chosen]


def _spelled(item: Contrast) -> str:
    effect, low, high = item.shown()
    return f"{item.label}: {effect:.3g} [{low:.3g}, {high:.3g}]"


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
        said = "the interval lies above " + (
            "the threshold" if claim.kind == "ratio" else "every effect too small to count"
        )
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
