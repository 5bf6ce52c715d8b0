"""The report on the whole suite at one scale, made from the suite's tables."""

from __future__ import annotations

from typing import Any

from ddrl.errors import UserError
from ddrl.report.sections.cells import CELL_VERDICTS, CLAIM_VERDICTS, counts, tally
from ddrl.report.sections.claims import ledger
from ddrl.report.sections.coverage import cells_by_verdict, coverage, own_cells, papers, verdict_bars
from ddrl.report.sections.document import Document, Fact, Facts, Origin, Row, Section, Tables, Tally, Text, as_json
from ddrl.report.sections.numbers import duration, frames, moment
from ddrl.report.sections.runs import holes
from ddrl.report.sections.spans import Inline, Span, joined, plain
from ddrl.report.sections.speed import compute, lag, systems, throughput
from ddrl.report.sections.text import counted, listed

SUITE = "suite"
PREFACE = (
    "For every paper the suite asks two questions. Does what the paper says in words hold in our own runs? And where "
    "the paper prints a number, what do our runs give? Each verdict follows from rules: margins and "
    "smallest effects stand in the paper’s file, fixed before the runs (a test that is younger than its runs says so), "
    "and flags come from what each run recorded about itself. A verdict says what the evidence allows, and no more; "
    "experiments that do not exist yet are counted as not run.",
    "Asynchronous systems are hard to compare with one another. What they learn and how fast depends on the number of "
    "actors, on the machines, and on the balance between acting and learning; Kapturowski et al. (2019, appendix) "
    "caution readers of such comparisons. Every speed and every policy lag below therefore names its machine and its "
    "layout, and claims compare only runs of the same budget.",
)


def suite_data(tables: Tables, summary: dict[str, Any], origin: Origin) -> dict[str, Any]:
    """Return everything that the report prints, as text, in its order (`document.as_json`).

    Raise `UserError` where no run at all has finished.
    """
    subject = summary["subject"]
    reference = summary.get("reference") or {}
    finished = summary.get("finished") or reference.get("finished")
    if not finished:
        raise UserError(f"{origin.results}: no finished run to report on")
    claims = [row for row in tables["claims"] if row["origin"] == subject]
    return as_json(
        Document(
            kind=SUITE,
            above="What held, and what has not been run",
            title="Distributed deep reinforcement learning, replicated",
            short_title="Distributed deep reinforcement learning, replicated",
            byline=_byline(summary["papers"]),
            summary="",
            scale=summary["scale"],
            date=f"{moment(finished):%-d %B %Y}",
            finished=finished,
            facts=_facts(summary, tables),
            verdict=" ".join(filter(None, _verdict(tables, summary, claims, subject))),
            tallies=(
                Tally("Claims", counts(claims, CLAIM_VERDICTS)),
                Tally("Cells", counts(own_cells(tables["coverage"]), CELL_VERDICTS)),
            ),
            sections=_sections(tables, summary, origin, subject),
            origin=origin,
        )
    )


def _sections(tables: Tables, summary: dict[str, Any], origin: Origin, subject: str) -> tuple[Section, ...]:
    names = {paper["key"]: paper.get("short") or paper["key"] for paper in summary["papers"]}
    return (
        Section("preface", "How to read this", tuple(Text(plain(text)) for text in PREFACE)),
        Section("papers", "Papers", (papers(summary["papers"], tables["coverage"]), verdict_bars(tables, subject))),
        Section("claims", "Claims", [ledger(tables["claims"], names, subject)]),
        Section("cells", "Published cells by verdict", [cells_by_verdict(tables, names, subject)]),
        Section("coverage", "Coverage", coverage(tables, names)),
        Section("compute", "Compute spent", [compute(tables["compute"], names)]),
        Section("throughput", "Throughput", throughput(tables["throughput"], tables["matrix"], names)),
        Section("lag", "Policy lag", [lag(tables["lag"], names)]),
        Section("holes", "Holes", holes(tables["problems"])),
        Section("provenance", "Provenance", [_provenance(summary, origin)]),
        Section("systems", "Systems", [systems(tables["systems"], names)], wide=True),
    )


def _byline(papers: list[dict[str, Any]]) -> Inline:
    parts = [(Span(f"{paper.get('short') or paper['key']} "), Span(paper["url"], "link")) for paper in papers]
    return (Span("Replications of "), *joined(parts, (Span("; "),)))


def _facts(summary: dict[str, Any], tables: Tables) -> tuple[Fact, ...]:
    reference, problems = summary.get("reference") or {}, len(tables["problems"])
    missing = f"{counted(problems, 'file')} missing or unusable; the section Holes names each"
    rows = [
        Fact("Papers", f"{counted(len(summary['papers']), 'paper')}, {counted(int(summary['systems']), 'system')}"),
        Fact("What ran", _ran(summary) or "no run of this scale has finished; only reference runs are shown"),
        Fact("Beside it", f"{_ran(reference)}, committed with the suite" if reference else ""),
        Fact("Where", "; ".join(summary["hardware"] or reference.get("hardware", []))),
        Fact("Holes", missing if problems else ""),
    ]
    return tuple(row for row in rows if row.value)


def _ran(facts: dict[str, Any]) -> str:
    if not facts.get("runs"):
        return ""
    total = f"{frames(facts['env_frames_total'])} environment frames in {duration(facts['seconds_total'])} of training"
    where = counted(len(facts["environments"]), "environment")
    return f"{counted(facts['runs'], 'run')} on {where}: {total}"


def _verdict(tables: Tables, summary: dict[str, Any], claims: list[Row], subject: str) -> tuple[str, ...]:
    """Return sentences about the verdicts and what the scale allows to say; some are empty."""
    reference = [row for row in tables["claims"] if row["origin"] == "reference" and row["verdict"] != "not_run"]
    return (
        tally("claim", claims, CLAIM_VERDICTS),
        tally("published cell", own_cells(tables["coverage"]), CELL_VERDICTS),
        summary.get("scale_note", ""),
        tally("claim", reference, CLAIM_VERDICTS, " that the reference runs can decide") if subject == "run" else "",
    )


def _provenance(summary: dict[str, Any], origin: Origin) -> Facts:
    rows = [Fact("Command", origin.command, True), Fact("Results", f"sha256 {origin.digest} of the tables", True)]
    for label, facts in (("", summary), ("reference ", summary.get("reference") or {})):
        if facts.get("runs"):
            rows += [
                Fact(f"{label}source".capitalize(), listed(facts["sources"]), True),
                Fact(f"{label}packages".capitalize(), "; ".join(facts["packages"])),
            ]
    return Facts(rows)
