"""The first page of every report: when, the facts, and the verdicts in words and in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from ddrl.errors import UserError
from ddrl.papers import claim_verdicts
from ddrl.report.sections.document import Count, Fact, Origin, Row, VerdictCounts
from ddrl.report.sections.numbers import moment
from ddrl.report.sections.text import counted, listed, words

NOUNS = {"claims": "claim", "cells": "published cell"}
VERDICTS = {  # kind of statement -> verdict -> words of a sentence for one and for several, in the order of the report
    "claims": {name: verdict.stated for name, verdict in claim_verdicts.VERDICTS.items()},
    "cells": {
        "equivalent": "is equivalent|are equivalent",
        "consistent": "is consistent with ours|are consistent with ours",
        "below": "lies above what we reach|lie above what we reach",
        "above": "lies below what we reach|lie below what we reach",
        "inconclusive": "is inconclusive|are inconclusive",
        "not_comparable": "is not comparable|are not comparable",
        "not_run": "has no run|have no run",
    },
}
NOTHING_RAN = "no run of this scale has finished; only reference runs are shown"
Verdicts = Mapping[str, int]
"""The number of statements by their verdict."""


def verdicts_of(rows: Iterable[Row]) -> Verdicts:
    """Return how many rows have which verdict."""
    return Counter(row["verdict"] for row in rows)


def finished_at(summary: Mapping[str, Any], origin: Origin) -> str:
    """Return when the last run, or else the last reference run, ended (ISO 8601). Raise `UserError` without any."""
    finished: str | None = summary.get("finished") or (summary.get("reference") or {}).get("finished")
    if not finished:
        raise UserError(f"{origin.results}: no finished run to report on")
    return finished


def first_page(
    summary: Mapping[str, Any],
    finished: str,
    facts: Iterable[Fact],
    statements: Mapping[str, Verdicts],
    beside: Iterable[str] = (),
) -> dict[str, Any]:
    """Return the fields of a `Document` that all kinds of reports have alike.

    `statements` are the verdicts on each kind of statement; the sentences `beside` say what else there is (some are
    empty).
    """
    problems = summary["problems"]
    holes = f"{counted(problems, 'file')} missing or unusable; the section Holes names each"
    said = (*(tally(kind, found) for kind, found in statements.items()), summary.get("scale_note", ""), *beside)
    return {
        "scale": summary["scale"],
        "date": f"{moment(finished):%-d %B %Y}",
        "finished": finished,
        "facts": stated((*facts, Fact("Holes", holes if problems else ""))),
        "verdict": " ".join(filter(None, said)),
        "tallies": tuple(VerdictCounts(kind.capitalize(), _counts(kind, found)) for kind, found in statements.items()),
    }


def stated(facts: Iterable[Fact]) -> tuple[Fact, ...]:
    """Return the facts that have a value."""
    return tuple(fact for fact in facts if fact.value)


def tally(kind: str, found: Verdicts, which: str = "", article: str = "") -> str:
    """Return `Of 5 claims, 2 are supported, 1 is contradicted and 2 have no run.`; empty without any such verdict.

    `article` stands before the count of all, `which` behind the noun.
    """
    parts = []
    for verdict, phrase in VERDICTS[kind].items():
        if count := found.get(verdict):
            singular, plural = phrase.split("|")
            parts.append(f"{count} {singular if count == 1 else plural}")
    return f"Of {article}{counted(sum(found.values()), NOUNS[kind])}{which}, {listed(parts)}." if parts else ""


def _counts(kind: str, found: Verdicts) -> tuple[Count, ...]:
    return tuple(Count(name, f"{found[name]} {words(name)}") for name in VERDICTS[kind] if name in found)
