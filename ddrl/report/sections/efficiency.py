"""What frames take, in a report: speed, CPU, traffic, latencies and cost; and the tables of a paper's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

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
    plain,
    strong,
)
from ddrl.report.sections.text import number, percent

NOTE = (
    "Of runs whose actors, or environments, are in other processes; means over seeds. Frames/s: of training, from the "
    "first record to the last. CPU: seconds of all processes for a million frames. Learner: the part of the time that "
    "it does not wait for batches. Batch: columns of an inference batch. Call: milliseconds until inference has "
    "answered, median and 99th percentile over a run; round trip: the same as the worker sees it. Bytes: on the wire, "
    "for one frame. Lag: policy lag in updates, of the first and of the last steps of unrolls."
)


def efficiency(
    rows: Sequence[Row], experiments: dict[str, Any], subject: str, prices: dict[str, Any] | None
) -> tuple[Block, ...]:
    """One line per variant and task, by experiment; nothing where no run has another process."""
    own = [row for row in rows if row["origin"] == subject and row["wire_bytes_per_frame"]]
    groups: dict[str, dict[tuple[str, str], list[Row]]] = {}
    for row in own:
        lines = groups.setdefault(row["experiment"], {})
        lines.setdefault((row["variant_label"], row["env_label"]), []).append(row)
    if not groups:
        return ()
    priced = any(row["dollars_per_billion_frames"] for row in own)
    headings = ("Seeds", "Frames/s", "CPU", "Learner", "Batch", "Call", "Round trip", "Bytes to", "Bytes from", "Lag")
    stated = [(heading, "auto", "right") for heading in (*headings, *(["Cost"] if priced else []))]
    table = Table(
        "What frames take",
        "tables/efficiency.csv",
        columns(("Variant and task", "1fr"), *stated),
        tuple(
            Group(tuple(_line(key, same, priced) for key, same in lines.items()), experiments[name]["title"])
            for name, lines in groups.items()
        ),
        NOTE + (_cost(prices) if prices else "") + _machines(own),
        size=7.6,
    )
    return (table,)


def _cost(prices: dict[str, Any]) -> str:
    return (
        f" Cost: dollars for a billion frames, at {prices['cpu_core_hour']:.2f} for an hour that a core works and "
        f"{prices['accelerator_hour']:.2f} for an hour that an accelerator is held ({prices['source']})."
    )


def _machines(rows: Iterable[Row]) -> str:
    found = sorted({f"{row['cpu']}, {row['cores']} cores" + (f", {row['gpu']}" if row["gpu"] else "") for row in rows})
    return f" Measured on {'; '.join(found)}."


def _line(key: tuple[str, str], rows: Sequence[Row], priced: bool) -> tuple[Cell, ...]:
    """Variant, task, and the means of what was measured."""

    def mean(name: str, shown: Callable[[float], str] = number) -> str:
        values = [float(row[name]) for row in rows if row[name]]
        return shown(sum(values) / len(values)) if values else "–"

    def both(first: str, second: str, between: str) -> str:
        low, high = mean(first), mean(second)
        return low if low == high else f"{low}{between}{high}"

    contents: list[str | Inline] = [
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
    ]
    return cells_of(*contents, *([mean("dollars_per_billion_frames")] if priced else []))


def derived(wanted: Iterable[dict[str, Any]], tables: Tables) -> tuple[Block, ...]:
    """The tables of the paper's own that have rows: numbers to the right, texts as they are."""
    found: list[Block] = []
    for table in wanted:
        rows = tables.get(table["name"], [])
        if not rows:
            continue
        headings = table["columns"]
        numeric = {name for name in headings if all(_is_number(row[name]) for row in rows)}
        stated = [
            (heading, "auto", "right") if name in numeric else (heading, _width(rows, name))
            for name, heading in headings.items()
        ]
        lines = tuple(
            cells_of(*(number(row[name]) if name in numeric else plain(row[name]) for name in headings)) for row in rows
        )
        source = f"tables/{table['name']}.csv"
        found.append(Table(table["title"], source, columns(*stated), (Group(lines),), table["note"], size=7.6))
    return tuple(found)


def _is_number(text: str) -> bool:
    try:
        float(text or 0)
    except ValueError:
        return False
    return True


def _width(rows: Sequence[Row], name: str) -> str:
    """Short texts take what they need, long ones share what is left by their length."""
    longest = max(len(row[name]) for row in rows)
    return "auto" if longest <= 32 else f"{min(3.0, longest / 60):.1f}fr"
