"""Names of all tables (paper.yaml may name them), and the pseudo-scale of the committed results."""

TABLES: tuple[str, ...] = (
    "runs",
    "curves",
    "evaluations",
    "wall_clock",
    "policy_lag",
    "efficiency",
    "scores",
    "aggregates",
    "profiles",
    "improvement",
    "cells",
    "claims",
    "peer_learning",
    "peer_speed",
    "hyperparameters",
    "milestones",
    "lineage",
    "published",
    "references",
    "departures",
    "problems",
)
"""Tables that `python -m ddrl.analysis aggregate` writes, as `<name>.parquet` and `<name>.csv`."""

SUITE_TABLES: tuple[str, ...] = (
    "systems",
    "coverage",
    "matrix",
    "published_only",
    "claims",
    "cells_by_verdict",
    "compute",
    "throughput",
    "lag",
    "problems",
)
"""Tables that `python -m ddrl.analysis suite` makes from the tables of the papers."""

SUITE_NEEDS: tuple[str, ...] = ("runs", "policy_lag", "cells", "claims", "problems")
"""Tables of each paper that the suite's tables are made from."""

REFERENCE = "reference"
"""Pseudo-scale that plans no run and reports the committed results of `results/reference`."""

CELL_VERDICTS = ("equivalent", "consistent", "below", "above", "inconclusive", "not_comparable", "not_run")
"""The verdicts on published cells; those on claims: `ddrl.papers.claim_verdicts`."""
