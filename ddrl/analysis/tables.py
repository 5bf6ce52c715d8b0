"""From run directories to every table of `ddrl.analysis.TABLES`, written atomically as Parquet and CSV."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ddrl.analysis import TABLES
from ddrl.analysis.aggregate import aggregates, scores
from ddrl.analysis.claims import claims
from ddrl.analysis.curves import KEYS, RunData, load_reference, load_run, long_frame, on_common_grid
from ddrl.analysis.experiments import Departure, Experiment, Run, load_experiments
from ddrl.analysis.paper import Paper, load_deviations, load_paper
from ddrl.analysis.published import load_published, load_references, matching
from ddrl.analysis.summary import summary
from ddrl.analysis.verdicts import BOOKKEEPING, cells, flatten, same
from ddrl.errors import UserError

_RUN_FIELDS = (
    "env_frames",
    "agent_steps",
    "updates",
    "episodes",
    "seconds",
    "resumes",
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


@dataclass(frozen=True)
class Evidence:
    """Every table by name, and the first page's facts."""

    tables: Mapping[str, pd.DataFrame]
    summary: Mapping[str, Any]


def gather(runs: Sequence[Run], results: Path, *, allow_missing: bool = False) -> list[RunData]:
    """The finished runs of a scale. Raises `UserError` for a missing one (unless allowed) or a damaged one."""
    found = []
    for run in runs:
        directory = run.directory(results)
        if allow_missing and not (directory / "run.json").exists():
            continue
        found.append(load_run(directory, "run", run.paper, run.experiment, run.variant))
    return found


def build(
    paper_dir: Path, scale: str, planned: Sequence[Run], results: Path, *, allow_missing: bool = False
) -> Evidence:
    """Reads the planned runs and the reference runs, and makes every table."""
    paper, experiments = load_paper(paper_dir), load_experiments(paper_dir)
    data = gather(planned, results, allow_missing=allow_missing)
    data += load_reference(results / "reference" / paper.key, paper.key)
    if not data:
        raise UserError(f"{results}: no run of {paper.key} at scale {scale} has finished")
    for run in data:
        if run.experiment not in experiments or run.variant not in experiments[run.experiment].variants:
            raise UserError(
                f"{results}: {run.origin} {run.experiment}/{run.variant} is not in {paper_dir}/experiments.yaml"
            )
    published, references = load_published(paper_dir), load_references(paper)
    table = scores(data, references)
    bootstrap = paper.evidence
    tables = {
        "runs": run_table(data, experiments),
        "curves": on_common_grid(long_frame(data, ["episode_return"]), ["episode_return"]),
        "policy_lag": on_common_grid(
            long_frame(data, ["policy_lag_mean", "policy_lag_max"]), ["policy_lag_mean", "policy_lag_max"]
        ),
        "scores": table.assign(variant_label=_labels(table, experiments)),
        "aggregates": aggregates(table, seed=bootstrap.bootstrap_seed, resamples=bootstrap.resamples),
        "cells": cells(paper, experiments, published, references, table, data),
        "claims": claims(paper, experiments, table),
        "hyperparameters": hyperparameter_table(paper, data),
        "milestones": milestone_table(paper, data),
        "published": used_published(paper, published),
        "references": references,
        "departures": departure_table(paper_dir, scale, planned, experiments),
    }
    for name in ("curves", "policy_lag"):
        tables[name] = tables[name].assign(variant_label=_labels(tables[name], experiments))
    ordered = {name: tables[name] for name in TABLES}
    return Evidence(ordered, summary(paper, experiments, scale, ordered))


def _labels(table: pd.DataFrame, experiments: Mapping[str, Experiment]) -> list[str]:
    pairs = zip(table["experiment"], table["variant"], strict=True)
    return [experiments[experiment].labels[variant] for experiment, variant in pairs]


def run_table(runs: Sequence[RunData], experiments: Mapping[str, Experiment]) -> pd.DataFrame:
    """One row per run: `KEYS`, counts, budget beside the paper's, provenance."""
    rows = []
    for run in runs:
        experiment, manifest = experiments[run.experiment], run.manifest
        stated = None if experiment.proxy else int(experiment.base["env_frames"])
        frames = int(manifest["env_frames"])
        row = run.keys() | {"variant_label": experiment.labels[run.variant], "experiment_title": experiment.title}
        row |= {name: manifest.get(name) for name in _RUN_FIELDS}
        row |= {name: manifest["hardware"].get(name) for name in _HARDWARE}
        row |= {
            "algorithm": run.config["algorithm"],
            "precision": run.config.get("precision"),
            "paper_frames": stated,
            "budget_ratio": frames / stated if stated else None,
            "frames_per_second": frames / max(float(manifest["seconds"]), 1e-9),
            "packages": ", ".join(f"{name} {version}" for name, version in manifest["packages"].items() if version),
        }
        rows.append(row)
    table = pd.DataFrame(rows)
    return table.astype({"paper_frames": "Int64", "budget_ratio": "float64"}).sort_values(
        ["origin", *KEYS[1:]], ascending=[False, *[True] * (len(KEYS) - 1)], ignore_index=True
    )


def hyperparameter_table(paper: Paper, runs: Sequence[RunData]) -> pd.DataFrame:
    """What the paper states beside the distinct values of our runs: experiment, name, paper, ours, source, changed."""
    rows = []
    for stated in paper.hyperparameters:
        configs = [flatten(run.config) for run in runs if run.experiment == stated.experiment and run.origin == "run"]
        values = list(dict.fromkeys(_text(config.get(stated.name)) for config in configs))
        agree = all(same(config.get(stated.name), stated.paper) for config in configs)
        rows.append(
            {
                "experiment": stated.experiment,
                "name": stated.name.removeprefix("hyperparameters."),
                "paper": _text(stated.paper),
                "ours": ", ".join(values),
                "source": stated.source,
                "changed": bool(configs) and stated.paper is not None and not agree,
            }
        )
    return pd.DataFrame(rows, columns=["experiment", "name", "paper", "ours", "source", "changed"])


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}".replace(",", "\u00a0") if isinstance(value, int) and value >= 10_000 else str(value)


def milestone_table(paper: Paper, runs: Sequence[RunData]) -> pd.DataFrame:
    """Where the recorded training return first reaches a stated threshold: `KEYS`, threshold, env_frames, seconds."""
    rows = []
    for run in runs:
        threshold = paper.milestones.get(run.environment)
        if threshold is None:
            continue
        returns = run.curves[run.curves["metric"] == "episode_return"].sort_values("env_frames")
        reached = returns[returns["value"] >= threshold]
        first = reached.iloc[0] if len(reached) else None
        rows.append(
            run.keys()
            | {
                "threshold": threshold,
                "env_frames": None if first is None else int(first["env_frames"]),
                "seconds": None if first is None else float(first["seconds"]),
            }
        )
    table = pd.DataFrame(rows, columns=[*KEYS, "threshold", "env_frames", "seconds"])
    return table.astype({"env_frames": "Int64", "seconds": "float64", "threshold": "float64"})


def used_published(paper: Paper, published: pd.DataFrame) -> pd.DataFrame:
    """The published rows that a rule of the paper names, with the experiment and variant they are compared with."""
    parts = []
    for rule in paper.cells:
        rows = matching(published, rule.published)
        pattern = rule.environment or ""
        parts.append(
            rows.assign(
                experiment=rule.experiment,
                compared_variant=rule.variant or "",
                environment=[pattern.replace("{task}", task) for task in rows["task"]],
            )
        )
    return pd.concat(parts, ignore_index=True)


def departure_table(
    paper_dir: Path, scale: str, planned: Sequence[Run], experiments: Mapping[str, Experiment]
) -> pd.DataFrame:
    """Known departures: DEVIATIONS.md, then what experiments.yaml sets at this scale, each with its reason."""
    rows = [vars(deviation) | {"where": "DEVIATIONS.md"} for deviation in load_deviations(paper_dir)]
    for name, experiment in experiments.items():
        runs = [run for run in planned if run.experiment == name]
        departures = {id(departure): departure for run in runs for departure in run.departures}.values()
        rows += [
            _departure(experiment, departure, key, runs, scale)
            for departure in departures
            for key in departure.settings
            if _matters(key)
        ]
    return pd.DataFrame(rows, columns=["what", "paper", "ours", "reason", "flag", "where"])


def _matters(key: str) -> bool:
    """Whether a reader should know: not how often something is recorded."""
    return key.split(".")[0] not in ("recording", "checkpoint", "device") and key != "evaluation.period_frames"


def _departure(
    experiment: Experiment, departure: Departure, key: str, runs: Sequence[Run], scale: str
) -> dict[str, str]:
    """One setting that differs from the paper's, with its reason."""
    concerned = [run for run in runs if departure in run.departures]
    stated = {_text(flatten(experiment.paper_setting(run.variant, run.environment)).get(key)) for run in concerned}
    for_whom = (
        f" ({', '.join(experiment.labels[name].lower() for name in departure.variants)})" if departure.variants else ""
    )
    is_budget = key == "env_frames"
    if is_budget:
        flag = "" if experiment.proxy else "reduced_budget"
    else:
        flag = "" if key.split(".")[0] in BOOKKEEPING else "changed_hyperparameters"
    unknown = stated == {"none"} or (is_budget and experiment.proxy is not None)
    return {
        "what": key.removeprefix("hyperparameters.") + for_whom,
        "paper": "not printed" if unknown else ", ".join(sorted(stated)),
        "ours": _text(departure.settings[key]),
        "reason": departure.reason,
        "flag": flag,
        "where": f"{experiment.name}, scale {scale}",
    }


def write(evidence: Evidence, output: Path) -> list[Path]:
    """Writes `<name>.parquet`, `<name>.csv` and summary.json, each atomically; an empty CSV cell is a missing value."""
    output.mkdir(parents=True, exist_ok=True)
    written = []
    for name, table in evidence.tables.items():
        parquet, comma = output / f"{name}.parquet", output / f"{name}.csv"
        temporary = output / f".{name}.{os.getpid()}.tmp"
        table.to_parquet(temporary, index=False)
        os.replace(temporary, parquet)
        table.to_csv(temporary, index=False, lineterminator="\n")
        os.replace(temporary, comma)
        written += [parquet, comma]
    temporary = output / f".summary.{os.getpid()}.tmp"
    temporary.write_text(json.dumps(evidence.summary, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(temporary, output / "summary.json")
    return [*written, output / "summary.json"]


def read(folder: Path, names: Sequence[str]) -> dict[str, pd.DataFrame]:
    """The named tables. Raises `UserError` for a missing one."""
    missing = [name for name in names if not (folder / f"{name}.parquet").exists()]
    if missing:
        raise UserError(f"{folder / missing[0]}.parquet: no such file; run 'python -m ddrl.analysis aggregate' first")
    return {name: pd.read_parquet(folder / f"{name}.parquet") for name in names}
