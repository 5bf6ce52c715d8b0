"""Makes the tables about the runs themselves: what they were, their settings, where they depart from the paper's."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ddrl.analysis.runs.flags import BOOKKEEPING, flatten, same
from ddrl.analysis.runs.milestones import recent_returns
from ddrl.analysis.runs.run_data import DECISION, KEYS, RunData, clock_of, env_label, layout_of, training_speed
from ddrl.analysis.statistics.claim_tests import first_reached
from ddrl.papers.experiments import Experiment, PlannedRun, system_of
from ddrl.papers.paper import Paper, load_deviations
from ddrl.papers.protocols import NOT_PRINTED
from ddrl.system.config_differences import compared

DEPARTURE_COLUMNS = ["what", "paper", "ours", "reason", "flag", "where"]
_RUN_FIELDS = (
    "env_frames",
    "agent_steps",
    "updates",
    "episodes",
    "seconds",
    "resumes",
    "records_lost_bytes",
    "exit_reason",
    "peak_memory_mib",
    "parameters",
    "protocol",
    "algorithm_version",
    "git_sha",
    "git_dirty",
    "started",
    "finished",
    "fingerprint",
)
_HARDWARE = ("cpu", "cores", "memory_gib", "gpu")


def run_table(runs: Sequence[RunData], experiments: Mapping[str, Experiment]) -> pd.DataFrame:
    """Return one row per run: `KEYS`, counts, budget beside the paper's, topology, provenance."""
    rows = []
    for run in runs:
        experiment, manifest = experiments[run.experiment], run.manifest
        paper = experiment.paper_setting(run.variant, run.environment)
        stated = None if experiment.proxy or experiment.paper_budget else int(paper["env_frames"])
        frames = int(manifest["env_frames"])
        row = run.keys() | {"variant_label": experiment.labels[run.variant], "experiment_title": experiment.title}
        row |= {name: manifest.get(name) for name in _RUN_FIELDS}
        row |= {name: manifest["hardware"].get(name) for name in _HARDWARE}
        row |= layout_of(run.config["topology"])
        row |= {
            "algorithm": run.config["algorithm"],
            "network": run.config["hyperparameters"].get("network"),
            "precision": run.config.get("precision"),
            "paper_frames": stated,
            "budget_ratio": frames / stated if stated else None,
            "training_speed": training_speed(run),
            "frames_per_second": frames / max(float(manifest["seconds"]), 1e-9),
            "packages": ", ".join(f"{name} {version}" for name, version in manifest["packages"].items() if version),
        }
        rows.append(row)
    table = pd.DataFrame(rows)
    counts = dict.fromkeys(("paper_frames", "learner_threads", "parameter_delay", "records_lost_bytes"), "Int64")
    table = table.astype(counts | {"budget_ratio": "float64"})
    return table.sort_values(KEYS, ascending=[False, *[True] * (len(KEYS) - 1)], ignore_index=True)


def hyperparameter_table(paper: Paper, runs: Sequence[RunData], origin: str) -> pd.DataFrame:
    """Return what the paper states beside the distinct values of the runs of one origin."""
    rows = []
    for stated in paper.hyperparameters:
        own = [run for run in runs if run.experiment == stated.experiment and run.origin == origin]
        configs = [flatten(run.config) for run in own if stated.variant in (None, run.variant)]
        if stated.name.startswith("environment."):  # a default is in the protocol id instead
            configs = [config for config in configs if stated.name in config]
        values = list(dict.fromkeys(_text(config.get(stated.name)) for config in configs))
        agree = all(same(config.get(stated.name), stated.paper) for config in configs)
        scope = f" ({stated.variant})" if stated.variant else ""
        absent = "not read" if stated.source.startswith("not read") else NOT_PRINTED
        rows.append(
            {
                "experiment": stated.experiment,
                "name": stated.name.removeprefix("hyperparameters.") + scope,
                "paper": absent if stated.paper is None else _text(stated.paper),
                "ours": ", ".join(values),
                "source": stated.source,
                "changed": bool(configs) and stated.paper is not None and not agree,
            }
        )
    return pd.DataFrame(rows, columns=["experiment", "name", "paper", "ours", "source", "changed"])


def _text(value: Any) -> str:
    """Return a setting as the tables print it; a mapping as its keys with their values."""
    if isinstance(value, Mapping):
        return ", ".join(_text(own) if key == "name" else f"{key} {_text(own)}" for key, own in value.items())
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}".replace(",", "\u00a0") if isinstance(value, int) and value >= 10_000 else str(value)


def milestone_table(paper: Paper, runs: Sequence[RunData]) -> pd.DataFrame:
    """Return when the training return first reaches a stated threshold (`recent_returns`).

    env_frames and seconds (by `clock`) are missing if it never does; final_frames is how long was looked.
    """
    rows = []
    for run in runs:
        threshold = paper.milestones.get(run.environment)
        if threshold is None:
            continue
        first = {clock: first_reached(recent_returns(run), threshold, clock) for clock in ("env_frames", "seconds")}
        known = {clock: value if math.isfinite(value) else None for clock, value in first.items()}
        looked = {"clock": clock_of(run), "final_frames": int(run.manifest["env_frames"])}
        rows.append(run.keys() | {"threshold": threshold, **known, **looked})
    table = pd.DataFrame(rows, columns=[*KEYS, "threshold", "env_frames", "seconds", "clock", "final_frames"])
    return table.astype({"env_frames": "Int64", "seconds": "float64", "threshold": "float64", "final_frames": "int64"})


def lineage_table(runs: Iterable[RunData]) -> pd.DataFrame:
    """Return a hyperparameter's value while a member of a population trained until a decision, and after it.

    Columns `KEYS`, `DECISION`, hyperparameter, before, after.
    """
    columns = [*KEYS, *DECISION, "hyperparameter", "before", "after"]
    parts = [pd.DataFrame(columns=columns)]
    for run in runs:
        if run.lineage is None:
            continue
        for key in [name.removesuffix("_before") for name in map(str, run.lineage) if name.endswith("_before")]:
            values = {when: run.lineage[f"{key}_{when}"] for when in ("before", "after")}
            parts.append(run.lineage[DECISION].assign(**run.keys(), hyperparameter=key, **values)[columns])
    table = pd.concat(parts[1:] or parts, ignore_index=True)
    counts = dict.fromkeys(("member", "decision", "env_frames", "compared_with"), "Int64")
    floats = dict.fromkeys(("fitness", "before", "after"), "float64")
    return table.astype(counts | floats).sort_values([*KEYS, "hyperparameter", "member", "decision"], ignore_index=True)


def departure_table(
    paper_dir: Path, scale: str, planned: Sequence[PlannedRun], experiments: Mapping[str, Experiment]
) -> pd.DataFrame:
    """Return known departures: DEVIATIONS.md, then what experiments.yaml sets at this scale, each with its reason."""
    rows = _known(paper_dir)
    for name, experiment in experiments.items():
        runs = [run for run in planned if run.experiment == name]
        for departure in {id(departure): departure for run in runs for departure in run.departures}.values():
            settings = [
                experiment.paper_setting(run.variant, run.environment) for run in runs if departure in run.departures
            ]
            scope = f" ({_labels(experiment, departure.variants)})" if departure.variants else ""
            for key, value in departure.settings.items():
                if compared(key):
                    stated = {_text(_value_at(setting, key)) for setting in settings}
                    row = _departure(experiment, key, scope, stated, _text(value), departure.reason)
                    rows.append(row | {"where": f"{name}, scale {scale}"})
    return pd.DataFrame(rows, columns=DEPARTURE_COLUMNS)


def reference_departure_table(
    paper_dir: Path, runs: Sequence[RunData], experiments: Mapping[str, Experiment]
) -> pd.DataFrame:
    """Return `departure_table` of the reference runs: what they did, with a reason if any scale plans the same."""
    rows = _known(paper_dir)
    for name, experiment in experiments.items():
        own = [run for run in runs if run.experiment == name and run.origin == "reference"]
        found: dict[tuple[str, str, str, str], list[RunData]] = {}
        for run in own:
            config, paper = flatten(run.config), flatten(experiment.paper_setting(run.variant, run.environment))
            for key, value in paper.items():
                if compared(key) and not same(config.get(key), value):
                    case = (key, _text(value), _text(config.get(key)), _reason(experiment, run, key, config.get(key)))
                    found.setdefault(case, []).append(run)
        for (key, stated, ours, reason), concerned in found.items():
            row = _departure(experiment, key, _scope(experiment, concerned, own), {stated}, ours, reason)
            rows.append(row | {"where": f"{name}, reference runs"})
    return pd.DataFrame(rows, columns=DEPARTURE_COLUMNS)


def _departure(
    experiment: Experiment, key: str, scope: str, stated: set[str], ours: str, reason: str
) -> dict[str, Any]:
    """Return one setting that differs from the paper's; `stated` are its values in the paper's settings."""
    if key == "env_frames" and experiment.paper_budget:
        paper = experiment.paper_budget
    else:
        unknown = stated == {"none"} or (key == "env_frames" and experiment.proxy is not None)
        paper = NOT_PRINTED if unknown else ", ".join(sorted(stated))
    what = key.removeprefix("hyperparameters.") + scope
    return {"what": what, "paper": paper, "ours": ours, "reason": reason, "flag": _flag(experiment, key)}


def _known(paper_dir: Path) -> list[dict[str, Any]]:
    return [vars(deviation) | {"where": "DEVIATIONS.md"} for deviation in load_deviations(paper_dir)]


def _reason(experiment: Experiment, run: RunData, key: str, value: Any) -> str:
    """Return why a run has this value: from the departures of experiments.yaml, at any scale."""
    for scale, spec in experiment.scales.items():
        for departure in (*experiment.departures, *spec.departures):
            settings = flatten(departure.settings) if departure.applies(run.variant, run.environment, scale) else {}
            if key in settings and same(settings[key], value):
                return departure.reason
    return "Not a setting of any scale: these runs were made with their own."


def _scope(experiment: Experiment, concerned: Sequence[RunData], all_runs: Sequence[RunData]) -> str:
    """Return " (shallow; Breakout)" if a departure is not of every variant or of every environment, else ""."""
    parts = []
    variants = dict.fromkeys(run.variant for run in concerned)
    if len(variants) < len({run.variant for run in all_runs}):
        parts.append(_labels(experiment, variants))
    names = {run.environment: env_label(run.environment) for run in concerned}
    if len(names) < len({run.environment for run in all_runs}):
        parts.append(", ".join(names.values()))
    return f" ({'; '.join(parts)})" if parts else ""


def _labels(experiment: Experiment, variants: Iterable[str]) -> str:
    """Return the labels of variants in lower case; for a sweep the number of settings of each system instead."""
    systems: dict[str, list[str]] = {}
    for name in variants:
        systems.setdefault(system_of(name), []).append(experiment.labels[name].lower())
    return ", ".join(
        own[0] if len(own) == 1 else f"{own[0].partition(',')[0]} with {len(own)} settings" for own in systems.values()
    )


def _value_at(setting: Any, key: str) -> Any:
    """Return what a setting has at a dotted key: a value, a mapping, or None."""
    for name in key.split("."):
        setting = setting.get(name) if isinstance(setting, Mapping) else None
    return setting


def _flag(experiment: Experiment, key: str) -> str:
    if key == "env_frames":
        return "" if experiment.proxy else "reduced_budget"
    group = key.split(".")[0]
    if group == "environment":
        return "changed_protocol"
    return "" if group in BOOKKEEPING else "changed_hyperparameters"
