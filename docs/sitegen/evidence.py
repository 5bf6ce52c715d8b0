"""Verdicts on claims and cells, read from the committed evidence (`results/reference/<paper>/evidence/*.csv`)."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache

from ddrl.papers.claim_verdicts import CLAIM_VERDICTS, VERDICTS, said, seeds_said
from ddrl.papers.paper import Claim, Paper, load_deviations, load_paper
from ddrl.report.sections.answers import after_runs
from ddrl.report.sections.cells import flags_of
from ddrl.report.sections.numbers import frames, interval, number, with_unit
from ddrl.report.sections.text import words
from docs.sitegen.links import ROOT
from docs.sitegen.markdown import plain, table

Rows = list[dict[str, str]]


@cache
def keys_of_papers() -> tuple[str, ...]:
    """Return the keys of all papers."""
    return tuple(sorted(path.parent.name for path in (ROOT / "replications").glob("*/paper.yaml")))


@cache
def paper(key: str) -> Paper:
    """Return a paper."""
    return load_paper(ROOT / "replications" / key)


@cache
def rows(key: str, name: str) -> tuple[Mapping[str, str], ...]:
    """Return the rows of a table of the evidence; none where the paper has no reference run."""
    path = ROOT / "results" / "reference" / key / "evidence" / f"{name}.csv"
    if not path.exists():
        return ()
    with path.open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))


def counts(key: str, name: str) -> Counter[str]:
    """Return how many rows have each verdict."""
    return Counter(row["verdict"] for row in rows(key, name))


def table_of_papers(pages: str) -> str:
    """Return one row per paper: how many claims have which verdict, and how many published numbers we measured, too.

    One column counts those of the decided claims whose test is younger than runs. `pages` is the folder of the papers'
    pages, as the page that shows the table sees it.
    """
    lines = []
    for key in keys_of_papers():
        claims, cells = counts(key, "claims"), rows(key, "cells")
        measured = f"{sum(bool(row['ours']) for row in cells)} of {len(cells)}"
        numbers = [str(claims[verdict]) for verdict in CLAIM_VERDICTS]
        lines.append([f"[{title(key)}]({pages}{key}.md)", *numbers, after_runs(rows(key, "claims")), measured])
    titles = [
        "paper",
        *(VERDICTS[verdict].words for verdict in CLAIM_VERDICTS),
        "test after runs (of those that are decided)",
        "published numbers that we also measured",
    ]
    return table(titles, lines, right=range(1, len(titles)))


def title(key: str) -> str:
    """Return the title of a paper's page: of the written one, or its short citation."""
    page = ROOT / "docs" / "papers" / f"{key}.md"
    if not page.exists():
        return str(paper(key).citation["short"])
    return page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def claims(key: str) -> str:
    """Return every claim of a paper with its verdict, effect, interval and seeds; those without a run come last."""
    verdicts = {row["row"]: row for row in rows(key, "claims")}
    decided = [one for one in paper(key).claims if verdicts.get(one.name, {}).get("verdict", "not_run") != "not_run"]
    waiting = [one for one in paper(key).claims if one not in decided]
    parts = []
    if decided:
        lines = [[_claim(one), _verdict(verdicts[one.name]), _effect(verdicts[one.name])] for one in decided]
        parts.append(table(["claim", "verdict", "effect with its 95 % interval"], lines))
    if waiting:
        lines = [[_claim(one), plain(words(one.experiment))] for one in waiting]
        parts.append(f"No reference run speaks of these claims yet:\n\n{table(['claim', 'experiment'], lines)}")
    return "\n\n".join(parts)


def _claim(claim: Claim) -> str:
    return f"**{plain(claim.title)}**<br>{plain(claim.text)} <small>{plain(claim.source)}</small>"


def _effect(row: Mapping[str, str]) -> str:
    facts = [
        f"{number(row['effect'])} {plain(row['effect_unit'])}".strip() if row["effect"] else "",
        interval(row["ci95_low"], row["ci95_high"]).replace("[", "\\[") if row["ci95_low"] else "",
        f"{row['seeds']} seeds" if row["seeds"] else "",
        f"{frames(row['env_frames'])} frames" if row["env_frames"] else "",
        plain(row["decided_by"]),
        seeds_said(row),
        plain(row.get("late", "")),
        plain(row["flags"].replace(";", "; ")),
    ]
    return "<br>".join(filter(None, [" ".join(facts[:2]).strip(), ", ".join(filter(None, facts[2:4])), *facts[4:]]))


def _verdict(row: Mapping[str, str]) -> str:
    return tag(row["verdict"], said(row["verdict"], row.get("obstacle", "")))


def tag(verdict: str, text: str = "") -> str:
    """Return a verdict as a coloured word, or as `text` in its colour."""
    return f'<span class="verdict {verdict}">{text or words(verdict)}</span>'


def cells(key: str) -> str:
    """Return published numbers with ours beside them, a table for each item of the paper, and a count of the others."""
    groups: dict[str, Rows] = {}
    for row in rows(key, "cells"):
        groups.setdefault(row["item"], []).append(dict(row))
    own = {item: found for item, group in groups.items() if (found := [row for row in group if row["ours"]])}
    parts = [f"### {plain(item)}\n\n{_cell_table(found)}" for item, found in own.items()]
    waiting = Counter(row["item"] for group in groups.values() for row in group if not row["ours"])
    lines = [f"- {plain(item)}: {count} numbers" for item, count in waiting.items()]
    if lines:
        parts.append("### Without a run of ours\n\n" + "\n".join(lines))
    return "\n\n".join(parts)


def _cell_table(found: Iterable[Mapping[str, str]]) -> str:
    lines = [
        [
            plain(", ".join(filter(None, (row["system"], row["published_variant"])))),
            plain(row["task"]),
            plain(with_unit(row["published"], row["unit"])),
            number(row["ours"]),
            interval(row["ci90_low"], row["ci90_high"]).replace("[", "\\[") if row["ci90_low"] else "",
            row["seeds"],
            frames(row["env_frames"]),
            tag(row["verdict"]),
            plain("; ".join(filter(None, (*flags_of(row), row.get("late", ""))))),
        ]
        for row in found
    ]
    titles = ["system", "task", "published", "ours", "90 % interval", "seeds", "frames", "verdict", "flags"]
    return table(titles, lines, right=(2, 3, 5, 6))


def deviations(key: str) -> str:
    """Return the deviations of a replication as a table."""
    found = load_deviations(ROOT / "replications" / key)
    lines = [[plain(text) for text in (one.what, one.paper, one.ours, one.reason, words(one.flag))] for one in found]
    return table(["what", "paper", "here", "why", "flag"], lines)


def citation(key: str) -> str:
    """Return the authors, title and place of a paper, and what it says."""
    found = paper(key)
    authors = ", ".join(found.citation["authors"])
    title = f"[{plain(found.citation['title'])}]({found.citation['url']})"
    return f"{plain(authors)}: {title}. {plain(found.citation['venue'])}.\n\n{plain(found.summary)}"
