"""From curves to evidence: tables, verdicts and figures. No torch here, and no pandas in this file."""

TABLES: tuple[str, ...] = (
    "runs",
    "curves",
    "policy_lag",
    "scores",
    "aggregates",
    "cells",
    "claims",
    "hyperparameters",
    "milestones",
    "published",
    "references",
    "departures",
)
"""Every table `python -m ddrl.analysis aggregate` writes, as `<name>.parquet` and `<name>.csv`."""
