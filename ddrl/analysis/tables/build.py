"""Makes every table of `ddrl.papers.table_names.TABLES` from run directories, and writes it as Parquet and CSV."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from ddrl.analysis.runs.by_task import by_task
from ddrl.analysis.runs.efficiency import efficiency_table
from ddrl.analysis.runs.flags import version_flag
from ddrl.analysis.runs.grids import on_common_clock, on_common_grid
from ddrl.analysis.runs.problems import Gathered, Problem, gather, problem_table
from ddrl.analysis.runs.run_data import KEYS, RunData
from ddrl.analysis.tables.peer_speed import as_table, peer_speed
from ddrl.analysis.tables.runs import (
    departure_table,
    hyperparameter_table,
    lineage_table,
    milestone_table,
    reference_departure_table,
    run_table,
)
from ddrl.analysis.tables.scores import aggregates, improvement, profiles, scores, with_scores
from ddrl.analysis.tables.summary import subject_of, summary
from ddrl.analysis.verdicts.cells import cells
from ddrl.analysis.verdicts.claims import claims
from ddrl.analysis.verdicts.peer_learning import peer_learning
from ddrl.analysis.verdicts.planned_seeds import Seat
from ddrl.analysis.verdicts.plans import with_plans
from ddrl.errors import UserError
from ddrl.papers.discarded import counts, read_ledger
from ddrl.papers.experiments import Experiment, PlannedRun, load_experiments
from ddrl.papers.paper import Paper, load_paper
from ddrl.papers.peer_pairs import pairs
from ddrl.papers.published import load_published, load_references, matching
from ddrl.papers.table_names import REFERENCE, TABLES
from ddrl.system.csv_cells import table_as_csv
from ddrl.system.files import read_file, replacing, write_whole
from ddrl.system.parquet import read_frame
from ddrl.system.wording import shortened


@dataclass(frozen=True)
class PaperTables:
    """Every table by name, and the first page's facts."""

    tables: Mapping[str, pd.DataFrame]
    summary: Mapping[str, Any]


def build(
    paper_dir: Path, scale: str, planned: Sequence[PlannedRun], results: Path, *, allow_missing: bool = False
) -> PaperTables:
    """Make every table of a paper and the facts of its first page. Raise UserError as `make`."""
    tables = make(TABLES, paper_dir, scale, planned, results, allow_missing=allow_missing)
    return with_facts(tables, paper_dir, scale, results)


def with_facts(tables: Mapping[str, pd.DataFrame], paper_dir: Path, scale: str, results: Path) -> PaperTables:
    """Return all tables of a paper with the facts of its report, which follow from them and from the ledger of runs."""
    facts = summary(load_paper(paper_dir), load_experiments(paper_dir), scale, tables)
    return PaperTables(tables, facts | {"discarded": counts(read_ledger(results), paper_dir.name)})


def make(
    names: Iterable[str],
    paper_dir: Path,
    scale: str,
    planned: Sequence[PlannedRun],
    results: Path,
    *,
    allow_missing: bool = False,
) -> dict[str, pd.DataFrame]:
    """Read the planned runs and the reference runs (which alone are reported at `REFERENCE`), and make `names` of them.

    A run that cannot be used is a row of table `problems` and of no other. Raise UserError for a planned run that has
    not finished (unless allowed), and if no run is left.
    """
    paper, experiments = load_paper(paper_dir), load_experiments(paper_dir)
    found = gather(paper.key, planned, results, experiments, allow_missing=allow_missing)
    data = list(found.runs)
    if not data:
        where = results / "reference" / paper.key if scale == REFERENCE else results
        raise UserError(f"{where}: no run of {paper.key} at scale {scale} has finished")
    published, references = load_published(paper_dir), load_references(paper)
    parts = by_task(data)
    counted = with_scores(parts, experiments)
    every = scores(parts, references)  # verdicts on speeds need a row of each run too
    table = every.merge(pd.DataFrame([run.keys() for run in counted], columns=KEYS), on=list(KEYS), validate="1:1")
    speeds = _peer_speeds(paper, experiments, results, scale)
    drawn = {"seed": paper.evidence.bootstrap_seed, "resamples": paper.evidence.resamples}
    reference = scale == REFERENCE
    makers: dict[str, Callable[[], pd.DataFrame]] = {
        "runs": lambda: run_table(data, experiments),
        "curves": lambda: _on_grid(parts, ["episode_return"], experiments),
        "evaluations": lambda: _on_grid(_evaluated_often(parts), ["evaluation_return"], experiments),
        "wall_clock": lambda: _labelled(on_common_clock(parts), experiments),
        "policy_lag": lambda: _on_grid(data, ["policy_lag_mean", "policy_lag_max"], experiments),
        "efficiency": lambda: efficiency_table(data, experiments, paper.prices),
        "scores": lambda: _labelled(_flagged(table, parts, paper), experiments),
        "aggregates": lambda: aggregates(table, **drawn),
        "profiles": lambda: profiles(table),
        "improvement": lambda: improvement(table),
        "cells": lambda: _verdicts(cells(paper, experiments, published, references, every, parts), "cell", scale),
        "claims": lambda: _verdicts(
            with_plans(claims(paper, experiments, every, parts, scale, _unusable(found)), paper, scale, parts),
            "claim",
            scale,
        ),
        "peer_learning": lambda: _verdicts(peer_learning(paper, experiments, every, parts), "pair", scale),
        "peer_speed": lambda: speeds[0],
        "hyperparameters": lambda: hyperparameter_table(paper, data, subject_of(scale)),
        "milestones": lambda: milestone_table(paper, counted),
        "lineage": lambda: _labelled(lineage_table(data), experiments),
        "published": lambda: used_published(paper, published),
        "references": lambda: references,
        "departures": lambda: (
            reference_departure_table(paper_dir, data, experiments)
            if reference
            else departure_table(paper_dir, scale, planned, experiments)
        ),
        "problems": lambda: problem_table([*found.problems, *speeds[1]], results),
    }
    return {name: makers[name]() for name in names}


def _peer_speeds(
    paper: Paper, experiments: Mapping[str, Experiment], results: Path, scale: str
) -> tuple[pd.DataFrame, list[Problem]]:
    """Return the measured speeds beside peers, and what is wrong with their files; none of a paper without peers."""
    if any(map(pairs, experiments.values())):
        return peer_speed(paper.key, results, scale)
    return as_table([]), []


def _unusable(found: Gathered) -> set[Seat]:
    """Return the reference runs that are there and cannot be used."""
    return {
        (one.experiment, one.variant, one.environment, one.seed)
        for one in found.problems
        if one.origin == REFERENCE and one.file.parent.is_dir()
    }


def _evaluated_often(runs: Iterable[RunData]) -> list[RunData]:
    """Return the runs that were evaluated while they trained too, and not at their end alone."""
    return [run for run in runs if run.records("evaluation_return")["env_frames"].nunique() > 1]


def _on_grid(runs: Iterable[RunData], metrics: list[str], experiments: Mapping[str, Experiment]) -> pd.DataFrame:
    return _labelled(on_common_grid(runs, metrics), experiments)


def _labelled(table: pd.DataFrame, experiments: Mapping[str, Experiment]) -> pd.DataFrame:
    pairs = zip(table["experiment"], table["variant"], strict=True)
    return table.assign(variant_label=[experiments[experiment].labels[variant] for experiment, variant in pairs])


def _flagged(scores: pd.DataFrame, runs: Sequence[RunData], paper: Paper) -> pd.DataFrame:
    """Return `scores` with column flags: env_version_gap if a run's environment has another version."""
    stated = list(paper.protocols.values())
    gaps = {"flags": [version_flag([str(run.manifest["protocol"])], stated) for run in runs]}
    flags = pd.DataFrame([run.keys() for run in runs]).assign(**gaps)
    return scores.merge(flags, on=list(KEYS), how="left", validate="1:1")


def _verdicts(table: pd.DataFrame, key: str, scale: str) -> pd.DataFrame:
    """Return all verdicts; at `REFERENCE` those on reference runs alone, and `not_run` of a cell or claim without."""
    if scale != REFERENCE:
        return table
    decided = table["origin"] == "reference"
    return table[decided | ~table[key].isin(table[key][decided])].assign(origin="reference").reset_index(drop=True)


def used_published(paper: Paper, published: pd.DataFrame) -> pd.DataFrame:
    """Return the published rows that a rule or a claim names, with the experiment and variant compared with them.

    A row that only a claim names has neither variant nor environment.
    """
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
    named = {cell for part in parts for cell in part["cell"]}
    for claim in paper.claims:
        rows = published[published["cell"].isin(set(claim.published) - named)]
        if len(rows):
            named |= set(rows["cell"])
            parts.append(rows.assign(experiment=claim.experiment, compared_variant="", environment=""))
    if not parts:
        return published.iloc[:0].assign(experiment="", compared_variant="", environment="")
    return pd.concat(parts, ignore_index=True)


def write(tables: Mapping[str, pd.DataFrame], facts: Mapping[str, Any], output: Path) -> list[Path]:
    """Write `<name>.parquet`, `<name>.csv` and summary.json, each atomically.

    An empty CSV cell is a missing value; texts in CSV are marked as `ddrl.system.csv_cells` says.
    """
    written = [path for name, table in tables.items() for path in write_table(table, output, name)]
    write_whole(output / "summary.json", (json.dumps(facts, indent=1, ensure_ascii=False) + "\n").encode())
    return [*written, output / "summary.json"]


def write_table(table: pd.DataFrame, output: Path, name: str) -> list[Path]:
    """Write `<name>.parquet` and `<name>.csv`, each atomically."""
    output.mkdir(parents=True, exist_ok=True)
    parquet, comma = output / f"{name}.parquet", output / f"{name}.csv"
    with replacing(parquet) as temporary:
        table.to_parquet(temporary, index=False)
    write_whole(comma, table_as_csv(table).encode())
    return [parquet, comma]


def read(folder: Path, names: Sequence[str]) -> dict[str, pd.DataFrame]:
    """Read the named tables. Raise `UserError` for a missing or damaged one."""
    found = {}
    for name in names:
        path = folder / f"{name}.parquet"
        try:
            found[name] = read_frame(read_file(path))
        except FileNotFoundError:
            raise UserError(f"{path}: no such file; run 'python -m ddrl.analysis aggregate' first") from None
        except (pa.ArrowException, OSError, ValueError) as error:
            reason = shortened(str(error).replace(str(path), path.name))
            raise UserError(f"{path}: damaged: {reason}; run 'python -m ddrl.analysis aggregate' again") from None
    return found
