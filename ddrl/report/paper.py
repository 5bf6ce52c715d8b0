"""The report on one paper at one scale, made from its tables."""

from __future__ import annotations

from typing import Any

from ddrl.errors import UserError
from ddrl.report.sections import runs
from ddrl.report.sections.cells import CELL_VERDICTS, CLAIM_VERDICTS, cells, counts, not_read, tally, uncovered
from ddrl.report.sections.claims import claims
from ddrl.report.sections.document import Document, Fact, Origin, Row, Section, Tables, Tally, as_json
from ddrl.report.sections.efficiency import derived, efficiency
from ddrl.report.sections.games import over_games
from ddrl.report.sections.numbers import duration, frames, moment, number, ratio, span
from ddrl.report.sections.spans import Inline, Span, plain
from ddrl.report.sections.text import counted, listed


def report_data(tables: Tables, summary: dict[str, Any], origin: Origin) -> dict[str, Any]:
    """Return everything that the report prints, as text, in its order (`document.as_json`).

    The report is about the runs of its scale; at scale `reference`, about the committed reference runs. Raise
    `UserError` where no run at all has finished.
    """
    if not tables["runs"]:
        raise UserError(f"{origin.results}: no finished run to report on")
    subject = "reference" if summary["scale"] == "reference" else "run"
    own = of(tables["runs"], subject)
    finished = max(row["finished"] for row in own or tables["runs"])
    paper = summary["paper"]
    return as_json(
        Document(
            kind="paper",
            above="A replication of",
            title=paper["title"],
            short_title=f"{paper['title'].split(':')[0]} ({paper.get('short', paper['year'])})",
            byline=_byline(paper),
            summary=paper.get("summary", ""),
            scale=summary["scale"],
            date=f"{moment(finished):%-d %B %Y}",
            finished=finished,
            facts=_facts(own, summary, len(tables.get("problems", [])), subject),
            verdict=" ".join(filter(None, _verdict(tables, summary, own, subject))),
            tallies=(
                Tally("Claims", counts(of(tables["claims"], subject), CLAIM_VERDICTS)),
                Tally("Cells", counts(cells_of_subject(tables["cells"], subject), CELL_VERDICTS)),
            ),
            sections=_sections(tables, summary, origin, subject),
            origin=origin,
        )
    )


def _sections(tables: Tables, summary: dict[str, Any], origin: Origin, subject: str) -> tuple[Section, ...]:
    own = of(tables["runs"], subject)
    experiments = _labelled(summary["experiments"], tables["runs"])
    facts = _run_facts(summary, subject)
    source = [runs.provenance(own, facts, origin.command, origin.digest)] if own else []
    frames_take = efficiency(tables["efficiency"], experiments, subject, summary["paper"]["prices"])
    return (
        Section("claims", "Claims", claims(tables["claims"], tables["published"], subject, experiments)),
        Section("cells", "Published cells", (*cells(tables["cells"], subject), not_read(summary["paper"]))),
        Section("scores", "Final scores", [runs.side_by_side(tables, experiments, subject)]),
        Section("games", "Over all tasks", over_games(tables, experiments)),
        Section("efficiency", "What frames take", [frames_take], wide=True),
        Section("derived", "Beyond the runs", derived(summary["derived_tables"], tables), wide=True),
        Section("figures", "Figures", runs.drawings(summary["figures"], tables["runs"])),
        Section("reference", "What the reference runs learned", runs.learned(tables)),
        Section("holes", "Holes", runs.holes(tables.get("problems", []))),
        Section("deviations", "Deviations from the paper", runs.deviations(tables["departures"])),
        Section("settings", "Hyperparameters", [runs.hyperparameters(tables["hyperparameters"], experiments)]),
        Section("provenance", "Provenance", [*source, runs.run_list(own, experiments)]),
        Section("uncovered", "Published cells without a value of ours", [uncovered(tables["cells"], subject)]),
    )


def _run_facts(summary: dict[str, Any], subject: str) -> dict[str, Any]:
    """Return what the summary says of the subject's runs."""
    facts: dict[str, Any] = summary if subject == "run" or summary.get("runs") else summary["reference"]
    return facts


def cells_of_subject(rows: list[Row], subject: str) -> list[Row]:
    """Return one row per cell: `not_run` where only runs of another origin stand beside it."""
    own = of(rows, subject)
    known = {row["cell"] for row in own}
    nothing = {"origin": subject, "verdict": "not_run", "ours": ""}
    others = {row["cell"]: row | nothing for row in rows if row["cell"] not in known}
    return [*own, *others.values()]


def of(rows: list[Row], subject: str) -> list[Row]:
    """Return the rows of this origin."""
    return [row for row in rows if row["origin"] == subject]


def _labelled(experiments: dict[str, Any], rows: list[Row]) -> dict[str, Any]:
    """Return the experiments with the labels of those variants that have a run."""
    labels: dict[str, dict[str, str]] = {}
    for row in rows:
        labels.setdefault(row["experiment"], {})[row["variant"]] = row["variant_label"]
    return {name: entry | {"labels": labels.get(name, {})} for name, entry in experiments.items()}


def _byline(paper: dict[str, Any]) -> Inline:
    authors = paper["authors"] if isinstance(paper["authors"], str) else listed(paper["authors"])
    year = "" if str(paper["year"]) in paper["venue"] else f" {paper['year']}"
    venue, link = Span(paper["venue"], "emphasis"), Span(paper["url"], "link")
    return (*plain(f"{authors}. "), venue, *plain(f"{year}. "), link)


def _facts(own: list[Row], summary: dict[str, Any], problems: int, subject: str) -> tuple[Fact, ...]:
    """Return the facts of the first page: what ran, where, how long, the budget, how many files are missing."""
    missing = f"{counted(problems, 'file')} missing or unusable; the section Holes names each"
    holes = [Fact("Holes", missing)] if problems else []
    if not own:
        return (Fact("What ran", "no run of this scale has finished; only reference runs are shown"), *holes)
    games = listed(sorted({row["env_label"] for row in own}))
    seeds = sorted({int(row["seed"]) for row in own})
    started, finished = min(row["started"] for row in own), max(row["finished"] for row in own)
    number_of_runs = counted(len(own), "committed reference run" if subject == "reference" else "training run")
    return (
        Fact("What ran", f"{number_of_runs} on {games}, seed{'s' * (len(seeds) > 1)} {listed(map(str, seeds))}"),
        Fact("Where", "; ".join(_run_facts(summary, subject)["hardware"])),
        Fact(
            "How long",
            f"{duration(sum(float(row['seconds']) for row in own))} of training at "
            f"{span((row['frames_per_second'] for row in own), number).replace(' to ', '–')} frames/s, "
            f"from {moment(started):%Y-%m-%d %H:%M} to {moment(finished):%Y-%m-%d %H:%M} UTC",
        ),
        Fact("Budget", f"{_budget(own, summary['experiments'])}; environment frames of one run, before frame skip"),
        *holes,
    )


def _budget(own: list[Row], experiments: dict[str, Any]) -> str:
    """Return the frames of a run beside the paper's, or what the paper says instead of frames, by group of runs."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in own:
        instead = "" if row["paper_frames"] else experiments[row["experiment"]].get("paper_budget") or ""
        groups.setdefault((row["paper_frames"], instead), []).append(row)
    parts = []
    for (stated, instead), rows in sorted(groups.items(), reverse=True):
        reach = span((row["env_frames"] for row in rows), frames)
        games = listed(sorted({row["env_label"] for row in rows}))
        if stated:
            shares = span((float(row["env_frames"]) / float(stated) for row in rows), ratio)
            parts.append(f"{reach} of the paper’s {frames(stated)} ({shares})")
        elif instead:
            theirs = {"not printed": "the paper prints no budget", "not read": "the paper’s budget could not be read"}
            parts.append(f"{reach} on {games}, where {theirs.get(instead, f'the paper has {instead}')}")
        else:
            parts.append(f"{reach} on {games}, in place of the paper’s tasks")
    return "; ".join(parts)


def _verdict(tables: Tables, summary: dict[str, Any], own: list[Row], subject: str) -> list[str]:
    """Return sentences about the verdicts, what the scale allows to say, and the reference runs (some are empty)."""
    sentences = [
        tally("claim", of(tables["claims"], subject), CLAIM_VERDICTS),
        tally("published cell", cells_of_subject(tables["cells"], subject), CELL_VERDICTS),
        summary.get("scale_note", ""),
    ]
    reference = of(tables["runs"], "reference")
    if subject == "run" and reference:
        decided = [row for row in of(tables["claims"], "reference") if row["verdict"] != "not_run"]
        games = listed(sorted({row["env_label"] for row in reference}))
        sentences += [
            f"Beside {'this run' if own else 'what has not run'} stand "
            f"{counted(len(reference), 'committed reference run')} ({games}; up to "
            f"{frames(max(float(row['env_frames']) for row in reference))} frames each).",
            tally("claim", decided, CLAIM_VERDICTS, " that they can decide"),
        ]
    return sentences
