"""Sections about what frames take (speed, CPU, traffic, latencies, cost), and the tables of a paper's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ddrl.report.sections.document import Group, Line, Row, Table, Tables
from ddrl.report.sections.numbers import number, percent
from ddrl.report.sections.spans import strong
from ddrl.report.sections.tables import cells_of, columns, grouped, right

NOTE = (
    "Of runs whose actors, or environments, are in other processes; means over seeds. Frames/s: of training, from the "
    "first record to the last. CPU: seconds of all processes for a million frames. Learner: the part of the time that "
    "it does not wait for batches. Batch: columns of an inference batch. Call: milliseconds until inference has "
    "answered, median and 99th percentile over a run; round trip: the same as the worker sees it. Bytes: on the wire, "
    "for one frame. Lag: policy lag in updates, of the first and of the last steps of unrolls."
)


def efficiency(rows: Sequence[Row], experiments: dict[str, Any], subject: str, prices: dict[str, Any] | None) -> Table:
    """Return one line per variant and task, by experiment, of the runs that have several processes."""
    own = [row for row in rows if row["origin"] == subject and row["wire_bytes_per_frame"]]
    priced = any(row["dollars_per_billion_frames"] for row in own)
    headings = ("Seeds", "Frames/s", "CPU", "Learner", "Batch", "Call", "Round trip", "Bytes to", "Bytes from", "Lag")
    groups = [
        Group(
            [_line(key, same, priced) for key, same in grouped(runs, "variant_label", "env_label").items()],
            experiments[name]["title"],
        )
        for (name,), runs in grouped(own, "experiment").items()
    ]
    cost = (
        f" Cost: dollars for a billion frames, at {prices['cpu_core_hour']:.2f} for an hour that a core works and "
        f"{prices['accelerator_hour']:.2f} for an hour that an accelerator is held ({prices['source']})."
        if prices
        else ""
    )
    machines = sorted({", ".join(filter(None, (row["cpu"], f"{row['cores']} cores", row["gpu"]))) for row in own})
    return Table(
        "What frames take",
        "tables/efficiency.csv",
        columns(("Variant and task", "1fr"), *right(*headings, *(["Cost"] if priced else []))),
        groups,
        f"{NOTE}{cost} Measured on {'; '.join(machines)}.",
        size=7.6,
    )


def _line(key: Sequence[str], rows: Sequence[Row], priced: bool) -> Line:
    """Return variant and task, and the means over runs of what was measured."""

    def mean(name: str, shown: Callable[[float], str] = number) -> str:
        values = [float(row[name]) for row in rows if row[name]]
        return shown(sum(values) / len(values)) if values else "–"

    def both(first: str, second: str, between: str) -> str:
        return between.join(dict.fromkeys((mean(first), mean(second))))

    return cells_of(
        ", ".join(key),
        str(len(rows)),
        strong(mean("steady_frames_per_second")),
        mean("cpu_seconds_per_million_frames"),
        mean("learner_utilisation", percent),
        mean("inference_columns_mean"),
        both("inference_call_ms_p50", "inference_call_ms_p99", " / "),
        both("round_trip_ms_p50", "round_trip_ms_p99", " / "),
        mean("wire_bytes_per_frame_to_learner"),
        mean("wire_bytes_per_frame_from_learner"),
        both("policy_lag_first", "policy_lag_last", "\u202f→\u202f"),
        *([mean("dollars_per_billion_frames")] if priced else []),
    )


def derived(wanted: Iterable[dict[str, Any]], tables: Tables) -> list[Table]:
    """Return the tables of the paper's own; a column that holds only numbers is right-aligned."""
    found = []
    for table in wanted:
        rows, source = tables.get(table["name"], []), f"tables/{table['name']}.csv"
        numeric = {name for name in table["columns"] if all(_is_number(row[name]) for row in rows)}
        stated = [
            (heading, "auto", "right") if name in numeric else (heading, _width(rows, name))
            for name, heading in table["columns"].items()
        ]
        lines = [
            cells_of(*(number(row[name]) if name in numeric else row[name] for name in table["columns"]))
            for row in rows
        ]
        found.append(Table(table["title"], source, columns(*stated), [Group(lines)], table["note"], size=7.6))
    return found


def _is_number(text: str) -> bool:
    try:
        float(text or 0)
    except ValueError:
        return False
    return True


def _width(rows: Sequence[Row], name: str) -> str:
    """Return the width of a column of texts: as wide as short texts need; for long ones a share by their length."""
    longest = max(len(row[name]) for row in rows)
    return "auto" if longest <= 32 else f"{min(3.0, longest / 60):.1f}fr"
