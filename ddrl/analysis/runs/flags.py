"""Decides from the runs' manifests what makes a published number and our runs incomparable, never by hand.

`FLAGS` of `ddrl.papers.paper` explains each flag. A hard flag leaves a cell without a verdict; others are only
printed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from ddrl.analysis.runs.run_data import RunData, gpu_of
from ddrl.papers.claim_kinds import COST_METRICS, FINAL_METRICS
from ddrl.papers.experiments import Experiment
from ddrl.papers.paper import CellRule
from ddrl.papers.protocols import Protocol, changed_parts, parse_protocol, version_gap
from ddrl.system.config_differences import flatten as flatten

HARD_FLAGS = (
    "proxy_env",
    "reduced_budget",
    "larger_budget",
    "other_hardware",
    "wall_clock_budget",
    "reduced_suite",
    "changed_protocol",
    "changed_hyperparameters",
    "published_best_of_k",
)
"""Flags with which the two numbers measure different things. env_version_gap joins them if a protocol says so."""
BEST_OF_K = ("best_during_training", "mean_of_best_3_of_24", "best_per_architecture", "population_of_24")
BOOKKEEPING = ("algorithm", "env_frames", "evaluation", "recording", "tracking", "checkpoint", "device")
"""Keys of a configuration that budget and measure a run; the rest is the paper's setting."""
SIZE_KEYS = (
    "topology.num_actors",
    "topology.envs_per_actor",
    "topology.env_groups",
    "topology.env_threads",
    "topology.acting",
    "topology.learner_threads",
    "topology.queue_capacity",
    "topology.runtime",
)
"""Layout of a run on a machine: flagged as fewer_actors, if the paper says how many it had."""


def flags(
    rule: CellRule,
    row: Mapping[Any, Any],
    runs: Sequence[RunData],
    experiment: Experiment | None,
    full_budget: float,
    protocol: Protocol | None,
) -> list[str]:
    """Return all flags of a published row and `runs`; `protocol` is what the paper states for the row."""
    found = _environment_flags(rule, runs, experiment, protocol)
    if runs and experiment is not None:
        found += _size_flags(rule, row, runs, full_budget) + _setting_flags(runs, experiment, protocol)
    if row["statistic"] in BEST_OF_K:
        found.append("published_best_of_k")
    if pd.isna(row["seeds"]):
        found.append("published_n_unknown")
    if row["digitised"]:
        found.append("digitised")
    return found


def hard(found: Iterable[str], protocol: Protocol | None) -> list[str]:
    """Return the flags of `found` that leave a cell without a verdict."""
    names = [*HARD_FLAGS, *(["env_version_gap"] if protocol is not None and protocol.other_versions == "never" else [])]
    return [flag for flag in found if flag.partition("(")[0] in names]


def _environment_flags(
    rule: CellRule, runs: Sequence[RunData], experiment: Experiment | None, protocol: Protocol | None
) -> list[str]:
    """Return proxy_env or env_version_gap, from the runs' protocol ids; without runs, from the experiment."""
    declared = experiment is not None and experiment.proxy is not None
    if protocol is None or not runs:
        return ["proxy_env"] if declared else []
    ids = [parse_protocol(str(run.manifest["protocol"])) for run in runs]
    # A rule with an environment pairs the row with its own task, whatever task replaces it at other scales.
    stands_in = declared and rule.environment is None
    if stands_in or any(one.environment != protocol.environment for one in ids):
        return ["proxy_env"]
    gap = version_flag((str(run.manifest["protocol"]) for run in runs), [protocol])
    return [gap] if gap else []


def version_flag(texts: Iterable[str], stated: Iterable[Protocol]) -> str:
    """Return env_version_gap if runs with these protocol ids have other versions than a paper states, else "".

    A run with one of several stated versions has no gap, nor has one whose environment the paper does not state.
    """
    stated, gaps = list(stated), set()
    for one in map(parse_protocol, texts):
        found = [version_gap(one, paper) for paper in stated if paper.environment == one.environment]
        if all(found):
            gaps |= set(found)
    return f"env_version_gap({', '.join(sorted(gaps))})" if gaps else ""


def _size_flags(rule: CellRule, row: Mapping[Any, Any], runs: Sequence[RunData], full_budget: float) -> list[str]:
    """Return flags of budget, tasks, hardware and actors."""
    found = []
    budget = row["budget_frames"]
    frames = [int(run.manifest["env_frames"]) for run in runs]
    if not pd.isna(budget) and min(frames) < full_budget * int(budget):
        found.append(f"reduced_budget({min(frames) / int(budget):.2g})")
    # A curve is compared at the row's own frames, and what frames take does not grow with them.
    ends = rule.metric in FINAL_METRICS
    if ends and not pd.isna(budget) and full_budget * max(frames) > int(budget):
        found.append(f"larger_budget({max(frames) / int(budget):.2g})")
    if pd.isna(budget) and not pd.isna(row["budget_hours"]) and rule.metric is not None:
        found.append(f"wall_clock_budget({row['budget_hours']:g} h)")
    environments = {run.environment for run in runs}
    if rule.environments is not None and len(environments) < rule.environments:
        found.append(f"reduced_suite({len(environments)}/{rule.environments})")
    if rule.metric in COST_METRICS and not all(_same_hardware(run, str(row["hardware"])) for run in runs):
        found.append("other_hardware")
    # Of two variants only the first needs the paper's actors: the other may be the one with fewer.
    topologies = [run.config["topology"] for run in runs if not rule.than or run.variant == rule.variant]
    envs = min((one["num_actors"] * one["envs_per_actor"] for one in topologies), default=math.inf)
    if rule.paper_envs is not None and envs < rule.paper_envs:
        found.append(f"fewer_actors({envs}/{rule.paper_envs})")
    return found


def _setting_flags(runs: Sequence[RunData], experiment: Experiment, protocol: Protocol | None) -> list[str]:
    """Return changed_protocol and changed_hyperparameters, with what was changed in any of the runs."""
    settings: set[str] = set()
    parts: set[str] = set()
    for run in runs:
        for key in changed_settings(run.config, experiment.paper_setting(run.variant, run.suite or run.environment)):
            group, _, name = key.partition(".")
            (parts if group == "environment" else settings).add(name or group)
        ours = parse_protocol(str(run.manifest["protocol"]))
        if protocol is not None and ours.environment == protocol.environment:
            parts |= set(changed_parts(ours, protocol))
    named = {"changed_protocol": parts, "changed_hyperparameters": settings}
    return [f"{flag}({','.join(sorted(changed))})" for flag, changed in named.items() if changed]


def _same_hardware(run: RunData, published: str) -> bool:
    """Return whether the accelerator that a run used is the published one; False if either used none."""
    models = [word for word in (gpu_of(run) or "").split() if any(map(str.isdigit, word))]
    return any(model in published for model in models)


def changed_settings(config: Mapping[str, Any], stated: Mapping[str, Any]) -> list[str]:
    """Return dotted keys of the paper's setting whose value differs; budget, bookkeeping and size excluded."""
    ours = flatten(config)
    return [
        key
        for key, value in flatten(stated).items()
        if key.split(".")[0] not in BOOKKEEPING and key not in SIZE_KEYS and not same(ours.get(key), value)
    ]


def same(ours: Any, paper: Any) -> bool:
    """Return whether two settings are equal; numbers to twelve digits."""
    if type(ours) is type(paper) and ours == paper:
        return True
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (ours, paper))
    return math.isclose(ours, paper, rel_tol=1e-12) if numbers else bool(ours == paper)
