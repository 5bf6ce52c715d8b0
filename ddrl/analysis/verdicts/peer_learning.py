"""Compares the returns of our code with those of peers: other libraries that carry out the same configuration.

A row is a pair of variants (`ddrl.papers.peer_pairs`) on a task, and one of two returns at equal frames: the mean
training return over all frames (`mean_return`, the area under the curve) and the return of the final episodes
(`final_return`). A ratio is one of what lies above random play: ours over theirs, with Welch's interval by the delta
method (`ddrl.analysis.statistics.claim_tests`), as in claims of kind alike.

equivalent    the 90 % interval of the ratio lies within the margin (two one-sided tests at 5 %)
above, below  the 90 % interval lies outside of it
inconclusive  the interval reaches over an edge; or fewer than three seeds a side, unequal frames, nobody learned, both
              at the best return there is, or no ratio: the rules of claims (`preconditions`, `learning_range`)
not_run       one side has no run

The margin is `evidence.margin.of_random_to_published` of paper.yaml: with 0.1 ratios from 0.9 to 1/0.9 are no
difference. Rows are descriptive. Claims on the same runs are corrected for their number, and ask for 95 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from ddrl.analysis.runs.run_data import RunData, env_label
from ddrl.analysis.statistics.claim_tests import Contrast
from ddrl.analysis.verdicts.cell_decision import LEVEL
from ddrl.analysis.verdicts.claim_contrasts import compare, compared
from ddrl.analysis.verdicts.claim_values import above_random, observations
from ddrl.analysis.verdicts.learning_range import Ends, ranges
from ddrl.analysis.verdicts.preconditions import obstacles, taken
from ddrl.papers.experiments import Experiment
from ddrl.papers.paper import Claim, Paper
from ddrl.papers.peer_pairs import Pair, pairs
from ddrl.papers.published import best_returns, random_errors

METRICS = ("mean_return", "final_return")
"""Column of table `scores` that a row compares."""
COLUMNS = [
    "pair",
    "experiment",
    "algorithm",
    "peer",
    "library",
    "environment",
    "env_label",
    "metric",
    "origin",
    "variant",
    "peer_variant",
    "seeds",
    "peer_seeds",
    "env_frames",
    "ours",
    "theirs",
    "random",
    "ratio",
    "ci90_low",
    "ci90_high",
    "margin",
    "p_equivalence",
    "p_difference",
    "verdict",
    "detail",
    "unmapped",
]


class Side(NamedTuple):
    """What is compared: a pair of an experiment on a task, by one return."""

    experiment: Experiment
    pair: Pair
    environment: str
    metric: str


def peer_learning(
    paper: Paper, experiments: Mapping[str, Experiment], scores: pd.DataFrame, runs: Sequence[RunData]
) -> pd.DataFrame:
    """Return a row per pair, task and return: columns `COLUMNS`. Origin "run" has one for each, also without runs."""
    ends = Ends(best_returns(paper), random_errors(paper))
    rows = []
    for side in _sides(experiments.values()):
        for origin in ("run", "reference"):
            used = _used(side, scores, origin)
            if used.empty and origin == "reference":
                continue
            own = taken(used, [run for run in runs if run.experiment == side.experiment.name and run.origin == origin])
            rows.append(_row(side, origin, used, own, paper.evidence.margin_of_range, ends))
    counts = dict.fromkeys(("seeds", "peer_seeds", "env_frames"), "Int64")
    numbers = ("ours", "theirs", "random", "ratio", "ci90_low", "ci90_high", "margin", "p_equivalence", "p_difference")
    return pd.DataFrame(rows, columns=COLUMNS).astype(counts | dict.fromkeys(numbers, "float64"))


def _sides(experiments: Iterable[Experiment]) -> list[Side]:
    return [
        Side(experiment, pair, task, metric)
        for experiment in experiments
        for pair in pairs(experiment)
        for task in experiment.every_environment
        if all(experiment.has(name, task) for name in pair) and experiment.has_scores(task)
        for metric in METRICS
    ]


def _used(side: Side, scores: pd.DataFrame, origin: str) -> pd.DataFrame:
    """Return the scores of both variants on the task."""
    chosen = scores[
        (scores["experiment"] == side.experiment.name)
        & (scores["origin"] == origin)
        & (scores["environment"] == side.environment)
        & scores["variant"].isin(side.pair)
    ]
    return chosen.assign(run=chosen["variant"])


def _row(
    side: Side, origin: str, used: pd.DataFrame, runs: Sequence[RunData], margin: float, ends: Ends
) -> dict[str, Any]:
    experiment, pair = side.experiment, side.pair
    by_variant = used.groupby("variant")[side.metric]
    means, seeds = by_variant.mean(), by_variant.size()
    theirs = [run for run in runs if run.variant == pair.theirs]
    row = {
        "pair": f"{experiment.name}:{pair.theirs}:{side.environment}:{side.metric}",
        "experiment": experiment.name,
        "algorithm": experiment.bases[pair.ours]["algorithm"],
        "peer": experiment.peers[pair.theirs],
        "library": _library(experiment.labels[pair.theirs], theirs),
        "environment": side.environment,
        "env_label": env_label(side.environment),
        "metric": side.metric,
        "origin": origin,
        "variant": pair.ours,
        "peer_variant": pair.theirs,
        "seeds": int(seeds.get(pair.ours, 0)),
        "peer_seeds": int(seeds.get(pair.theirs, 0)),
        "env_frames": int(used["env_frames"].min()) if len(used) else None,
        "ours": means.get(pair.ours, math.nan),
        "theirs": means.get(pair.theirs, math.nan),
        "random": float(used["random"].iloc[0]) if len(used) else math.nan,
        "margin": margin,
        "unmapped": _unmapped(theirs),
    }
    if not (row["seeds"] and row["peer_seeds"]):
        missing = [experiment.labels[name] for name in pair if not seeds.get(name, 0)]
        return row | {"verdict": "not_run", "detail": f"no run of {' and of '.join(missing)}"}
    return row | _compared(side, used, runs, margin, ends)


def _compared(side: Side, used: pd.DataFrame, runs: Sequence[RunData], margin: float, ends: Ends) -> dict[str, Any]:
    """Return ratio, interval, p values, verdict and detail of two variants that both have runs."""
    claim = _as_claim(side, margin)
    raw = observations(claim, used, runs, {}).assign(comparison=0)
    values = above_random(claim, used, raw)
    fewest = int(raw.groupby("variant")["seed"].nunique().min())
    against = obstacles(claim, used, values, fewest, runs, None)
    unusable = any(one.name == "values" for one in against)
    against += ranges(claim, compared(claim), used, raw, ends)[0].obstacles
    found: dict[str, Any] = {}
    contrast = None if unusable else compare(claim, side.experiment, compared(claim)[0], values).contrast
    if contrast is not None:
        found["ratio"] = contrast.shown()[0]
    if contrast is not None and fewest > 1:
        found |= _tested(contrast, margin)
    if against:
        return found | {"verdict": "inconclusive", "detail": "; ".join(one.reason for one in against)}
    return found


def _tested(contrast: Contrast, margin: float) -> dict[str, Any]:
    """Return interval, p values, and the verdict that they give."""
    low, high = contrast.interval(1 - LEVEL)
    edge = -math.log1p(-margin)
    if -edge <= low and high <= edge:
        verdict, where = "equivalent", "lies within the margin"
    elif low > edge or high < -edge:
        verdict = "above" if low > edge else "below"
        where = f"lies {verdict} the margin"
    else:
        verdict = "inconclusive"
        where = "is wider than the margins" if high - low > 2 * edge else "reaches over the edge of the margin"
    return {
        "ci90_low": math.exp(low),
        "ci90_high": math.exp(high),
        "p_equivalence": contrast.p_no_difference(edge) / 2,
        "p_difference": contrast.p(),
        "verdict": verdict,
        "detail": f"the {100 * LEVEL:g} % interval of the ratio {where}",
    }


def _as_claim(side: Side, margin: float) -> Claim:
    """Return the comparison as a claim that both are alike, for the functions that claims are examined with."""
    return Claim(
        name="",
        title="",
        text="",
        source="",
        kind="alike",
        experiment=side.experiment.name,
        metric=side.metric,
        variants=(side.pair.ours,),
        than=side.pair.theirs,
        environments=(side.environment,),
        margin=margin,
    )


def _library(label: str, runs: Sequence[RunData]) -> str:
    """Return the peer's label with the version of its library, of which there may be several."""
    found = {_version(run.manifest["peer"]["versions"]) for run in runs if run.manifest.get("peer")}
    return " ".join(filter(None, [label, ", ".join(sorted(found))]))


def _version(versions: Mapping[str, str]) -> str:
    """Return the library's own version: what a driver names first, besides Python."""
    return next((version for name, version in versions.items() if name != "python"), "")


def _unmapped(runs: Sequence[RunData]) -> str:
    """Return the settings that the peer could not be given, or takes otherwise."""
    entries = [entry for run in runs for entry in run.manifest.get("peer", {}).get("unmapped", ())]
    return "; ".join(dict.fromkeys(str(entry["key"]) for entry in entries))
