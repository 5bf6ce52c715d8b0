"""Compares cells: a published number and ours, the flags that make them incomparable, and a verdict if there are none.

equivalent      our 90 % interval lies within the margin around the published value (two one-sided tests at 5 %)
below, above    our 90 % interval lies outside the margin
inconclusive    fewer than 5 seeds (or none with a value), or the interval is wider than the margins, or it reaches over
                its edge and the published value is not inside our prediction interval: `seeds_needed` says how many
                would decide
                (of two variants also: times measured on different machines, or on fewer cores than workers)
consistent      the published value is inside our 95 % prediction interval: not evidence of equality
not_comparable  a hard flag: the two numbers are not about the same thing
not_run         there is no run of ours

The published number counts as exact, unless its seeds and their deviation are printed: then the interval is that of the
difference of two means (Welch 1947). The prediction interval of `consistent` is one for as many seeds as the paper had
(one, if it does not say). Our final scores deviate at least by what their episodes and versions of the parameters show
(`ddrl.analysis.statistics.score_error`). Margins and rules are in paper.yaml. Where they, or what counts as the paper's
own setting, are younger than runs that a cell uses, column `late` says so (`ddrl.papers.ground_rules`), whatever the
verdict, and `late_runs` counts these runs.

Cells of single tasks are descriptive. `p_difference` tests if our mean is the published value (two-sided t test), and
`p_holm` is that p after Holm's correction for the tasks of one table row-set (item, system, variant). A run at a
smaller budget than the published number's gets no verdict, unless the paper has a curve: its points are cells of their
own, compared at their own frames (metric return_at_frames).

One row per row-set, with an empty task, carries the suite's verdict: the interquartile mean (IQM) of human-normalised
scores over the tasks, one value per seed, against the IQM of the published scores of the same tasks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pandas as pd

from ddrl.analysis.runs.flags import flags, hard
from ddrl.analysis.runs.run_data import RunData
from ddrl.analysis.statistics import significance
from ddrl.analysis.statistics.normalise import human_normalised
from ddrl.analysis.statistics.printed import PrintedMean, difference
from ddrl.analysis.statistics.significance import Interval, t_interval
from ddrl.analysis.verdicts.cell_decision import LEVEL, Verdict, decide
from ddrl.analysis.verdicts.cell_values import SCORE, obstacle, own_values, suite_values
from ddrl.analysis.verdicts.plans import began_before, since_rule
from ddrl.papers.claim_kinds import SUITE_METRICS
from ddrl.papers.experiments import Experiment
from ddrl.papers.ground_rules import cell_key, ground_rules
from ddrl.papers.paper import CellRule, EvidenceRules, Paper
from ddrl.papers.plan_dates import dated
from ddrl.papers.protocols import spelled, spelled_ours
from ddrl.papers.published import matching
from ddrl.papers.schema import check_known

SUITE_METRIC = "iqm_human_normalised_score"

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
    "published_deviation",
    "published_ci95_low",
    "published_ci95_high",
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
    "difference_low",
    "difference_high",
    "p_equivalence",
    "p_difference",
    "p_holm",
    "flags",
    "verdict",
    "seeds_needed",
    "detail",
    "protocol_published",
    "protocol_ours",
    "late_runs",
    "late",
]


class Given(NamedTuple):
    """The facts that all cells of a paper are made from."""

    paper: Paper
    experiments: Mapping[str, Experiment]
    scores: pd.DataFrame
    references: pd.DataFrame
    """Random and human score, indexed by environment."""
    fixed: Mapping[str, str]
    """Key of a rule -> the date since which it counts as it is now (UTC); empty: it is not registered."""


def cells(
    paper: Paper,
    experiments: Mapping[str, Experiment],
    published: pd.DataFrame,
    references: pd.DataFrame,
    scores: pd.DataFrame,
    runs: list[RunData],
) -> pd.DataFrame:
    """Compare every published cell of the paper's rules with our runs: columns `COLUMNS`.

    One row per cell and origin, and one per origin for the suite of each row-set that has a task in every row. Raise
    UserError for a published protocol that paper.yaml does not state.
    """
    fixed = _dates_of_rules(paper)
    given = Given(paper, experiments, scores, references.set_index("environment"), fixed)
    rows: list[dict[str, Any]] = []
    for rule in paper.cells:
        chosen = matching(published, rule.published)
        variants = (rule.variant, rule.than) if rule.than else (rule.variant,)
        tested = [run for run in runs if run.experiment == rule.experiment and run.variant in variants]
        for row in chosen.to_dict("records"):
            environment = (rule.environment or "").replace("{task}", str(row["task"]))
            own = [run for run in tested if not environment or run.environment == environment]
            for origin in _origins(own):
                mine = [run for run in own if run.origin == origin]
                rows.append(_cell(given, rule, row, environment, origin, mine))
        if rule.environment is not None and rule.metric == "final_return":
            for _, part in chosen.groupby(["item", "system", "variant"], sort=False, dropna=False):
                rows += _suite(given, rule, part, tested)
    counts = dict.fromkeys(
        ("published_seeds", "published_frames", "seeds", "env_frames", "seeds_needed", "late_runs"), "Int64"
    )
    measured = (
        *("published_deviation", "published_ci95_low", "published_ci95_high"),
        *("ours", "ci90_low", "ci90_high", "margin", "difference", "difference_low", "difference_high"),
        *("p_equivalence", "p_difference", "p_holm"),
    )
    table = pd.DataFrame(rows, columns=COLUMNS).astype(counts | dict.fromkeys(measured, "float64"))
    single = table[(table["task"] != "") & (table["environment"] != "")]
    family = ["origin", "item", "system", "published_variant"]
    table.loc[single.index, "p_holm"] = significance.holm(single, p="p_difference", family=family)
    return table


def _dates_of_rules(paper: Paper) -> dict[str, str]:
    """Return cell key -> the date since which its rule and margins count as they are now; empty: not registered."""
    register, rules = dated(paper.directory), ground_rules(paper.directory)
    return {key: since_rule(register, rules, key) for key in map(cell_key, paper.cells)}


def _late(given: Given, rule: CellRule, runs: Sequence[RunData]) -> dict[str, Any]:
    """Return how many runs are older than what decides their cell, and that in words."""
    late = sum(began_before(run, given.fixed[cell_key(rule)]) for run in runs)
    return {"late_runs": late, "late": f"rule or margins written after {late} of {len(runs)} runs" if late else ""}


def _origins(runs: Iterable[RunData]) -> list[str]:
    """Return the origins of runs, the reader's own first; without any run the cell still has a row."""
    return sorted({run.origin for run in runs}, reverse=True) or ["run"]


def _suite(given: Given, rule: CellRule, part: pd.DataFrame, runs: Sequence[RunData]) -> list[dict[str, Any]]:
    """Return the suite's row for each origin: the published IQM over the tasks we share (without runs: over all)."""
    environments = part["task"].map(lambda task: str(rule.environment).replace("{task}", str(task)))
    bounds = given.references[["random", "human"]].dropna()
    known = environments.isin(bounds.index)
    if known.sum() < 2:
        return []
    values = pd.Series(part["value"][known].to_numpy(), index=environments[known])
    normalised = human_normalised(values, bounds["random"][values.index], bounds["human"][values.index])
    first = part.iloc[0].to_dict()
    common = [name for name in ("seeds", "budget_frames") if part[name].nunique(dropna=False) == 1]
    whole = replace(rule, metric=SUITE_METRIC, environments=int(known.sum()))
    rows = []
    for origin in _origins(runs):
        mine = [run for run in runs if run.origin == origin and run.environment in normalised.index]
        shared = normalised.loc[sorted({run.environment for run in mine})] if mine else normalised
        name = "_".join(str(first[key]) for key in ("item", "system", "variant"))
        published = pd.DataFrame({"environment": shared.index, "seed": 0, SCORE: shared.array})
        row = first | {
            "cell": "suite." + re.sub(r"[^a-z0-9]+", "_", name.lower().replace("+", "_plus")),
            "task": "",
            "metric": SUITE_METRIC,
            "unit": "percent",
            "deviation": math.nan,  # of a suite no deviation is printed
            "value": float(suite_values(published, SUITE_METRIC)[0]),
            "seeds": first["seeds"] if "seeds" in common else pd.NA,
            "budget_frames": first["budget_frames"] if "budget_frames" in common else pd.NA,
            "digitised": bool(part["digitised"].any()),
            "source": f"derived from {first['item']}",
        }
        rows.append(_cell(given, whole, row, "", origin, mine) | {"published_statistic": "derived"})
    return rows


def _cell(
    given: Given, rule: CellRule, row: Mapping[Any, Any], environment: str, origin: str, runs: list[RunData]
) -> dict[str, Any]:
    """Return one row of the table; a rule without a metric has flags and protocols, and no value of ours."""
    name = "" if pd.isna(row["protocol"]) else str(row["protocol"])
    where = f"{given.paper.directory / 'published'}: cell '{row['cell']}'"
    check_known("protocol", filter(None, [name]), given.paper.protocols, where=where)
    protocol = given.paper.protocols.get(name)
    experiment = given.experiments.get(rule.experiment)
    found = flags(rule, row, runs, experiment, given.paper.evidence.full_budget, protocol)
    printed = _printed(row).interval(0.95)
    head = {name: row[name] for name in ("cell", "item", "system", "task", "metric", "unit", "source")}
    head |= {
        "published_variant": row["variant"],
        "published": row["value"],
        "published_statistic": row["statistic"],
        "published_seeds": row["seeds"],
        "published_deviation": row["deviation"],
        "published_ci95_low": printed.low,
        "published_ci95_high": printed.high,
        "published_frames": row["budget_frames"],
        "origin": origin,
        "experiment": rule.experiment,
        "variant": rule.variant or "",
        "environment": environment,
        "flags": ";".join(found),
        "protocol_published": "" if protocol is None else spelled(protocol),
        "protocol_ours": spelled_ours(str(run.manifest["protocol"]) for run in runs),
    }
    head |= _late(given, rule, runs if rule.metric is not None else [])
    if not runs or rule.metric is None:
        return head | _unmeasured(rule, experiment, "proxy_env" in found)
    return head | _compare(given, rule, row, runs, hard(found, protocol))


def _unmeasured(rule: CellRule, experiment: Experiment | None, proxy: bool) -> dict[str, Any]:
    """Return verdict and detail of a cell for which we have no value."""
    if proxy:
        detail = "the paper's task is not available; the claims compare orderings on other tasks"
        return {"verdict": "not_comparable", "detail": detail}
    if experiment is None or rule.metric is None:
        return {"verdict": "not_run", "detail": f"planned as experiment '{rule.experiment}'"}
    return {"verdict": "not_run", "detail": "not among the tasks of this scale"}


def _compare(
    given: Given, rule: CellRule, row: Mapping[Any, Any], runs: list[RunData], obstacles: list[str]
) -> dict[str, Any]:
    """Return ours, interval, seeds, env_frames, margin, difference, p values, verdict, seeds_needed, detail."""
    paper, published = given.paper, float(row["value"])
    ours = own_values(rule, row, runs, given.scores, paper.prices, paper.milestones)
    margin = _margin(paper.evidence, rule, published, runs, given.references)
    if not len(ours) and not obstacles:
        detail = "no seed has a score on every task, or a record before the published frames"
        return {"verdict": "inconclusive", "detail": detail, "margin": margin}
    interval = apart = Interval(math.nan, math.nan, math.nan)
    if len(ours):
        interval, apart = t_interval(ours, LEVEL), difference(ours, _printed(row)).interval(LEVEL)
    found = decide(ours, _printed(row), margin, obstacles)
    reason = "" if obstacles else obstacle(rule, runs, paper.milestones)
    if reason:
        found = Verdict("inconclusive", None, reason)
    detail = found.detail
    if any(flag.startswith("reduced_budget") for flag in obstacles):
        pair = (rule.experiment, rule.variant)
        curve = any((r.experiment, r.variant) == pair and r.metric == "return_at_frames" for r in paper.cells)
        compared = "a published curve is compared at its own frames"
        detail += f"; {compared if curve else 'no published curve at these frames'}"
    return vars(found) | {
        "ours": interval.value,
        "ci90_low": interval.low,
        "ci90_high": interval.high,
        "seeds": len(ours),
        "env_frames": min(int(run.manifest["env_frames"]) for run in runs),
        "margin": margin,
        "difference": apart.value,
        "difference_low": apart.low,
        "difference_high": apart.high,
        "detail": detail,
    }


def _printed(row: Mapping[Any, Any]) -> PrintedMean:
    seeds = None if pd.isna(row["seeds"]) else int(row["seeds"])
    return PrintedMean(float(row["value"]), seeds, float(row["deviation"]))


def _margin(
    evidence: EvidenceRules, rule: CellRule, published: float, runs: Sequence[RunData], references: pd.DataFrame
) -> float:
    """Return half the width of the equivalence band.

    It is the larger of a fraction of |published - random| and one of |human - random|; for a comparison of two
    systems, the same fraction of the published number.
    """
    if rule.than:
        return evidence.margin_of_range * abs(published)
    if rule.metric in SUITE_METRICS:
        return max(evidence.margin_of_range * abs(published), 100.0 * evidence.margin_human_normalised)
    if runs[0].environment not in references.index:
        return math.nan
    chosen = references.loc[runs[0].environment]
    random, human = float(chosen["random"]), float(chosen["human"])
    of_range = evidence.margin_of_range * abs(published - random)
    of_human = evidence.margin_human_normalised * abs(human - random)
    return max(of_range, of_human) if math.isfinite(of_human) else of_range
