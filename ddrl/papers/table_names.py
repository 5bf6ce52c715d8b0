"""The names of every table, which paper.yaml may name, and the pseudo-scale of committed results."""

TABLES: tuple[str, ...] = (
    "runs",
    "curves",
    "wall_clock",
    "policy_lag",
    "efficiency",
    "scores",
    "aggregates",
    "profiles",
    "improvement",
    "cells",
    "claims",
    "hyperparameters",
    "milestones",
    "lineage",
    "published",
    "references",
    "departures",
    "problems",
)
"""Every table `python -m ddrl.analysis aggregate` writes, as `<name>.parquet` and `<name>.csv`."""

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
"""Every table `python -m ddrl.analysis suite` writes, from the tables of the papers."""

SUITE_NEEDS: tuple[str, ...] = ("runs", "policy_lag", "cells", "claims", "problems")
"""The tables of each paper that the suite's tables are made from."""

REFERENCE = "reference"
"""The pseudo-scale that plans no run and takes the committed results of `results/reference` as its subject."""
