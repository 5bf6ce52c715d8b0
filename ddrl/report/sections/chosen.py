"""What stands behind the runs of a report: how many were discarded, and what was tuned with which seeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ddrl.report.sections.document import Fact, Facts
from ddrl.report.sections.text import counted, listed

LEDGER = "results/reference/discarded.csv"


def discarded(found: Mapping[str, int], experiments: Mapping[str, Any]) -> Fact:
    """Return how many reference runs of which experiments (name -> number) were dropped or replaced."""
    if not found:
        return Fact("Discarded runs", "no reference run of this paper was ever dropped or replaced")
    names = {name: experiments[name]["title"] if name in experiments else name for name in found}
    parts = listed([f"{number} of “{names[name]}”" for name, number in found.items()])
    number = counted(sum(found.values()), "reference run")
    return Fact("Discarded runs", f"{number} dropped or replaced, each with its reason in {LEDGER}: {parts}")


def behind(summary: Mapping[str, Any]) -> list[Facts]:
    """Return the facts of a paper's report."""
    return [Facts([discarded(summary.get("discarded", {}), summary["experiments"])])]
