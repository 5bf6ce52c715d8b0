"""Sections about scores over several tasks: aggregates, performance profiles, probability of improvement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ddrl.analysis.statistics.bootstrap import MIN_SEEDS, RANGE
from ddrl.report.sections.cells import ORIGINS
from ddrl.report.sections.document import Field, Row, Table, Tables
from ddrl.report.sections.numbers import number, percent
from ddrl.report.sections.spans import Inline, joined, plain, small
from ddrl.report.sections.tables import Fields, by_experiment, grouped, merged, numeric, right, table_of
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
    labels = {(row["experiment"], row["variant"]): row["variant_label"] for row in tables["runs"]}

    def label(row: Row, name: str = "variant") -> str:
        return labels.get((row["experiment"], row[name]), words(row[name]))

    found = (
        _aggregates(aggregates, experiments, label),
        _profiles(profiles, experiments, label),
        _improvement(improvement, experiments, label),
    )
    return tuple(table for table in found if table.groups)


def _count(row: Row, name: str) -> int:
    return int(float(row[name]))


def _interval(row: Row) -> str:
    """Return the interval of a value, or the range of its seeds, which says so."""
    if not row["ci95_low"]:
        return "–"
    ends = f"[{percent(row['ci95_low'])}, {percent(row['ci95_high'])}]"
    return f"range {ends}" if row.get("spread") == RANGE else ends


def _spread_note(rows: list[Row], method: str) -> str:
    """Return what the intervals of a table are (made by a method), and its ranges where it has any."""
    ranges = any(row.get("spread") == RANGE for row in rows)
    note = f"Intervals: over seeds, {method}, from {MIN_SEEDS} seeds a task on."
    return note + (" Ranges of 2 seeds: with the lowest and with the highest seed of every task." if ranges else "")


def _versions_note(rows: list[Row]) -> str:
    """Return that intervals are no narrower than scores are known, and what scores of one version leave out."""
    said = " No interval is narrower than the standard errors of its scores."
    if all(row.get("versions") == "1" for row in rows):
        return f"{said} All scores are of one version of the parameters: how versions differ shows between seeds alone."
    some = any(row.get("versions") == "1" for row in rows)
    return f"{said} Some scores are of one version of the parameters." if some else said


def _estimate(title: str) -> Fields[Row]:
    """Return the columns of a value, its interval, and what it rests on."""
    return (
        numeric(title, "value", percent),
        Field("95\u00a0% interval", _interval),
        numeric("Tasks", "environments", number),
        numeric("Seeds", "seeds", number),
    )


def _origin(row: Row) -> str:
    return ORIGINS[row["origin"]]


def _statistic(row: Row) -> str:
    name = words(row["statistic"]).replace("iqm", "interquartile mean")
    return name if row["metric"] == "human_normalised_score" else f"{name} of {words(row['metric'])}"


def _aggregates(rows: list[Row], experiments: dict[str, Any], label: Callable[..., str]) -> Table:
    fields: Fields[Row] = (
        Field("Variant", label, "1fr"),
        Field("Origin", _origin),
        Field("Statistic", _statistic, "1.2fr"),
        *_estimate("Value"),
    )
    return table_of(
        "Human-normalised scores over all tasks that were run",
        "tables/aggregates.csv",
        fields,
        by_experiment(rows, experiments),
        f"{_spread_note(rows, 'studentised')}{_versions_note(rows)} "
        "Optimality gap: how far scores stay below 100\u202f%, 0\u202f% where none does.",
    )


def _profiles(rows: list[Row], experiments: dict[str, Any], label: Callable[..., str]) -> Table:
    """Return the part of all runs that reach a score, from the rows nearest to each of `PROFILE_STEPS`."""

    def nearest(own: list[Row], step: float) -> Row:
        return min(own, key=lambda row: abs(float(row["tau"]) - step))

    def share(step: float) -> Field[list[Row]]:
        def text(own: list[Row]) -> Inline:
            row = nearest(own, step)
            return joined([plain(percent(row["fraction"])), small(_interval(row))])

        return right(percent(nearest(rows, step)["tau"]) if rows else "", text)

    fields: Fields[list[Row]] = (
        Field("Variant", lambda own: label(own[0]), "1fr"),
        Field("Origin", lambda own: _origin(own[0])),
        *map(share, PROFILE_STEPS),
    )
    return table_of(
        "Performance profile: the part of all runs whose human-normalised score is at least as high as the column says",
        "tables/profiles.csv",
        fields,
        merged(by_experiment(rows, experiments), *KEY),
        f"Below each share its 95\u00a0% interval. {_spread_note(rows, 'Wilson’s')}",
    )


def _improvement(rows: list[Row], experiments: dict[str, Any], label: Callable[..., str]) -> Table:
    def pair(row: Row) -> str:
        return f"{label(row, 'better')} over {label(row, 'worse')}"

    fields: Fields[Row] = (
        Field("Comparison", pair, "1.5fr"),
        Field("Origin", _origin),
        *_estimate("Probability"),
    )
    return table_of(
        "Probability that a run of one variant scores higher than one of another on the same task",
        "tables/improvement.csv",
        fields,
        by_experiment(rows, experiments),
        "50\u202f%: neither is better. The better variant of each pair comes first. "
        + _spread_note(rows, "Newcombe’s"),
    )
