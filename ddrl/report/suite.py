"""The report on the whole suite at one scale, made from the suite's tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ddrl.report.sections.answers import after_runs, answer, answers, best_findings, effect_note
from ddrl.report.sections.chosen import LEDGER, younger_rules
from ddrl.report.sections.claims import ledger
from ddrl.report.sections.coverage import (
    cells_by_verdict,
    experiments,
    heat_maps,
    papers,
    published_only,
    short_name,
    verdict_bars,
    verdicts_in,
)
from ddrl.report.sections.document import Document, Fact, Facts, Origin, Row, Section, Tables, Text, as_json
from ddrl.report.sections.first_page import NOTHING_RAN, finished_at, first_page, tally, verdicts_of
from ddrl.report.sections.numbers import duration, frames
from ddrl.report.sections.runs import holes
from ddrl.report.sections.spans import Inline, Span, joined, plain
from ddrl.report.sections.speed import compute, lag, systems, throughput
from ddrl.report.sections.tables import of_origin
from ddrl.report.sections.text import counted, listed

SUITE = "suite"
TITLE = "Distributed deep reinforcement learning, replicated"
PREFACE = (
    "For every paper the suite asks two questions. Does what the paper says in words hold in our own runs? And where "
    "the paper prints a number, what do our runs give? Each verdict follows from rules: margins and smallest effects "
    "stand in the paper’s file, as a number or as a share of a task’s scale (a test, a margin or a setting that is "
    "younger than runs says so). Where no reference score is known, and for speeds, lags and costs, the scale comes "
    "from the runs themselves. Flags come from what each run recorded about itself. A verdict says what the evidence "
    "allows, and no more; experiments that do not exist yet are counted as not run.",
    "Asynchronous systems are hard to compare with one another. What they learn and how fast depends on the number of "
    "actors, on the machines, and on the balance between acting and learning; Kapturowski et al. (2019, appendix) "
    "caution readers of such comparisons. Every speed and every policy lag below therefore names its machine and its "
    "layout, and claims compare only runs of the same budget.",
)


def suite_data(tables: Tables, summary: dict[str, Any], origin: Origin) -> dict[str, Any]:
    """Return everything that the report prints, as text, in its order (`document.as_json`).

    Raise `UserError` where no run at all has finished.
    """
    finished = finished_at(summary, origin)
    subject = summary["subject"]
    findings, names = best_findings(tables["claims"], subject, "paper"), _names(summary)
    lines = [answers([row for row in findings if row["paper"] == key], subject, name) for key, name in names.items()]
    statements = {"claims": verdicts_of(findings), "cells": verdicts_in(tables["coverage"], "cells")}
    return as_json(
        Document(
            kind=SUITE,
            above="What held, and what has not been run",
            title=TITLE,
            short_title=TITLE,
            byline=_byline(summary["papers"]),
            summary="",
            answer=answer(findings, statements["cells"]),
            after_runs=after_runs(findings),
            answers=lines,
            effects=effect_note(lines),
            **first_page(summary, finished, _facts(summary), statements, _beside(tables, subject)),
            sections=_sections(tables, summary, origin, findings),
            origin=origin,
        )
    )


def _sections(tables: Tables, summary: dict[str, Any], origin: Origin, findings: list[Row]) -> tuple[Section, ...]:
    subject, names = summary["subject"], _names(summary)
    rules = [younger_rules(summary["rules"])] if summary["rules"] else []
    bars = verdict_bars(
        {
            "claims": verdicts_of(of_origin(tables["claims"], subject)),
            "cells": verdicts_in(tables["coverage"], "cells"),
        },
        subject,
    )
    body = (
        Section("papers", "Papers", (papers(summary["papers"], tables["coverage"], findings), bars)),
        Section("coverage", "Coverage", heat_maps(tables, names)),
        Section("preface", "How to read this", tuple(Text(plain(text)) for text in PREFACE)),
    )
    appendix = (
        Section("claims", "Claims and their evidence", [ledger(tables["claims"], names, subject), *rules]),
        Section("experiments", "Experiments", [experiments(tables["coverage"], names)]),
        Section("cells", "Published cells by verdict", [cells_by_verdict(tables, names, subject)]),
        Section("unreplicated", "Papers without a replication", [published_only(tables.get("published_only", []))]),
        Section("compute", "Compute spent", [compute(tables["compute"], names)]),
        Section("throughput", "Throughput", throughput(tables["throughput"], tables["matrix"], names)),
        Section("lag", "Policy lag", [lag(tables["lag"], names)]),
        Section("holes", "Holes", holes(tables["problems"])),
        Section("provenance", "Provenance", [_provenance(summary, origin)]),
        Section("systems", "Systems", [systems(tables["systems"], names)], wide=True),
    )
    return (*body, *(replace(section, appendix=True) for section in appendix))


def _names(summary: dict[str, Any]) -> dict[str, str]:
    return {paper["key"]: short_name(paper) for paper in summary["papers"]}


def _byline(papers: list[dict[str, Any]]) -> Inline:
    parts = [(Span(f"{short_name(paper)} "), Span(paper["url"], "link")) for paper in papers]
    return (Span("Replications of "), *joined(parts, (Span("; "),)))


def _facts(summary: dict[str, Any]) -> tuple[Fact, ...]:
    reference = summary["reference"] or {}
    return (
        Fact("Papers", f"{counted(len(summary['papers']), 'paper')}, {counted(int(summary['systems']), 'system')}"),
        Fact("What ran", _ran(summary) or NOTHING_RAN),
        Fact("Beside it", f"{_ran(reference)}, committed with the suite" if reference else ""),
        Fact("Where", "; ".join(summary["hardware"] or reference.get("hardware", []))),
    )


def _ran(facts: dict[str, Any]) -> str:
    if not facts.get("runs"):
        return ""
    total = f"{frames(facts['env_frames_total'])} environment frames in {duration(facts['seconds_total'])} of training"
    where = counted(len(facts["environments"]), "environment")
    return f"{counted(facts['runs'], 'run')} on {where}: {total}"


def _beside(tables: Tables, subject: str) -> list[str]:
    """Return what the reference runs beside the subject say of claims."""
    decided = [row for row in of_origin(tables["claims"], "reference") if row["verdict"] != "not_run"]
    return [tally("claims", verdicts_of(decided), " that the reference runs can decide")] if subject == "run" else []


def _provenance(summary: dict[str, Any], origin: Origin) -> Facts:
    rows = [Fact("Command", origin.command, True), Fact("Results", f"sha256 {origin.digest} of the tables", True)]
    if dropped := summary.get("discarded"):
        said = f"{counted(dropped, 'reference run')} dropped or replaced so far, each with its reason in {LEDGER}"
        rows.append(Fact("Discarded runs", said))
    for label, facts in (("", summary), ("reference ", summary["reference"] or {})):
        if facts.get("runs"):
            rows += [
                Fact(f"{label}source".capitalize(), listed(facts["sources"]), True),
                Fact(f"{label}packages".capitalize(), "; ".join(facts["packages"])),
            ]
    return Facts(rows)
