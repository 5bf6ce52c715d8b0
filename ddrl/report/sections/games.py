"""Scores over several tasks in a report: aggregates, performance profiles, probability of improvement."""

from __future__ import annotations

from typing import Any

from ddrl.report.sections.cells import ORIGINS
from ddrl.report.sections.document import (
    Block,
    Cell,
    Group,
    Inline,
    Row,
    Table,
    Tables,
    cells_of,
    columns,
    joined,
    plain,
    small,
)
from ddrl.report.sections.text import number, percent, words

PROFILE_STEPS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0)
"""Human-normalised scores at which a performance profile is printed."""


def over_games(tables: Tables, experiments: dict[str, Any]) -> tuple[Block, ...]:
    """Scores over several tasks: aggregates, performance profile, probability of improvement.

    An aggregate needs several tasks, the others also several seeds; what has no data is left out.
    """
    aggregates = [row for row in tables.get("aggregates", []) if int(float(row["environments"])) > 1 and row["value"]]
    several = {_key(row) for row in aggregates if int(float(row["seeds"])) > 1}
    profiles = [row for row in tables.get("profiles", []) if _key(row) in several]
    improvement = [
        row
        for row in tables.get("improvement", [])
        if int(float(row["environments"])) > 1 and int(float(row["seeds"])) > 1 and float(row["value"]) >= 0.5
    ]
    found = [
        _aggregates(aggregates, experiments),
        _profiles(profiles, experiments),
        _improvement(improvement, experiments),
    ]
    return tuple(table for table in found if table)


def _key(row: Row) -> tuple[str, str, str]:
    return row["origin"], row["experiment"], row["variant"]


def _by_experiment(rows: list[Row], experiments: dict[str, Any], lines: dict[int, tuple[Cell, ...]]) -> list[Group]:
    names = list(dict.fromkeys(row["experiment"] for row in rows))
    return [
        Group(
            tuple(lines[index] for index, row in enumerate(rows) if row["experiment"] == name and index in lines),
            experiments[name]["title"],
        )
        for name in names
    ]


def _share(row: Row) -> Inline:
    return plain(f"[{percent(row['ci95_low'])}, {percent(row['ci95_high'])}]") if row["ci95_low"] else plain("–")


def _labels(experiments: dict[str, Any], row: Row, name: str) -> str:
    labels: dict[str, str] = experiments[row["experiment"]].get("labels", {})
    return labels.get(row[name], words(row[name]))


def _aggregates(rows: list[Row], experiments: dict[str, Any]) -> Table | None:
    lines = {
        index: cells_of(
            _labels(experiments, row, "variant"),
            ORIGINS[row["origin"]],
            _statistic(row),
            percent(row["value"]),
            _share(row),
            number(row["environments"]),
            number(row["seeds"]),
        )
        for index, row in enumerate(rows)
    }
    if not rows:
        return None
    return Table(
        "Human-normalised scores over all tasks that were run",
        "tables/aggregates.csv",
        columns(
            ("Variant", "1fr"),
            "Origin",
            ("Statistic", "1.2fr"),
            ("Value", "auto", "right"),
            "95\u00a0% interval",
            ("Tasks", "auto", "right"),
            ("Seeds", "auto", "right"),
        ),
        tuple(_by_experiment(rows, experiments, lines)),
        "Intervals: bootstrap over seeds, stratified by task; none with one seed. Optimality gap: how far scores stay "
        "below a human tester, 0\u202f% where none does.",
    )


def _statistic(row: Row) -> str:
    name = words(row["statistic"]).replace("iqm", "interquartile mean")
    return name if row["metric"] == "human_normalised_score" else f"{name} of {words(row['metric'])}"


def _profiles(rows: list[Row], experiments: dict[str, Any]) -> Table | None:
    """The part of all runs that reach a score, at a few scores."""
    kept: dict[tuple[str, ...], dict[float, Row]] = {}
    for row in rows:
        key = _key(row)
        for step in PROFILE_STEPS:
            best = kept.setdefault(key, {}).get(step)
            if best is None or abs(float(row["tau"]) - step) < abs(float(best["tau"]) - step):
                kept[key][step] = row
    if not kept:
        return None
    heads = [next(iter(found.values())) for found in kept.values()]
    lines = {
        index: cells_of(
            _labels(experiments, head, "variant"),
            ORIGINS[head["origin"]],
            *(
                joined([plain(percent(found[step]["fraction"])), small(_text(_share(found[step])))])
                for step in PROFILE_STEPS
            ),
        )
        for index, (head, found) in enumerate(zip(heads, kept.values(), strict=True))
    }
    taus = {step: next(iter(kept.values()))[step]["tau"] for step in PROFILE_STEPS}
    return Table(
        "Performance profile: the part of all runs whose human-normalised score is at least as high as the column says",
        "tables/profiles.csv",
        columns(("Variant", "1fr"), "Origin", *((percent(tau), "auto", "right") for tau in taus.values())),
        tuple(_by_experiment(heads, experiments, lines)),
        "Below each share its 95\u00a0% interval: bootstrap over seeds, stratified by task.",
    )


def _improvement(rows: list[Row], experiments: dict[str, Any]) -> Table | None:
    lines = {
        index: cells_of(
            f"{_labels(experiments, row, 'better')} over {_labels(experiments, row, 'worse')}",
            ORIGINS[row["origin"]],
            percent(row["value"]),
            _share(row),
            number(row["environments"]),
            number(row["seeds"]),
        )
        for index, row in enumerate(rows)
    }
    if not rows:
        return None
    return Table(
        "Probability that a run of one variant scores higher than one of another on the same task",
        "tables/improvement.csv",
        columns(
            ("Comparison", "1.5fr"),
            "Origin",
            ("Probability", "auto", "right"),
            "95\u00a0% interval",
            ("Tasks", "auto", "right"),
            ("Seeds", "auto", "right"),
        ),
        tuple(_by_experiment(rows, experiments, lines)),
        "50\u202f%: neither is better. The better variant of each pair comes first.",
    )


def _text(spans: Inline) -> str:
    return "".join(span.text for span in spans)
