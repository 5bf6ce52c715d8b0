"""The report on one paper at one scale, made from its tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ddrl.report.sections import runs
from ddrl.report.sections.answers import after_runs, answer, answers, best_findings, effect_note
from ddrl.report.sections.cells import cells, not_read, protocols, uncovered
from ddrl.report.sections.chosen import behind
from ddrl.report.sections.claims import claims, without_run
from ddrl.report.sections.document import Block, Document, Fact, Origin, Row, Section, Tables, as_json
from ddrl.report.sections.efficiency import derived, efficiency
from ddrl.report.sections.first_page import NOTHING_RAN, finished_at, first_page, tally, verdicts_of
from ddrl.report.sections.games import over_games
from ddrl.report.sections.numbers import duration, frames, moment, number, ratio, span
from ddrl.report.sections.peers import peers
from ddrl.report.sections.spans import Inline, Span, plain
from ddrl.report.sections.tables import grouped, of_origin
from ddrl.report.sections.text import counted, listed, seeds_listed

MOST_AUTHORS = 4
"""With more authors the first page names the first one alone."""


def report_data(tables: Tables, summary: dict[str, Any], origin: Origin) -> dict[str, Any]:
    """Return everything that the report prints, as text, in its order (`document.as_json`).

    The report is about the runs of its scale; at scale `reference`, about the committed reference runs. Raise
    `UserError` where no run at all has finished.
    """
    finished = finished_at(summary, origin)
    paper, subject = summary["paper"], summary["subject"]
    own = of_origin(tables["runs"], subject)
    findings = best_findings(tables["claims"], subject)
    lines = [answers(findings, subject)]
    statements = {
        "claims": verdicts_of(findings),
        "cells": verdicts_of(cells_of_subject(tables["cells"], subject)),
    }
    return as_json(
        Document(
            kind="paper",
            above="A replication of",
            title=paper["title"],
            short_title=short_title(paper),
            byline=_byline(paper),
            summary=paper.get("summary", ""),
            answer=answer(findings, statements["cells"]),
            after_runs=after_runs(findings),
            answers=lines,
            effects=effect_note(lines),
            **first_page(summary, finished, _facts(own, summary), statements, _beside(tables, subject)),
            sections=_sections(tables, summary, origin),
            origin=origin,
        )
    )


def _sections(tables: Tables, summary: dict[str, Any], origin: Origin) -> tuple[Section, ...]:
    subject, experiments = summary["subject"], summary["experiments"]
    own = of_origin(tables["runs"], subject)
    source = [runs.provenance(own, summary, origin)] if own else []
    found = claims(tables["claims"], tables["published"], subject, len(summary["rules"]))
    frames_take = efficiency(tables["efficiency"], experiments, subject, summary["paper"]["prices"])
    body = (
        Section("claims", "Claims and their evidence", found),
        Section("cells", "Published cells", cells(tables["cells"], subject)),
        Section("peers", "Beside other libraries", beside_peers(tables, experiments, subject)),
        Section("figures", "Figures", runs.drawings(summary, tables["runs"])),
    )
    appendix = (
        Section("deviations", "Deviations from the paper", [runs.deviations(tables["departures"])]),
        Section("untested", "Claims without a run", without_run(tables["claims"], tables["published"], experiments)),
        Section("scores", "Final scores", [runs.side_by_side(tables, experiments, subject)]),
        Section("games", "Over all tasks", over_games(tables, experiments)),
        Section("efficiency", "What frames take", [frames_take], wide=True),
        Section("derived", "Beyond the runs", derived(summary["derived_tables"], tables), wide=True),
        Section("reference", "What the reference runs learned", runs.learned(tables, experiments)),
        Section("holes", "Holes", runs.holes(tables.get("problems", []))),
        Section("protocols", "What was measured", [protocols(tables["cells"]), not_read(summary["paper"])]),
        Section("changes", "What this scale changes", [runs.changes(tables["departures"])]),
        Section("settings", "Hyperparameters", [runs.hyperparameters(tables["hyperparameters"], experiments)]),
        Section("behind", "Behind the runs", behind(summary)),
        Section("provenance", "Provenance", [*source, runs.run_list(own, experiments)]),
        Section("uncovered", "Published cells without a value of ours", [uncovered(tables["cells"], subject)]),
    )
    return (*body, *(replace(section, appendix=True) for section in appendix))


def beside_peers(tables: Tables, experiments: dict[str, Any], subject: str) -> list[Block]:
    """Return what other libraries learn and how fast they are with the same configurations."""
    return peers(tables.get("peer_learning", []), tables.get("peer_speed", []), experiments, subject)


def cells_of_subject(rows: list[Row], subject: str) -> list[Row]:
    """Return one row per cell: `not_run` where only runs of another origin stand beside it."""
    own = of_origin(rows, subject)
    known = {row["cell"] for row in own}
    nothing = {"origin": subject, "verdict": "not_run", "ours": ""}
    others = {row["cell"]: row | nothing for row in rows if row["cell"] not in known}
    return [*own, *others.values()]


def short_title(paper: dict[str, Any]) -> str:
    """Return the title up to a colon with the short citation, behind the system that the title does not name."""
    title = f"{paper['title'].split(':')[0]} ({paper.get('short', paper['year'])})"
    return f"{paper['system']}: {title}" if "system" in paper else title


def _byline(paper: dict[str, Any]) -> Inline:
    named = [paper["authors"]] if isinstance(paper["authors"], str) else paper["authors"]
    authors = listed(named) if len(named) <= MOST_AUTHORS else f"{named[0]} et al"
    year = "" if str(paper["year"]) in paper["venue"] else f" {paper['year']}"
    venue, link = Span(paper["venue"], "emphasis"), Span(paper["url"], "link")
    return (*plain(f"{authors}. "), venue, *plain(f"{year}. "), link)


def _facts(own: list[Row], summary: dict[str, Any]) -> tuple[Fact, ...]:
    """Return the facts of the first page: what ran, where, how long, the budget."""
    if not own:
        return (Fact("What ran", NOTHING_RAN),)
    seeds = {int(row["seed"]) for row in own}
    kind = "committed reference run" if summary["subject"] == "reference" else "training run"
    ran = f"{counted(len(own), kind)} on {_games(own)}, seed{'s' * (len(seeds) > 1)} {seeds_listed(seeds)}"
    return (
        Fact("What ran", ran),
        Fact("Where", "; ".join(summary["hardware"])),
        Fact(
            "How long",
            f"{duration(sum(float(row['seconds']) for row in own))} of training at "
            f"{span((row['frames_per_second'] for row in own), number).replace(' to ', '–')} frames/s, "
            f"from {moment(summary['started']):%Y-%m-%d %H:%M} to {moment(summary['finished']):%Y-%m-%d %H:%M} UTC",
        ),
        Fact("Budget", f"{budget(own, summary['experiments'])}; environment frames of one run, before frame skip"),
    )


def _games(rows: list[Row]) -> str:
    return listed(sorted({row["env_label"] for row in rows}))


PEERS = "peers"
"""In place of a budget: that of runs beside other libraries."""


def budget(own: list[Row], experiments: dict[str, Any]) -> str:
    """Return the frames of a run beside the paper's, or what the paper says instead of frames, by group of runs."""
    stated = []
    for row in own:
        experiment = experiments[row["experiment"]]
        if experiment.get("peers"):  # settings of our own: no paper's budget is theirs
            stated.append(row | {"paper_frames": "", "instead": PEERS})
        else:
            stated.append(row | {"instead": "" if row["paper_frames"] else experiment.get("paper_budget") or ""})
    theirs = {"not printed": "the paper prints no budget", "not read": "the paper’s budget could not be read"}
    parts = []
    for (theirs_frames, instead), rows in sorted(grouped(stated, "paper_frames", "instead").items(), reverse=True):
        reach = span((row["env_frames"] for row in rows), frames)
        if theirs_frames:
            shares = span((float(row["env_frames"]) / float(theirs_frames) for row in rows), ratio)
            parts.append(f"{reach} of the paper’s {frames(theirs_frames)} ({shares})")
        elif instead == PEERS:
            parts.append(f"{reach} on {_games(rows)}, beside other libraries")
        elif instead:
            parts.append(f"{reach} on {_games(rows)}, where {theirs.get(instead, f'the paper has {instead}')}")
        else:
            parts.append(f"{reach} on {_games(rows)}, in place of the paper’s tasks")
    return "; ".join(parts)


def _beside(tables: Tables, subject: str) -> list[str]:
    """Return sentences about the reference runs that stand beside the subject, if any do."""
    reference = of_origin(tables["runs"], "reference")
    if subject == "reference" or not reference:
        return []
    own = "this run" if of_origin(tables["runs"], subject) else "what has not run"
    longest = frames(max(float(row["env_frames"]) for row in reference))
    decided = [row for row in of_origin(tables["claims"], "reference") if row["verdict"] != "not_run"]
    return [
        f"Beside {own} stand {counted(len(reference), 'committed reference run')} ({_games(reference)}; up to "
        f"{longest} frames each).",
        tally("claims", verdicts_of(decided), " that they can decide"),
    ]
