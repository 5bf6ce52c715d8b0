"""What decides a verdict without being part of a claim's plan, with a row of its own in the register of plans.

    setting:<claim>             what counts as the paper's own setting (`contradicted` or `contradicted_here`): whether
                                other tasks stand in for the paper's, the paper's configuration of each variant that the
                                claim names, and the part of a budget that counts as all of it
    cell:<rows>:<experiment>:<variant>
                                what decides published cells: their rule in paper.yaml, the margins, and the setting
    peer:<experiment>:<variant> what decides a comparison with a peer's runs (table `peer_learning`): the margin, and
                                the configuration that both sides carry out
    tuning:<experiment>:<digest>
                                a record of runs by which settings were chosen: variants, tasks and seeds

Each digest is a function of paper.yaml and experiments.yaml alone; words (a reason, a source) are no part of it. The
rows of a register have scale `EVERY`, since all scales have the same rules. Records of tuning are only added: one that
is in the register and no longer in the file was removed (`removed`). No pandas here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ddrl.papers.experiments import Experiment, load_experiments
from ddrl.papers.paper import CellRule, Claim, Paper, load_paper
from ddrl.papers.peer_pairs import Pair, pairs
from ddrl.papers.plans import Registered, in_force, latest, name_in, read_register, shortened
from ddrl.papers.tuning import Tuning
from ddrl.system.config_differences import compared, flatten

EVERY = "every"
"""The scale of these rows of a register."""
SETTING, CELL, PEER, TUNING = "setting:", "cell:", "peer:", "tuning:"
Digests = dict[tuple[str, str], str]


def ground_rules(directory: Path) -> Digests:
    """Return (key, `EVERY`) -> digest of each ground rule of a paper as it is. Raise `UserError` as `load_paper`."""
    paper, experiments = load_paper(directory), load_experiments(directory)
    claims = [claim for claim in paper.claims if claim.experiment in experiments]
    found = {setting_key(claim): _of_setting(paper, claim, experiments[claim.experiment]) for claim in claims}
    rules: dict[str, list[Any]] = {}
    for rule in paper.cells:
        rules.setdefault(cell_key(rule), []).append(_of_cell(paper, rule, experiments.get(rule.experiment)))
    found |= {key: shortened(every) for key, every in rules.items()}
    for experiment in experiments.values():
        found |= {
            f"{PEER}{experiment.name}:{pair.theirs}": _of_pair(paper, experiment, pair) for pair in pairs(experiment)
        }
        found |= {tuning_key(experiment.name, entry): _of_tuning(entry) for entry in experiment.tuning}
    return {(key, EVERY): digest for key, digest in found.items()}


def to_register(directory: Path) -> Digests:
    """Return everything that belongs into the register of a paper: the plans in force, and what else decides."""
    return in_force(directory) | ground_rules(directory)


def missing(directory: Path) -> Digests:
    """Return what belongs into the register and is not its newest row of the same key and scale."""
    known = latest(read_register(directory))
    return {key: digest for key, digest in to_register(directory).items() if known.get(key) != digest}


def removed(rows: Iterable[Registered], experiments: Mapping[str, Experiment]) -> list[tuple[str, str]]:
    """Return experiment and key of each registered record of tuning that its experiment no longer has."""
    there = {tuning_key(name, entry) for name, one in experiments.items() for entry in one.tuning}
    named = {row.claim: row.claim.split(":")[1] for row in rows if row.claim.startswith(TUNING)}
    return [(name, key) for key, name in named.items() if name in experiments and key not in there]


def setting_key(claim: Claim) -> str:
    """Return the key of what counts as the paper's own setting of a claim."""
    return f"{SETTING}{claim.name}"


def cell_key(rule: CellRule) -> str:
    """Return the key of the rule of published cells."""
    rows = "; ".join(map(str, rule.published.values()))
    return f"{CELL}{rows}:{rule.experiment}:{rule.variant or ''}"


def tuning_key(experiment: str, entry: Tuning) -> str:
    """Return the key of a record of tuning."""
    return f"{TUNING}{experiment}:{_of_tuning(entry)}"


def _of_setting(paper: Paper, claim: Claim, experiment: Experiment) -> str:
    named = [name for name in experiment.variants if name_in(claim, name)]
    return shortened([paper.evidence.full_budget, _own_setting(experiment, named)])


def _of_cell(paper: Paper, rule: CellRule, experiment: Experiment | None) -> Any:
    """Return everything that decides the cells of a rule, as plain data; fields with their default are left out."""
    fields = {field.name: (getattr(rule, field.name), field.default) for field in dataclasses.fields(rule)}
    known = experiment.variants if experiment else ()
    named = [name for name in (rule.variant, rule.than) if name in known]
    margins = [paper.evidence.margin_of_range, paper.evidence.margin_human_normalised, paper.evidence.full_budget]
    return [
        {name: value for name, (value, default) in fields.items() if value != default},
        margins,
        _own_setting(experiment, named),
    ]


def _of_pair(paper: Paper, experiment: Experiment, pair: Pair) -> str:
    return shortened([paper.evidence.margin_of_range, _own_setting(experiment, pair)])


def _own_setting(experiment: Experiment | None, variants: Iterable[str | None]) -> Any:
    """Return what counts as the paper's own setting of variants: stand-in tasks, budget, configuration."""
    if experiment is None:
        return None
    settings = {
        name: {key: value for key, value in flatten(experiment.paper_setting(name, "")).items() if compared(key)}
        for name in filter(None, variants)
    }
    return [bool(experiment.proxy), bool(experiment.paper_budget), settings]


def _of_tuning(entry: Tuning) -> str:
    return shortened([sorted(entry.variants), sorted(entry.tasks), sorted(entry.seeds)])
