"""Computes the facts of a report's first page, from the tables alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import pandas as pd

from ddrl.analysis.runs.run_data import machine
from ddrl.analysis.verdicts.plans import changed_rules
from ddrl.papers.experiments import Experiment
from ddrl.papers.paper import Paper
from ddrl.papers.table_names import REFERENCE

SCALE_NOTES = {
    "smoke": "This scale takes minutes. It shows that everything runs and decides little.",
    "workstation": "A night on one machine: orderings are decided; scores stand beside the published ones.",
    "paper": "The paper's own settings and budget: scores are compared with the published ones.",
    REFERENCE: "Committed results of long runs, made before this report and shown with where each came from.",
}


def summary(
    paper: Paper, experiments: Mapping[str, Experiment], scale: str, tables: Mapping[str, pd.DataFrame]
) -> dict[str, Any]:
    """Return plain data for `summary.json`.

    The facts at the top are about the subject: the reader's own runs, or the reference runs at the pseudo-scale
    `REFERENCE`. `reference` holds the facts of the reference runs beside the reader's own, else None.
    """
    problems = tables["problems"]
    kinds = problems["what"].value_counts()
    return {
        "paper": {
            "key": paper.key,
            "summary": paper.summary,
            "not_read": list(paper.not_read),
            "prices": asdict(paper.prices) if paper.prices else None,
            **paper.citation,
        },
        "scale": scale,
        "scale_note": SCALE_NOTES[scale],
        "subject": subject_of(scale),
        **subject_facts(tables, scale),
        "rules": changed_rules(tables["runs"]["started"].fillna("")),
        "problems": len(problems),
        "problems_by_kind": {str(name): int(kinds[name]) for name in sorted(kinds.index)},
        "experiments": {
            name: {key: getattr(entry, key) for key in ("title", "source", "proxy", "paper_budget", "scored")}
            | {"peers": bool(entry.peers)}
            | {"reason": entry.scales[scale].reason if scale in entry.scales else ""}
            | {"labels": dict(entry.labels), "tuning": [asdict(one) for one in entry.tuning]}
            for name, entry in experiments.items()
        },
        "derived_tables": [
            {"name": table.name, "title": table.title, "note": table.note, "columns": dict(table.columns)}
            for table in paper.derived
        ],
        "figures": [asdict(figure) for figure in paper.figures],
    }


def subject_of(scale: str) -> str:
    """Return the origin of the runs that a report is about."""
    return "reference" if scale == REFERENCE else "run"


def subject_facts(tables: Mapping[str, pd.DataFrame], scale: str) -> dict[str, Any]:
    """Return `facts` of the subject, and as `reference` those of reference runs beside it; None if there are none."""
    beside = scale != REFERENCE and (tables["runs"]["origin"] == "reference").any()
    return facts(tables, subject_of(scale)) | {"reference": facts(tables, "reference") if beside else None}


def facts(tables: Mapping[str, pd.DataFrame], origin: str) -> dict[str, Any]:
    """Return counts, budget, time, hardware and verdicts of one origin, from the tables runs, cells and claims."""
    runs = tables["runs"][tables["runs"]["origin"] == origin]
    budgeted = runs[runs["paper_frames"].notna()]
    stated = int(budgeted["paper_frames"].sum())
    return {
        "runs": len(runs),
        "environments": sorted(set(runs["environment"])),
        "env_frames_total": int(runs["env_frames"].sum()),
        "paper_frames_total": stated or None,
        "budget_ratio": int(budgeted["env_frames"].sum()) / stated if stated else None,
        "seconds_total": float(runs["seconds"].sum()),
        "hardware": sorted({machine(row) for row in runs.to_dict("records")}),
        "sources": sorted({source(row) for row in runs[runs["git_sha"].notna()].to_dict("records")}),
        "algorithm_versions": sorted({f"{r['algorithm']} {r['algorithm_version']}" for r in runs.to_dict("records")}),
        "started": min(runs["started"].dropna(), default=None),
        "finished": max(runs["finished"].dropna(), default=None),
        "packages": sorted(set(runs["packages"])),
        "claims": _counts(tables["claims"], origin),
        "cells": _counts(tables["cells"], origin),
    }


def source(row: Mapping[Any, Any]) -> str:
    """Return the commit that a run was made with."""
    return f"{row['git_sha']}{' with uncommitted changes' if row['git_dirty'] is True else ''}"


def _counts(table: pd.DataFrame, origin: str) -> dict[str, int]:
    counts = table["verdict"][table["origin"] == origin].value_counts()
    return {str(name): int(count) for name, count in sorted(counts.items())}
