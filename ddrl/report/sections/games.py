"""Sections about scores over several tasks: aggregates, performance profiles, probability of improvement."""

from __future__ import annotations

from typing import Any

from ddrl.report.sections.cells import ORIGINS
from ddrl.report.sections.document import Line, Row, Table, Tables
from ddrl.report.sections.numbers import number, percent
from ddrl.report.sections.spans import joined, plain, small
from ddrl.report.sections.tables import by_experiment, cells_of, columns, grouped, right
from ddrl.report.sections.text import words

PROFILE_STEPS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0)
"""Human-normalised scores at which a performance profile is printed."""
KEY = ("origin", "experiment", "variant")


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


def _aggregates(rows: list[Row], experiments: dict[str, Any]) -> Table:
    def line(row: Row) -> Line:
        statistic = words(row["statistic"]).replace("iqm", "interquartile mean")
        of = "" if row["metric"] == "human_normalised_score" else f" of {words(row['metric'])}"
        return cells_of(
            _label(experiments, row),
            ORIGINS[row["origin"]],
            f"{statistic}{of}",
            percent(row["value"]),
            _interval(row),
            number(row["environments"]),
            number(row["seeds"]),
        )

    return Table(
        "Human-normalised scores over all tasks that were run",
        "tables/aggregates.csv",
        columns(
            ("Variant", "1fr"),
            "Origin",
            ("Statistic", "1.2fr"),
            *right("Value"),
            "95\u00a0% interval",
            *right("Tasks", "Seeds"),
        ),
        by_experiment(rows, experiments, line),
        "Intervals: bootstrap over seeds, stratified by task; none with one seed. Optimality gap: how far scores stay "
        "below a human tester, 0\u202f% where none does.",
    )


def _profiles(rows: list[Row], experiments: dict[str, Any]) -> Table:
    """Return the part of all runs that reach a score, at the rows nearest to each of `PROFILE_STEPS`."""
    nearest = [
        [min(own, key=lambda row: abs(float(row["tau"]) - step)) for step in PROFILE_STEPS]
        for own in grouped(rows, *KEY).values()
    ]
    by_key = grouped((row for found in nearest for row in found), *KEY)

    def line(first: Row) -> Line:
        found = by_key[tuple(first[name] for name in KEY)]
        shares = (joined([plain(percent(row["fraction"])), small(_interval(row))]) for row in found)
        return cells_of(_label(experiments, first), ORIGINS[first["origin"]], *shares)

    return Table(
        "Performance profile: the part of all runs whose human-normalised score is at least as high as the column says",
        "tables/profiles.csv",
        columns(("Variant", "1fr"), "Origin", *right(*(percent(row["tau"]) for found in nearest[:1] for row in found))),
        by_experiment((found[0] for found in nearest), experiments, line),
        "Below each share its 95\u00a0% interval: bootstrap over seeds, stratified by task.",
    )


def _improvement(rows: list[Row], experiments: dict[str, Any]) -> Table:
    def line(row: Row) -> Line:
        return cells_of(
            f"{_label(experiments, row, 'better')} over {_label(experiments, row, 'worse')}",
            ORIGINS[row["origin"]],
            percent(row["value"]),
            _interval(row),
            number(row["environments"]),
            number(row["seeds"]),
        )

    return Table(
        "Probability that a run of one variant scores higher than one of another on the same task",
        "tables/improvement.csv",
        columns(
            ("Comparison", "1.5fr"), "Origin", *right("Probability"), "95\u00a0% interval", *right("Tasks", "Seeds")
        ),
        by_experiment(rows, experiments, line),
        "50\u202f%: neither is better. The better variant of each pair comes first.",
    )
