"""Sections about scores over several tasks: aggregates, performance profiles, probability of improvement."""

from __future__ import annotations

from typing import Any

from ddrl.report.sections.cells import ORIGINS
from ddrl.report.sections.document import Row, Table, Tables
from ddrl.report.sections.numbers import number, percent
from ddrl.report.sections.spans import Inline, joined, plain, small
from ddrl.report.sections.tables import Field, by_experiment, grouped, numeric, titles
from ddrl.report.sections.text import words

PROFILE_STEPS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0)
"""Human-normalised scores at which a performance profile is printed."""
KEY = ("origin", "experiment", "variant")
ORIGIN = Field("Origin", lambda row: ORIGINS[row["origin"]])
COUNTS = (numeric("Tasks", "environments", number), numeric("Seeds", "seeds", number))


def over_games(tables: Tables, experiments: dict[str, Any]) -> tuple[Table, ...]:
    """Return the tables of scores over several tasks that have rows.

    An aggregate needs several tasks; a profile and a probability of improvement also need several seeds.
    """
    aggregates = [row for row in tables.get("aggregates", []) if _count(row, "environments") > 1 and row["value"]]
    several_seeds = grouped((row for row in aggregates if _count(row, "seeds") > 1), *KEY)
    profiles = [row for row in tables.get("profiles", []) if tuple(row[name] for name in KEY) in several_seeds]
    improvement = [
        row
        for row in tables.get("improvement", [])
        if _count(row, "environments") > 1 and _count(row, "seeds") > 1 and float(row["value"]) >= 0.5
    ]
    found = (
        _aggregates(aggregates, experiments),
        _profiles(profiles, experiments),
        _improvement(improvement, experiments),
    )
    return tuple(table for table in found if table.groups)


def _count(row: Row, name: str) -> int:
    return int(float(row[name]))


def _interval(row: Row) -> str:
    return f"[{percent(row['ci95_low'])}, {percent(row['ci95_high'])}]" if row["ci95_low"] else "–"


def _label(experiments: dict[str, Any], row: Row, name: str = "variant") -> str:
    labels: dict[str, str] = experiments[row["experiment"]].get("labels", {})
    return labels.get(row[name], words(row[name]))


def _statistic(row: Row) -> str:
    name = words(row["statistic"]).replace("iqm", "interquartile mean")
    return name if row["metric"] == "human_normalised_score" else f"{name} of {words(row['metric'])}"


def _aggregates(rows: list[Row], experiments: dict[str, Any]) -> Table:
    fields = (
        Field("Variant", lambda row: _label(experiments, row), "1fr"),
        ORIGIN,
        Field("Statistic", _statistic, "1.2fr"),
        numeric("Value", "value", percent),
        Field("95\u00a0% interval", _interval),
        *COUNTS,
    )
    return Table(
        "Human-normalised scores over all tasks that were run",
        "tables/aggregates.csv",
        titles(fields),
        by_experiment(rows, experiments, fields),
        "Intervals: bootstrap over seeds, stratified by task; none with one seed. Optimality gap: how far scores stay "
        "below a human tester, 0\u202f% where none does.",
    )


def _profiles(rows: list[Row], experiments: dict[str, Any]) -> Table:
    """Return the part of all runs that reach a score, from the rows nearest to each of `PROFILE_STEPS`."""
    found = grouped(rows, *KEY)

    def nearest(row: Row, step: float) -> Row:
        own = found[tuple(row[name] for name in KEY)]
        return min(own, key=lambda other: abs(float(other["tau"]) - step))

    def share(step: float) -> Field:
        title = percent(nearest(rows[0], step)["tau"]) if rows else ""

        def text(row: Row) -> Inline:
            best = nearest(row, step)
            return joined([plain(percent(best["fraction"])), small(_interval(best))])

        return Field(title, text, "auto", "right")

    fields = (Field("Variant", lambda row: _label(experiments, row), "1fr"), ORIGIN, *map(share, PROFILE_STEPS))
    return Table(
        "Performance profile: the part of all runs whose human-normalised score is at least as high as the column says",
        "tables/profiles.csv",
        titles(fields),
        by_experiment((own[0] for own in found.values()), experiments, fields),
        "Below each share its 95\u00a0% interval: bootstrap over seeds, stratified by task.",
    )


def _improvement(rows: list[Row], experiments: dict[str, Any]) -> Table:
    def pair(row: Row) -> str:
        return f"{_label(experiments, row, 'better')} over {_label(experiments, row, 'worse')}"

    fields = (
        Field("Comparison", pair, "1.5fr"),
        ORIGIN,
        numeric("Probability", "value", percent),
        Field("95\u00a0% interval", _interval),
        *COUNTS,
    )
    return Table(
        "Probability that a run of one variant scores higher than one of another on the same task",
        "tables/improvement.csv",
        titles(fields),
        by_experiment(rows, experiments, fields),
        "50\u202f%: neither is better. The better variant of each pair comes first.",
    )
