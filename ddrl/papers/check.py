"""Checks what a schema cannot: that names in paper.yaml exist elsewhere, and that every published row is named once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from ddrl.errors import UserError
from ddrl.papers.claim_kinds import EFFICIENCY_METRICS, FINAL_METRICS, TO_MILESTONE
from ddrl.papers.experiments import Experiment, load_experiments, system_of
from ddrl.papers.own_code import check_own_code
from ddrl.papers.paper import CellRule, Claim, Paper, load_deviations, load_paper
from ddrl.papers.published import load_published, load_references, matching
from ddrl.papers.schema import check_known

OF_ONE_TASK = ("final_return", "return_at_frames")
"""Metrics of cells whose seeds are of a single task: without one, the tasks would count as seeds."""


def check_paper(directory: Path) -> None:
    """Raise `UserError` if paper.yaml, what it names in other files, DEVIATIONS.md or the paper's code are wrong."""
    paper, experiments = load_paper(directory), load_experiments(directory)
    load_deviations(directory)
    path = directory / "paper.yaml"
    published = load_published(directory)
    for claim in paper.claims:
        _check_claim(claim, experiments, published, f"{path}: claims.{claim.name}")
    for rule in paper.cells:
        _check_rule(rule, paper, experiments, published, f"{path}: cells.{rule.experiment}")
    _check_coverage(paper, published, path)
    load_references(paper)
    check_own_code(paper)


def _check_rule(
    rule: CellRule, paper: Paper, experiments: Mapping[str, Experiment], published: pd.DataFrame, where: str
) -> None:
    if rule.experiment in experiments:
        named = [rule.variant, *filter(None, [rule.than])]
        check_known("variant", named, experiments[rule.experiment].variants, where=where)
        _check_scored(rule.metric, experiments[rule.experiment], (), where)
    of_two = rule.metric in EFFICIENCY_METRICS or rule.metric == TO_MILESTONE
    if of_two != bool(rule.than) or bool(rule.than) != bool(rule.compared_as):
        what = f"what frames take and {TO_MILESTONE}"
        raise UserError(f"{where}: keys 'than' and 'compared_as' go with {what}, and these with them")
    if rule.metric == TO_MILESTONE and not paper.milestones:
        raise UserError(f"{where}: metric '{TO_MILESTONE}' needs the key 'milestones'")
    if rule.metric in OF_ONE_TASK and rule.environment is None:
        raise UserError(f"{where}: metric '{rule.metric}' is of one task; key 'environment' is missing")
    rows = matching(published, rule.published)
    stated = filter(None, dict.fromkeys(rows["protocol"]))
    check_known("protocol", stated, paper.protocols, where=f"{where}: published rows")
    if rule.metric == "return_at_frames" and rows["budget_frames"].isna().any():
        cell = rows["cell"][rows["budget_frames"].isna()].iloc[0]
        raise UserError(f"{where}: published cell '{cell}' of a curve has no budget_frames")


def _check_claim(claim: Claim, experiments: Mapping[str, Experiment], published: pd.DataFrame, where: str) -> None:
    check_known("published cell", claim.published, published["cell"], where=where)
    number = "factor" if claim.factor != 1 else "threshold" if claim.kind == "interaction" and claim.threshold else ""
    if (claim.kind in ("ratio", "up_to", "at_least") or number) and not claim.published and not claim.threshold_from:
        own = ", or say in 'test.threshold_from' where the threshold is from" if claim.kind == "at_least" else ""
        what = f"kind '{claim.kind}'" + (f" with a '{number}'" if number else "")
        raise UserError(f"{where}: key 'published' is missing; {what} is about a printed number: cite its row{own}")
    if claim.experiment not in experiments:
        return
    if claim.metric is None:
        raise UserError(f"{where}.test: key 'metric' is missing, but there is an experiment '{claim.experiment}'")
    known = list(experiments[claim.experiment].variants)
    systems = {system_of(name) for name in known} if claim.kind == "stability" else set()
    check_known("variant", (name for name in claim.named_variants if name not in systems), known, where=where)
    tasks = {name for scale in experiments[claim.experiment].scales.values() for name in scale.environments}
    check_known("environment", claim.named_environments, tasks, where=where)
    _check_scored(claim.metric, experiments[claim.experiment], claim.named_environments, where)


def _check_scored(metric: str | None, experiment: Experiment, environments: Sequence[str], where: str) -> None:
    """Raise `UserError` where a final return decides, and the experiment says that its final returns are no scores."""
    if metric not in FINAL_METRICS or experiment.scored is True:
        return
    if not environments or not all(map(experiment.has_scores, environments)):
        raise UserError(
            f"{where}: metric '{metric}' is of scores, and key 'scored' of experiment '{experiment.name}' in "
            "experiments.yaml says that these runs have none; allowed: a metric of what frames take"
        )


def coverage(paper: Paper, published: pd.DataFrame) -> pd.DataFrame:
    """Return one row per published cell: cell, item, rules (how many name it), experiment (of the last), reason.

    `reason` is the one given under `not_compared`, which counts as a rule. Raise UserError for a rule of no cell.
    """
    columns = {"cell": published["cell"], "item": published["item"], "rules": 0, "experiment": "", "reason": ""}
    named = pd.DataFrame(columns)
    uses = [("cells", rule.published, "experiment", rule.experiment) for rule in paper.cells]
    uses += [("not_compared", entry.published, "reason", entry.reason) for entry in paper.not_compared]
    for key, wanted, column, text in uses:
        chosen = matching(published, wanted).index
        if chosen.empty:
            raise UserError(f"{paper.directory / 'paper.yaml'}: {key}: no published row has {dict(wanted)}")
        named.loc[chosen, "rules"] += 1
        named.loc[chosen, column] = text
    return named


def _check_coverage(paper: Paper, published: pd.DataFrame, path: Path) -> None:
    named = coverage(paper, published)
    wrong = named[named["rules"] != 1]
    if len(wrong):
        cell, rules = wrong.iloc[0]["cell"], int(wrong.iloc[0]["rules"])
        said = "is named by no rule" if rules == 0 else f"is named by {rules} rules"
        raise UserError(
            f"{path}: published cell '{cell}' {said} ({len(wrong)} such); "
            "allowed: exactly one under 'cells' or 'not_compared'"
        )
