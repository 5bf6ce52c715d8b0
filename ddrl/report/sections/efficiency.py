"""Sections about what frames take (speed, CPU, traffic, latencies, cost), and the tables of a paper's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any

from ddrl.report.sections.document import Field, Group, Row, Table, Tables
from ddrl.report.sections.numbers import number, percent
from ddrl.report.sections.spans import strong
from ddrl.report.sections.tables import Fields, by_experiment, merged, numeric, of_origin, right, table_of

NOTE = (
    "Of runs whose actors, or environments, are in other processes; means over seeds. Frames/s: of training, from the "
    "first record to the last. CPU: seconds of all processes for a million frames. Learner: the part of the time that "
    "it does not wait for batches. Batch: columns of an inference batch. Call: milliseconds until inference has "
    "answered, median and 99th percentile over a run; round trip: the same as the worker sees it. Bytes: on the wire, "
    "for one frame. Lag: policy lag in updates, of the first and of the last steps of unrolls."
)


def efficiency(rows: Sequence[Row], experiments: dict[str, Any], subject: str, prices: dict[str, Any] | None) -> Table:
    """Return one line per variant and task, by experiment, of the runs that have several processes."""
    own = [row for row in of_origin(rows, subject) if row["wire_bytes_per_frame"]]
    priced = any(row["dollars_per_billion_frames"] for row in own)
    fields: Fields[list[Row]] = (
        Field("Variant and task", lambda runs: f"{runs[0]['variant_label']}, {runs[0]['env_label']}", "1fr"),
        right("Seeds", lambda runs: str(len(runs))),
        right("Frames/s", lambda runs: strong(_mean(runs, "steady_frames_per_second"))),
        _means("CPU", "cpu_seconds_per_million_frames"),
        right("Learner", lambda runs: _mean(runs, "learner_utilisation", percent)),
        _means("Batch", "inference_columns_mean"),
        _means("Call", "inference_call_ms_p50", "inference_call_ms_p99"),
        _means("Round trip", "round_trip_ms_p50", "round_trip_ms_p99"),
        _means("Bytes to", "wire_bytes_per_frame_to_learner"),
        _means("Bytes from", "wire_bytes_per_frame_from_learner"),
        _means("Lag", "policy_lag_first", "policy_lag_last", between="\u202f→\u202f"),
        *([_means("Cost", "dollars_per_billion_frames")] if priced else []),
    )
    cost = (
        f" Cost: dollars for a billion frames, at {prices['cpu_core_hour']:.2f} for an hour that a core works and "
        f"{prices['accelerator_hour']:.2f} for an hour that an accelerator is held ({prices['source']})."
        if prices
        else ""
    )
    machines = sorted({", ".join(filter(None, (row["cpu"], f"{row['cores']} cores", row["gpu"]))) for row in own})
    return table_of(
        "What frames take",
        "tables/efficiency.csv",
        fields,
        merged(by_experiment(own, experiments), "variant_label", "env_label"),
        f"{NOTE}{cost} Measured on {'; '.join(machines)}.",
        size=7.6,
    )


def _mean(runs: Sequence[Row], name: str, shown: Callable[[float], str] = number) -> str:
    values = [float(run[name]) for run in runs if run[name]]
    return shown(sum(values) / len(values)) if values else "–"


def _means(title: str, *names: str, between: str = " / ") -> Field[list[Row]]:
    """Return the column of the means over runs of one measurement, or of two; equal ones are printed once."""
    return right(title, lambda runs: between.join(dict.fromkeys(_mean(runs, name) for name in names)))


def derived(wanted: Iterable[dict[str, Any]], tables: Tables) -> list[Table]:
    """Return the tables of the paper's own; a column that holds only numbers is right-aligned."""
    found = []
    for table in wanted:
        rows, source = tables.get(table["name"], []), f"tables/{table['name']}.csv"
        fields = tuple(_derived_field(heading, name, rows) for name, heading in table["columns"].items())
        found.append(table_of(table["title"], source, fields, [Group(rows)], table["note"], size=7.6))
    return found


def _derived_field(heading: str, name: str, rows: Sequence[Row]) -> Field[Row]:
    """Return a column of numbers; or of texts, as wide as short texts need, for long ones a share by their length."""
    if all(_is_number(row[name]) for row in rows):
        return numeric(heading, name, number)
    longest = max(len(row[name]) for row in rows)
    return Field(heading, itemgetter(name), "auto" if longest <= 32 else f"{min(3.0, longest / 60):.1f}fr")


def _is_number(text: str) -> bool:
    try:
        float(text or 0)
    except ValueError:
        return False
    return True
