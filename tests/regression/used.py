"""Which algorithms the replications use: those have committed results, which golden curves and planted faults guard."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from ddrl.papers.expansion import expand
from ddrl.papers.experiments import papers

REPLICATIONS = Path(__file__).parents[2] / "replications"


@cache
def used_by_papers() -> frozenset[str]:
    """Return the names of the algorithms that a paper has runs of at scale `paper`."""
    runs = (run for paper in papers(REPLICATIONS) for run in expand(paper, "paper", root=REPLICATIONS))
    return frozenset(str(run.config["algorithm"]) for run in runs)
