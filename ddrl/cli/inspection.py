"""Checks of finished runs, which change nothing (`ddrl verify`)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from ddrl.analysis.runs.run_data import LARGEST, read_curves, read_manifest
from ddrl.environments.base import registry
from ddrl.errors import UserError
from ddrl.population.results import problems as lineage_problems
from ddrl.regression.checks import Check, CheckOutcome, timed
from ddrl.system.files import below
from ddrl.training.builder import evaluated_environment
from ddrl.training.config.run_config import RunConfig, fingerprint_of, load_run_config, parse_run_config
from ddrl.training.records.recorder import COUNTS
from ddrl.training.records.task_scores import metric_of


def verify(root: Path) -> Iterator[Check]:
    """Check that each finished run below `root` is whole and agrees with its manifest; follow links.

    A folder that cannot be read is a failed check. Raise UserError where `root` is no folder or holds no finished run.
    """
    if not root.is_dir():
        raise UserError(f"{root}: no such folder")
    lost: list[tuple[Path, OSError]] = []
    manifests = below(root, "run.json", lambda path, error: lost.append((path, error)))
    if not manifests:
        unseen = "".join(f"; {path}: {error.strerror}" for path, error in lost)
        raise UserError(f"{root}: holds no finished run (no run.json){unseen}")
    for path, error in lost:
        yield timed(str(path), partial(CheckOutcome, False, f"not looked into: {error.strerror}"))
    for path in manifests:
        yield timed(str(path.parent), partial(_outcome, path.parent))


def _outcome(run: Path) -> CheckOutcome:
    found = tuple(problems(run))
    return CheckOutcome(not found, found[0] if found else "whole", found[1:])


def problems(run: Path) -> Iterator[str]:
    """Return what is wrong with a finished run, a line for each problem."""
    try:
        record = read_manifest(run / "run.json")
        config = parse_run_config(record["config"], where=str(run / "run.json"))
        table = read_curves(run / "curves.parquet")
        stated = load_run_config(run / "config.json")
    except (OSError, ValueError, UserError) as error:
        yield f"cannot be read: {' '.join(str(error).split())}"
        return
    if record.get("fingerprint") != (expected := fingerprint_of(record["config"])):
        yield f"run.json: fingerprint {record.get('fingerprint')} is not that of its configuration ({expected})"
    if stated != config:
        yield "config.json differs from the configuration in run.json"
    if lost := record.get("records_lost_bytes"):
        yield f"run.json: {lost:,} bytes of records were lost while it trained; the curves have a gap"
    yield from _curve_problems(table, record, config)
    if config.population:
        yield from lineage_problems(run, config.population.size)


def _curve_problems(table: pd.DataFrame, record: dict[str, Any], config: RunConfig) -> Iterator[str]:
    for name in (*COUNTS, "seconds"):
        if not table[table.metric == "episodes"][name].is_monotonic_increasing:
            yield f"curves.parquet: {name} runs backwards"
    single = table[~table.metric.str.startswith("evaluation_")]
    if (twice := single[single.duplicated(["env_frames", "metric"])]).size:
        first = twice.iloc[0]
        yield f"curves.parquet: metric '{first.metric}' has two values at {first.env_frames} env_frames"
    if not (table.value.abs() <= LARGEST).all():
        yield f"curves.parquet: holds values that are not finite, or beyond {LARGEST:g}"
    if record["env_frames"] < config.env_frames:
        yield f"run.json: {record['env_frames']:,} frames, below the budget of {config.env_frames:,}"
    tasks, wanted = registry.tasks_of(evaluated_environment(config)["name"]), config.evaluation.final_episodes
    for metric in [metric_of("evaluation_return", task) for task in tasks] if len(tasks) > 1 else ["evaluation_return"]:
        final = table[(table.metric == metric) & (table.env_frames == record["env_frames"])]
        if len(final) != wanted:
            yield f"curves.parquet: {len(final)} final episodes ({metric}); the configuration asks for {wanted}"
