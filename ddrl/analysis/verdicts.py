"""Cells: a published number beside ours, what stands between them, and a verdict where nothing does.

equivalent      our 90 % interval lies within the margin around the published value (two one-sided tests at 5 %)
below, above    our 90 % interval lies outside the margin
inconclusive    fewer than 5 seeds, or the interval is wider than the margins: `seeds_needed` says how many
consistent      the published value is inside our 95 % prediction interval: not evidence of equality
not_comparable  a hard flag: the two numbers are not about the same thing
not_run         there is no run of ours
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from ddrl.analysis.aggregate import Sample, prediction_interval, t_interval
from ddrl.analysis.curves import RunData
from ddrl.analysis.experiments import Experiment
from ddrl.analysis.paper import CellRule, Paper
from ddrl.analysis.published import matching

MIN_SEEDS = 5
MAX_SEEDS = 1000
LEVEL = 0.90
HARD_FLAGS = ("proxy_env", "reduced_budget", "reduced_suite", "changed_hyperparameters", "published_best_of_k")
BEST_OF_K = ("mean_of_best_3_of_24", "best_per_architecture", "population_of_24")
BOOKKEEPING = ("algorithm", "env_frames", "evaluation", "recording", "checkpoint", "device")
"""Keys of a configuration that budget and measure a run; the rest is the paper's setting."""
SIZE_KEYS = (
    "topology.num_actors",
    "topology.envs_per_actor",
    "topology.env_threads",
    "topology.learner_threads",
    "topology.queue_capacity",
    "topology.runtime",
)
"""How a run is laid out on a machine: flagged as fewer_actors, where the paper says how many it had."""

COLUMNS = [
    "cell",
    "item",
    "system",
    "published_variant",
    "task",
    "metric",
    "unit",
    "published",
    "published_statistic",
    "published_seeds",
    "published_frames",
    "source",
    "origin",
    "experiment",
    "variant",
    "environment",
    "ours",
    "ci90_low",
    "ci90_high",
    "seeds",
    "env_frames",
    "margin",
    "difference",
    "flags",
    "verdict",
    "seeds_needed",
    "detail",
]


@dataclass(frozen=True)
class Verdict:
    """What the comparison of one cell says."""

    verdict: str
    seeds_needed: int | None
    detail: str


def decide(ours: Sample, published: float, margin: float, published_seeds: int | None, hard: Iterable[str]) -> Verdict:
    """The verdict on one cell from our seeds [n], by the rules of the module's docstring."""
    hard = list(hard)
    if hard:
        return Verdict("not_comparable", None, f"not comparable: {', '.join(hard)}")
    if len(ours) < MIN_SEEDS:
        return Verdict("inconclusive", MIN_SEEDS, f"{len(ours)} seeds; a verdict needs at least {MIN_SEEDS}")
    if not math.isfinite(margin):
        return Verdict("inconclusive", None, "no margin: the task has no random and human score")
    interval = t_interval(ours, LEVEL)
    band = (published - margin, published + margin)
    if band[0] <= interval.low and interval.high <= band[1]:
        return Verdict("equivalent", None, "our 90 % interval lies within the margin")
    if interval.high < band[0] or interval.low > band[1]:
        word = "below" if interval.high < band[0] else "above"
        return Verdict(word, None, f"our 90 % interval lies {word} the margin")
    if interval.high - interval.low > 2 * margin:
        needed = seeds_needed(float(ours.std(ddof=1)), margin)
        return Verdict("inconclusive", needed, "our 90 % interval is wider than the margins")
    low, high = prediction_interval(ours, 0.95, published_seeds or 1)
    if low <= published <= high:
        return Verdict("consistent", None, "inside our 95 % prediction interval, which is no evidence of equality")
    return Verdict("inconclusive", len(ours) + 1, "our 90 % interval reaches over the edge of the margin")


def seeds_needed(deviation: float, margin: float) -> int:
    """Fewest seeds whose 90 % interval, at this standard deviation, is no wider than the margins (at most 1000)."""
    for n in range(MIN_SEEDS, MAX_SEEDS):
        if stats.t.ppf((1 + LEVEL) / 2, n - 1) * deviation / math.sqrt(n) <= margin:
            return n
    return MAX_SEEDS


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mapping -> dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        flat |= flatten(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return flat


def changed_settings(config: Mapping[str, Any], stated: Mapping[str, Any]) -> list[str]:
    """Dotted keys of the paper's setting whose value in a run differs; budget, bookkeeping and size left out."""
    ours = flatten(config)
    return [
        key
        for key, value in flatten(stated).items()
        if key.split(".")[0] not in BOOKKEEPING and key not in SIZE_KEYS and not same(ours.get(key), value)
    ]


def same(ours: Any, paper: Any) -> bool:
    """Equality of two settings; numbers to twelve digits."""
    if (
        isinstance(ours, bool)
        or isinstance(paper, bool)
        or not (isinstance(ours, int | float) and isinstance(paper, int | float))
    ):
        return bool(ours == paper)
    return math.isclose(ours, paper, rel_tol=1e-12)


def flags(
    rule: CellRule, row: Mapping[Any, Any], runs: list[RunData], experiment: Experiment | None, full_budget: float
) -> list[str]:
    """Everything that stands between a published row and `runs`, decided from their configurations."""
    found = []
    if experiment is not None and experiment.proxy is not None:
        found.append("proxy_env")
    if rule.env_version_gap and runs:
        found.append("env_version_gap")
    if runs and experiment is not None:
        found += _run_flags(rule, row, runs, experiment, full_budget)
    if row["statistic"] in BEST_OF_K:
        found.append("published_best_of_k")
    if pd.isna(row["seeds"]):
        found.append("published_n_unknown")
    if row["digitised"]:
        found.append("digitised")
    return found


def _run_flags(
    rule: CellRule, row: Mapping[Any, Any], runs: list[RunData], experiment: Experiment, full_budget: float
) -> list[str]:
    found = []
    budget = row["budget_frames"]
    frames = min(int(run.manifest["env_frames"]) for run in runs)
    if not pd.isna(budget) and frames < full_budget * int(budget):
        found.append(f"reduced_budget({frames / int(budget):.2g})")
    environments = {run.environment for run in runs}
    if rule.environments is not None and len(environments) < rule.environments:
        found.append(f"reduced_suite({len(environments)}/{rule.environments})")
    envs = min(run.config["topology"]["num_actors"] * run.config["topology"]["envs_per_actor"] for run in runs)
    if rule.paper_envs is not None and envs < rule.paper_envs:
        found.append(f"fewer_actors({envs}/{rule.paper_envs})")
    stated = [(run.config, experiment.paper_setting(run.variant, run.environment)) for run in runs]
    changed = sorted({key.split(".", 1)[-1] for config, setting in stated for key in changed_settings(config, setting)})
    if changed:
        found.append(f"changed_hyperparameters({','.join(changed)})")
    return found


def cells(
    paper: Paper,
    experiments: Mapping[str, Experiment],
    published: pd.DataFrame,
    references: pd.DataFrame,
    scores: pd.DataFrame,
    runs: list[RunData],
) -> pd.DataFrame:
    """Every published cell of the paper's rules beside our runs: columns `COLUMNS`, one row per cell and origin."""
    rows = []
    by_environment = references.set_index("environment")
    for rule in paper.cells:
        for row in matching(published, rule.published).to_dict("records"):
            environment = (rule.environment or "").replace("{task}", str(row["task"]))
            own = [run for run in runs if _belongs(run, rule, environment)]
            for origin in sorted({run.origin for run in own}, reverse=True) or ["run"]:
                chosen = [run for run in own if run.origin == origin]
                found = flags(rule, row, chosen, experiments.get(rule.experiment), paper.evidence.full_budget)
                head = _head(row) | {"origin": origin, "experiment": rule.experiment, "variant": rule.variant or ""}
                rows.append(
                    head
                    | {"environment": environment, "flags": ";".join(found)}
                    | _compare(paper, rule, row, chosen, scores, by_environment, found)
                )
    table = pd.DataFrame(rows, columns=COLUMNS)
    counts = dict.fromkeys(("published_seeds", "published_frames", "seeds", "env_frames", "seeds_needed"), "Int64")
    return table.astype(counts)


def _belongs(run: RunData, rule: CellRule, environment: str) -> bool:
    mine = run.experiment == rule.experiment and run.variant == rule.variant and rule.metric is not None
    return mine and (not environment or run.environment == environment)


def _head(row: Mapping[Any, Any]) -> dict[str, Any]:
    names = {
        "variant": "published_variant",
        "value": "published",
        "statistic": "published_statistic",
        "seeds": "published_seeds",
        "budget_frames": "published_frames",
    }
    kept = (
        "cell",
        "item",
        "system",
        "variant",
        "task",
        "metric",
        "unit",
        "value",
        "statistic",
        "seeds",
        "budget_frames",
    )
    return {names.get(key, key): row[key] for key in kept} | {"source": row["item"]}


def _compare(
    paper: Paper,
    rule: CellRule,
    row: Mapping[Any, Any],
    runs: list[RunData],
    scores: pd.DataFrame,
    references: pd.DataFrame,
    found: list[str],
) -> dict[str, Any]:
    """ours, interval, seeds, env_frames, margin, difference, verdict, seeds_needed, detail."""
    if not runs:
        proxy = "proxy_env" in found
        detail = (
            "the paper's task is not available; the claims compare orderings on other tasks"
            if proxy
            else f"planned as experiment '{rule.experiment}'"
        )
        if not proxy and rule.metric is not None:
            detail = "not among the tasks of this scale"
        return {"verdict": "not_comparable" if proxy else "not_run", "detail": detail}
    ours = own_values(rule, runs, scores)
    margin = _margin(paper, rule, row, runs, references)
    interval = t_interval(ours, LEVEL)
    hard = [flag for flag in found if flag.split("(")[0] in HARD_FLAGS]
    seeds = None if pd.isna(row["seeds"]) else int(row["seeds"])
    verdict = decide(ours, float(row["value"]), margin, seeds, hard)
    return {
        "ours": interval.value,
        "ci90_low": interval.low,
        "ci90_high": interval.high,
        "seeds": len(ours),
        "env_frames": min(int(run.manifest["env_frames"]) for run in runs),
        "margin": margin,
        "difference": interval.value - float(row["value"]),
        "verdict": verdict.verdict,
        "seeds_needed": verdict.seeds_needed,
        "detail": verdict.detail,
    }


def own_values(rule: CellRule, runs: list[RunData], scores: pd.DataFrame) -> Sample:
    """One value per seed [n]: the final return, or (in percent) an aggregate over the games every seed has."""
    first = runs[0]
    chosen = scores[
        (scores["origin"] == first.origin)
        & (scores["experiment"] == first.experiment)
        & (scores["variant"] == first.variant)
        & scores["environment"].isin({run.environment for run in runs})
    ]
    if rule.metric == "final_return":
        return chosen.sort_values("seed")["final_return"].to_numpy(dtype=np.float64)
    grid = chosen.pivot(index="seed", columns="environment", values="human_normalised_score").dropna()
    summary = grid.mean(axis=1) if rule.metric == "mean_human_normalised_score" else grid.median(axis=1)
    return 100.0 * summary.to_numpy(dtype=np.float64)


def _margin(
    paper: Paper, rule: CellRule, row: Mapping[Any, Any], runs: list[RunData], references: pd.DataFrame
) -> float:
    """Half-width of the equivalence band: the larger of a part of |published - random| and of |human - random|."""
    evidence = paper.evidence
    if rule.metric != "final_return":
        return max(evidence.margin_of_range * abs(float(row["value"])), 100.0 * evidence.margin_human_normalised)
    if runs[0].environment not in references.index:
        return math.nan
    chosen = references.loc[runs[0].environment]
    random, human = float(chosen["random"]), float(chosen["human"])
    of_range = evidence.margin_of_range * abs(float(row["value"]) - random)
    of_human = evidence.margin_human_normalised * abs(human - random)
    return max(of_range, of_human) if math.isfinite(of_human) else of_range
