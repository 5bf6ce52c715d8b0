"""Makes the tables of the suite report from the tables of every paper. Reads no run."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ddrl.analysis.runs.problems import COLUMNS as PROBLEM_COLUMNS
from ddrl.analysis.runs.problems import portable
from ddrl.analysis.runs.run_data import LARGEST, LAYOUT, layout_of, machine
from ddrl.analysis.tables.build import PaperTables
from ddrl.analysis.tables.summary import SCALE_NOTES, facts, subject_facts, subject_of
from ddrl.analysis.tables.systems import (
    Tables,
    algorithm_module,
    coverage,
    matrix,
    published_only,
    read_papers,
    systems,
)
from ddrl.analysis.verdicts.plans import changed_rules
from ddrl.errors import UserError
from ddrl.papers.declared import declared
from ddrl.papers.discarded import read_ledger
from ddrl.papers.experiments import Roots, folder_of, system_label, system_of
from ddrl.papers.paper import Paper, load_paper
from ddrl.papers.table_names import SUITE_TABLES
from ddrl.system.files import read_file
from ddrl.system.wording import shortened

_RUN_GROUP = ["origin", "paper", "experiment", "variant", "variant_label", "environment", "env_label"]
_SYSTEM = ["paper", "origin", "experiment", "variant", "environment", "system", "network", "precision", *LAYOUT]
_BENCH = ["bound", "ratio", "policy_lag_mean", "limiting_part", "file"]
"""Columns of table `throughput` that only benchmarks have."""


def build_suite(root: Roots, results: Path, scale: str, *, folder: Path, only: Sequence[str] | None) -> PaperTables:
    """Return every table of `SUITE_TABLES`, from `folder/<paper>/tables`. Raise UserError if no paper has tables."""
    papers, paper_problems = read_papers(root, folder, only)
    subject, joined = subject_of(scale), {name: _joined(papers, name) for name in ("runs", "claims", "cells")}
    runs = joined["runs"]
    by_verdict = joined["cells"].groupby(["paper", "experiment", "origin", "verdict"], sort=True, as_index=False)
    bench, bench_problems = _benchmarks(results)
    problems = [*_joined(papers, "problems").to_dict("records"), *paper_problems, *bench_problems]
    # Problems of tables and benchmarks have no seed.
    types = {name: "Int64" if name == "seed" else "string" for name in PROBLEM_COLUMNS}
    grid = matrix(root, scale, papers)
    tables = {
        "systems": systems(root, list(papers)),
        "coverage": coverage(root, papers, grid, subject),
        "matrix": grid,
        "published_only": published_only(root),
        "claims": joined["claims"],
        "cells_by_verdict": by_verdict.agg(cells=("cell", "size")),
        "compute": _compute(runs),
        "throughput": _throughput(runs, bench),
        "lag": _lag(runs, _joined(papers, "policy_lag")),
        "problems": pd.DataFrame(problems, columns=PROBLEM_COLUMNS).astype(types),
    }
    summary = {
        "scale": scale,
        "scale_note": SCALE_NOTES[scale],
        "subject": subject,
        "papers": [_paper_facts(load_paper(folder_of(paper, root)), own, subject) for paper, own in papers.items()],
        "papers_without_tables": [row["paper"] for row in paper_problems],
        **subject_facts(joined, scale),
        "discarded": len(read_ledger(results)),
        "rules": changed_rules(runs["started"].fillna("")),
        "systems": len(tables["systems"]),
        "problems": len(tables["problems"]),
    }
    return PaperTables({name: tables[name] for name in SUITE_TABLES}, summary)


def _joined(tables: Tables, name: str) -> pd.DataFrame:
    """Return one table of all papers, with column `paper`; empty tables do not affect the types of columns."""
    parts = [own[name] if "paper" in own[name] else own[name].assign(paper=paper) for paper, own in tables.items()]
    filled = [part for part in parts if len(part)] or parts[:1]
    joined = pd.concat(filled, ignore_index=True)
    return joined[["paper", *(column for column in joined.columns if column != "paper")]]


def _paper_facts(paper: Paper, tables: Mapping[str, pd.DataFrame], subject: str) -> dict[str, Any]:
    own = facts(tables, subject)
    kept = ("runs", "env_frames_total", "budget_ratio", "seconds_total", "claims", "cells")
    citation = {key: paper.citation.get(key) for key in ("title", "short", "year", "url")}
    return {"key": paper.key, **citation, **{key: own[key] for key in kept}, "problems": len(tables["problems"])}


def _compute(runs: pd.DataFrame) -> pd.DataFrame:
    """Return what the runs of each paper and origin took: frames, hours, on which machines, when."""
    rows = []
    for (paper, origin), part in runs.groupby(["paper", "origin"], sort=True):
        seconds = float(part["seconds"].sum())
        rows.append(
            {
                "paper": paper,
                "origin": origin,
                "runs": len(part),
                "env_frames": int(part["env_frames"].sum()),
                "hours": seconds / 3600,
                "frames_per_second": float(part["env_frames"].sum()) / seconds if seconds > 0 else math.nan,
                "machines": "; ".join(sorted({machine(row) for row in part.to_dict("records")})),
                "started": min(part["started"].dropna(), default=None),
                "finished": max(part["finished"].dropna(), default=None),
            }
        )
    return pd.DataFrame(rows)


def _throughput(runs: pd.DataFrame, bench: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return frames per second of our runs (median, lowest and highest of a group) and of committed benchmarks."""
    machines = [machine(row) for row in runs.to_dict("records")]
    named = _by_system(runs).assign(source="runs", system=runs["algorithm"].map(_system_name), machine=machines)
    groups = named.groupby(["source", *_SYSTEM, "machine"], sort=True, dropna=False)["frames_per_second"]
    ours = groups.agg(runs="size", frames_per_second="median", lowest="min", highest="max").reset_index()
    table = pd.DataFrame([*ours.to_dict("records"), *bench], columns=[*ours.columns, *_BENCH])
    counts = ("num_actors", "envs_per_actor", "learner_threads", "parameter_delay", "runs")
    numbers = ("bound", "ratio", "policy_lag_mean")
    return table.astype(dict.fromkeys(counts, "Int64") | dict.fromkeys(numbers, "float64"))


def _by_system(table: pd.DataFrame) -> pd.DataFrame:
    """Return the settings of a sweep under the name of their system: they share speed, lag and layout."""
    labels = [system_label(*pair) for pair in zip(table["variant"], table["variant_label"], strict=True)]
    return table.assign(variant=table["variant"].map(system_of), variant_label=labels)


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"frames_per_second": statistics.median(values), "lowest": min(values), "highest": max(values)}


def _system_name(algorithm: str) -> str:
    return str(declared(algorithm_module(algorithm), "SYSTEM")["name"])


def _benchmarks(results: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return rows of table `throughput` from `results/reference/bench`, and problems of unusable files."""
    rows, problems = [], []
    for path in sorted((results / "reference" / "bench").glob("*.json")):
        file = portable(path, results)
        try:
            found = json.loads(read_file(path).decode())
            several = dict(found).get("measurements", [{}])
            rows += [_benchmark(found | one) | {"file": file} for one in several]
        except (OSError, ValueError, RecursionError, KeyError, TypeError, UserError) as error:
            reason = f"has no {error}" if isinstance(error, KeyError) else shortened(error)
            problems.append({"origin": "bench", "paper": "", "file": file, "what": "damaged", "detail": reason})
    return rows, problems


def _benchmark(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of one measurement. Raise ValueError if its numbers are missing or not finite.

    With a GPU a measurement has no bound and no ratio to it.
    """
    config, topology = found["config"], found["config"]["topology"]
    repeats = [float(repeat["training"]) for repeat in found["repeats"]]
    lags = [float(repeat["policy_lag_mean"]) for repeat in found["repeats"]]
    bound = [found["median_bound_frames_per_second"], found["median_ratio"]]
    if not (found["hardware"].get("gpu") and bound == [None, None]):
        bound = [float(value) for value in bound]
    finite = (*repeats, *lags, *(value for value in bound if value is not None))
    if not repeats or not all(abs(value) <= LARGEST for value in finite):
        raise ValueError("repeats must be finite numbers, and at least one")
    return {
        "source": "bench",
        **dict.fromkeys(("paper", "experiment", "variant"), ""),
        "origin": "reference",
        "environment": config["environment"]["name"],
        "system": _system_name(config["algorithm"]),
        "network": config["hyperparameters"].get("network"),
        "precision": config.get("precision"),
        **layout_of(topology),
        "machine": machine(found["hardware"]),
        "runs": len(repeats),
        **_spread(repeats),
        "bound": bound[0],
        "ratio": bound[1],
        "policy_lag_mean": statistics.median(lags),
        "limiting_part": str(found["limiting_part"]),
    }


def _lag(runs: pd.DataFrame, policy_lag: pd.DataFrame) -> pd.DataFrame:
    """Return policy lag in updates per group: lag_mean over training, then over runs; lag_max of any batch."""
    layouts = {tuple(row[name] for name in _RUN_GROUP): row for row in _by_system(runs).to_dict("records")}
    rows = []
    for names, part in _by_system(policy_lag.assign(setting=policy_lag["variant"])).groupby(_RUN_GROUP, sort=True):
        group, layout = dict(zip(_RUN_GROUP, names, strict=True)), layouts[names]
        rows.append(
            group
            | {name: layout[name] for name in LAYOUT}
            | {
                "runs": len(part[["setting", "seed"]].drop_duplicates()),
                "lag_mean": float(part.groupby(["setting", "seed"])["policy_lag_mean"].mean().mean()),
                "lag_max": float(part["policy_lag_max"].max()),
            }
        )
    return pd.DataFrame(rows, columns=[*_RUN_GROUP, *LAYOUT, "runs", "lag_mean", "lag_max"])
