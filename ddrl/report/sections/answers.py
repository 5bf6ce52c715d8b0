"""What a report says first: the answer, then one line for each claim with its effect as an interval."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ddrl.papers.claim_verdicts import CLAIM_VERDICTS, DECIDED, VERDICTS, said
from ddrl.report.sections.cells import ORIGINS
from ddrl.report.sections.document import Answer, Answers, Plot, Row
from ddrl.report.sections.first_page import Verdicts, tally
from ddrl.report.sections.numbers import interval, number
from ddrl.report.sections.tables import grouped
from ddrl.report.sections.text import counted, listed

MARGIN = 1.25
"""How far the axis of an effect reaches beyond its interval and its lines."""
NARROW = 0.02
"""Lines that are no further apart, as a part of the axis, look like one."""
NOT_COMPARED = ("not_comparable", "not_run")
"""Verdicts on published cells that say nothing of their number beside ours."""
FEW_TASKS = 2
"""As many tasks are named; of more only their number is."""


def best_findings(rows: Iterable[Row], subject: str, *names: str) -> list[Row]:
    """Return one finding for each claim (of the same values in the columns `names`), by verdict.

    It is the one on the subject's runs, unless reference runs say more: they decide, or come to the same verdict with
    an interval of the effect or with more seeds.
    """
    chosen = [_best(own, subject) for own in grouped(rows, *names, "claim").values()]
    return sorted(chosen, key=lambda row: CLAIM_VERDICTS.index(row["verdict"]))


def _best(findings: Iterable[Row], subject: str) -> Row:
    found = sorted(findings, key=lambda row: (_rank(row["verdict"]), row["origin"] != subject))
    alike = [row for row in found if row["verdict"] == found[0]["verdict"]]
    return min(alike, key=lambda row: (not _has_interval(row), -float(row["seeds"] or 0)))


def _rank(verdict: str) -> int:
    """Return 0 for a verdict that decides, and more for what says less."""
    return 0 if verdict in DECIDED else CLAIM_VERDICTS.index(verdict)


def _has_interval(row: Row) -> bool:
    return bool(row["effect"] and row["ci95_low"])


def answer(findings: Iterable[Row], cells: Verdicts) -> str:
    """Return the answer of a report: what its runs say of published cells, then of claims, one finding for each claim.

    Published cells stand in it where their verdict says at least of one how its number compares with ours.
    """
    return " ".join(filter(None, (_of_cells(cells), _of_claims(findings)))) or "There is nothing to decide yet."


def _of_cells(cells: Verdicts) -> str:
    """Return `Of the 3 published cells that our runs compare with, 2 are equivalent and 1 is inconclusive.`"""
    compared = {name: count for name, count in cells.items() if name not in NOT_COMPARED}
    if not any(count for name, count in compared.items() if name != "inconclusive"):
        return ""
    return tally("cells", compared, " that our runs compare with", "the ")


def _of_claims(findings: Iterable[Row]) -> str:
    """Return a sentence on how many claims are decided and how; empty without any claim."""
    found = Counter(row["verdict"] for row in findings)
    without = found.pop("not_run", 0)
    if not found:
        return f"No run has tested any of the {counted(without, 'claim')} yet." if without else ""
    decided, others = _parts(found, decided=True), _parts(found, decided=False)
    number = sum(found[name] for name in DECIDED)
    first = [f"{number} {'is' if number == 1 else 'are'} decided: {listed(decided)}"] if decided else []
    rest = [f"{counted(without, 'more claim')} {'has' if without == 1 else 'have'} no run yet"] if without else []
    said_of_them = "; ".join([*first, *([listed(others)] if others else []), *rest])
    return f"Of the {counted(found.total(), 'claim')} that our runs speak of, {said_of_them}."


def _parts(found: Counter[str], *, decided: bool) -> list[str]:
    """Return `2 hold` for each verdict that there is, of those that decide a claim or of the others."""
    return [
        f"{found[name]} {known.answered.split('|')[found[name] > 1]}"
        for name, known in VERDICTS.items()
        if found.get(name) and known.decided == decided
    ]


def answers(findings: Iterable[Row], subject: str, title: str = "") -> Answers:
    """Return the line of each finding on a paper, under a title; all claims without a run share the last one."""
    found = list(findings)
    lines = [_answer(row, subject) for row in found if row["verdict"] != "not_run"]
    without = [row["title"] for row in found if row["verdict"] == "not_run"]
    return Answers([*lines, *([_without_run(without)] if without else [])], title)


def effect_note(groups: Iterable[Answers]) -> str:
    """Return what the plots of effects show, of what they have: a line or an area of effects that are too small."""
    plots = [line.plot for group in groups for line in group.rows if line.plot]
    if not plots:
        return ""
    areas = {plot.above - plot.below > NARROW for plot in plots}
    little = {
        frozenset({True}): "In the grey area an effect is too small to count",
        frozenset({False}): "At the grey line there is no effect, or just what the claim asks for",
    }.get(frozenset(areas), "In the grey area, or at the grey line, an effect is too small to count")
    where = "the line" if areas == {False} else "it"
    return (
        "Effect: each claim has its own axis; dot and line are the estimate and its 95\u00a0% interval over seeds. "
        f"{little}. A claim holds if its interval lies to the right of {where}, "
        "and is contradicted if it lies to the left, if that outlasts Holm’s correction for the other claims."
    )


def _without_run(titles: list[str]) -> Answer:
    """Return the line of the claims without a run."""
    label = said("not_run") if len(titles) == 1 else f"{len(titles)} {said('not_run')}"
    return Answer("not_run", label, "; ".join(titles), plot=None, seeds="", origin="", tasks="", every_task="")


def _answer(row: Row, subject: str) -> Answer:
    names = [name for name in row["tasks"].split("; ") if name]
    return Answer(
        verdict=row["verdict"],
        said=said(row["verdict"], row.get("obstacle", "").partition(";")[0]),  # the table of claims has all of them
        title=row["title"],
        plot=_plot(row),
        seeds=number(row["seeds"]),
        origin="; ".join(filter(None, (_whose(row, subject), _late(row)))),
        tasks=", ".join(names) if len(names) <= FEW_TASKS else counted(len(names), "task"),
        every_task=listed(names),
    )


def _whose(row: Row, subject: str) -> str:
    """Return whose runs a finding is about, where they are not the subject's."""
    return ORIGINS[row["origin"]] if row["origin"] != subject else ""


LATE = {"late_runs": "test", "resettled_runs": "settings", "redefined_runs": "own setting"}
"""Columns of the table of claims that count runs, and what is younger than these."""


def _late(row: Row) -> str:
    """Return what of a plan is younger than how many of the runs that it uses: `test after 6 of 6 runs`."""
    counts = {text: int(float(row.get(name) or 0)) for name, text in LATE.items()}
    younger = [f"{text} after {count}" for text, count in counts.items() if count]
    return f"{', '.join(younger)} of {int(float(row['plan_runs']))} runs" if younger else ""


def after_runs(findings: Iterable[Row]) -> str:
    """Return how many of the claims that are decided have a test that is younger than runs: `3 of 13`."""
    decided = [row for row in findings if row["verdict"] in DECIDED]
    late = sum(float(row.get("late_runs") or 0) > 0 for row in decided)
    return f"{late} of {len(decided)}"


def _plot(row: Row) -> Plot | None:
    """Return the effect on an axis of its own, whose middle is what is too small to count; None without an effect."""
    if not (_has_interval(row) and row["supported_above"]):
        return None
    effect, low, high, below, above = (
        float(row[name]) for name in ("effect", "ci95_low", "ci95_high", "contradicted_below", "supported_above")
    )
    middle = (below + above) / 2
    reach = MARGIN * max(abs(value - middle) for value in (low, high, effect, above)) or 1.0

    def place(value: float) -> float:
        return round(0.5 + (value - middle) / (2 * reach), 4)

    said = f"{number(effect)} {row['effect_unit']}, 95\u00a0% interval {interval(low, high)}"
    return Plot(place(effect), place(low), place(high), place(below), place(above), said)
