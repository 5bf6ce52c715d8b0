"""The facts of a report's first page, from the tables alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from ddrl.analysis.experiments import Experiment
from ddrl.analysis.paper import Paper

SCALE_NOTES = {
    "smoke": "Minutes on any laptop: shows shapes and figures. Scores are not compared with published ones.",
    "workstation": "A night on one machine: orderings are decided; scores stand beside the published ones.",
    "paper": "The paper's own settings and budget: scores are compared with the published ones.",
}


def summary(
    paper: Paper, experiments: Mapping[str, Experiment], scale: str, tables: Mapping[str, pd.DataFrame]
) -> dict[str, Any]:
    """Plain data for `summary.json`."""
    runs = tables["runs"]
    reference = runs[runs["origin"] == "reference"]
    return {
        "paper": {"key": paper.key, "summary": paper.summary, **paper.citation},
        "scale": scale,
        "scale_note": SCALE_NOTES[scale],
        **_facts(runs[runs["origin"] == "run"], tables, "run"),
        "reference": _facts(reference, tables, "reference") if len(reference) else None,
        "experiments": {
            name: {
                "title": entry.title,
                "source": entry.source,
                "proxy": entry.proxy,
                "reason": entry.scales[scale].reason,
            }
            for name, entry in experiments.items()
        },
        "figures": [
            {
                "name": figure.name,
                "caption": figure.caption,
                "alt": figure.alt,
                "tables": list(figure.tables),
                "experiments": list(figure.experiments),
                "width": figure.width,
            }
            for figure in paper.figures
        ],
    }


def _facts(runs: pd.DataFrame, tables: Mapping[str, pd.DataFrame], origin: str) -> dict[str, Any]:
    """Counts, budget, time, hardware and verdicts of one origin."""
    budgeted = runs[runs["paper_frames"].notna()]
    stated = int(budgeted["paper_frames"].sum())
    return {
        "runs": len(runs),
        "environments": sorted(set(runs["environment"])),
        "env_frames_total": int(runs["env_frames"].sum()),
        "paper_frames_total": stated or None,
        "budget_ratio": int(budgeted["env_frames"].sum()) / stated if stated else None,
        "seconds_total": float(runs["seconds"].sum()),
        "hardware": sorted({_machine(row) for row in runs.to_dict("records")}),
        "git_sha": sorted({str(sha) for sha in runs["git_sha"].dropna()}),
        "git_dirty": bool(runs["git_dirty"].fillna(False).astype(bool).any()),
        "algorithm_versions": sorted({f"{r['algorithm']} {r['algorithm_version']}" for r in runs.to_dict("records")}),
        "started": min(runs["started"].dropna(), default=None),
        "finished": max(runs["finished"].dropna(), default=None),
        "packages": sorted(set(runs["packages"])),
        "claims": _counts(tables["claims"], origin),
        "cells": _counts(tables["cells"], origin),
    }


def _machine(row: Mapping[Any, Any]) -> str:
    gpu = f", {row['gpu']}" if isinstance(row["gpu"], str) else ", no GPU"
    return f"{row['cpu']}, {row['cores']} cores, {row['memory_gib']:g} GiB{gpu}"


def _counts(table: pd.DataFrame, origin: str) -> dict[str, int]:
    counts = table["verdict"][table["origin"] == origin].value_counts()
    return {str(name): int(count) for name, count in sorted(counts.items())}
