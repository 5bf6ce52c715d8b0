"""Sections about other people's libraries that carry out the same configurations: what they learn, and how fast."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ddrl.report.sections.cells import ORIGINS, verdict_tag
from ddrl.report.sections.document import Block, Cell, Field, Group, Row, Table, Text
from ddrl.report.sections.numbers import frames, interval, moment, number, ratio
from ddrl.report.sections.spans import Inline, joined, plain, small, strong
from ddrl.report.sections.tables import Fields, by_experiment, grouped, numeric, right, table_of
from ddrl.report.sections.text import words

RETURNS = {"mean_return": "over all frames", "final_return": "at the end"}
"""Which return a row compares."""
INTRODUCTION = (
    "The same configuration, carried out by our code and by another library: the same task, network, settings and "
    "frames."
)
LEARNING = (
    "Ratio: ours over theirs, of the return above random play, with its 90\u00a0% interval. Equivalent: the interval "
    "lies within the margin, which is fixed in the paper’s file. Above, below: it lies outside. Over all frames: the "
    "training return averaged over frames. Not the same: settings that the library cannot be given, or takes otherwise."
)
SPEED = (
    "Acting and learning, all systems in turn in one measurement; medians over its repeats, and in brackets the lowest "
    "and the highest. CPU and memory are those of all processes. Steps, samples: gradient steps, and samples in them, "
    "per agent step; where they are equal the work is. To best: speed over that of the fastest other library in the "
    "same repeats."
)


def peers(learning_rows: list[Row], speed_rows: list[Row], experiments: dict[str, Any], subject: str) -> list[Block]:
    """Return both tables; nothing where no variant is carried out by a peer."""
    if not learning_rows:
        return []
    return [Text(plain(INTRODUCTION)), learning(learning_rows, experiments, subject), speeds(speed_rows)]


def shown_learning(rows: Iterable[Row], subject: str) -> list[Row]:
    """Return one row for each comparison: the subject's own, or that of another origin where the subject has no runs.

    Both returns of a pair follow each other. A pair without runs has one row for both.
    """
    shown = []
    for both in grouped(rows, "experiment", "environment", "peer_variant").values():
        found = [
            min(same, key=lambda row: (row["verdict"] == "not_run", row["origin"] != subject))
            for same in grouped(both, "metric").values()
        ]
        ran = [row for row in found if row["verdict"] != "not_run"]
        shown += ran or found[:1]
    return shown


def learning(rows: Iterable[Row], experiments: dict[str, Any], subject: str) -> Table:
    """Return our returns beside those of peers, by experiment; what both returns of a pair share is one cell."""
    lines = []
    for same in grouped(shown_learning(rows, subject), "experiment", "environment", "peer_variant").values():
        lines += [row | {"rows": str(len(same)) if row is same[0] else ""} for row in same]

    def task(row: Row) -> Inline:
        other = f" ({ORIGINS[row['origin']]})" if row["origin"] != subject else ""
        return joined([strong(row["library"]), small(row["env_label"] + other)])

    def seeds(row: Row) -> Inline:
        return plain(f"{number(row['seeds'])}\u202f/\u202f{number(row['peer_seeds'])}")

    fields: Fields[Row] = (
        Field("Library and task", _shared(task), "1.4fr"),
        Field("Return", return_of),
        numeric("Ours", "ours", number),
        numeric("Theirs", "theirs", number),
        right("Ratio", _ratio),
        Field("Seeds", _shared(seeds), "auto", "right"),
        Field("Frames", _shared(lambda row: plain(frames(row["env_frames"]))), "auto", "right"),
        Field("Not the same", _shared(lambda row: small(not_the_same(row))), "1.4fr"),
        Field("Verdict", _verdict, "1.2fr", "right"),
    )
    margin = "".join(f" Margin: {ratio(float(row['margin']))}." for row in lines[:1])
    groups = by_experiment(lines, experiments)
    return table_of(
        "Returns beside other libraries", "tables/peer_learning.csv", fields, groups, LEARNING + margin, size=8.2
    )


def _shared(text: Callable[[Row], Inline]) -> Callable[[Row], Cell | None]:
    """Return a cell that reaches over all rows of a pair."""
    return lambda row: Cell(text(row), int(row["rows"])) if row["rows"] else None


def _ratio(row: Row) -> Inline:
    limits = small(f" {interval(row['ci90_low'], row['ci90_high'])}") if row["ci90_low"] else ()
    return (*strong(number(row["ratio"])), *limits)


def _verdict(row: Row) -> Inline:
    """Return the verdict, with its reason where it does not follow from the interval alone."""
    reason = row["detail"] if row["verdict"] == "not_run" or undecidable(row) else ""
    return joined([verdict_tag(row), small(reason)]) if reason else verdict_tag(row)


def undecidable(row: Row) -> bool:
    """Return whether something else than the interval keeps a comparison open."""
    return row["verdict"] == "inconclusive" and not row["detail"].startswith("the 90 %")


def not_the_same(row: Row) -> str:
    """Return the settings that the library cannot be given, or takes otherwise, in words."""
    return ", ".join(words(key) for key in row["unmapped"].split("; ") if key)


def return_of(row: Row) -> str:
    """Return which return a row compares; both where nothing ran."""
    return "both" if row["verdict"] == "not_run" else RETURNS[row["metric"]]


def speeds(rows: Iterable[Row]) -> Table:
    """Return the measured speeds, a group for each measurement with where and how it was made."""
    fields: Fields[Row] = (
        Field("System", lambda row: joined([strong(row["title"]), small(row["versions"])]), "1.3fr"),
        numeric("Threads", "threads"),
        right("Frames/s", speed_of),
        numeric("CPU s / 1\u202f000", "cpu_seconds_per_1000_frames", number),
        numeric("MiB", "peak_memory_mib", number),
        numeric("Steps", "gradient_steps_per_step", number),
        numeric("Samples", "trained_samples_per_step", number),
        right("To best", to_best),
        numeric("Repeats", "runs"),
    )
    groups = [Group(own, measured_what(own[0]), measured_where(own[0])) for own in _by_file(rows)]
    return table_of("Speed beside other libraries", "tables/peer_speed.csv", fields, groups, SPEED, size=7.8)


def _by_file(rows: Iterable[Row]) -> list[list[Row]]:
    return list(grouped(rows, "origin", "file").values())


def speed_of(row: Row) -> Inline:
    """Return the median speed with its range."""
    return (*strong(number(row["frames_per_second"])), *small(f" {interval(row['lowest'], row['highest'])}"))


def to_best(row: Row) -> Inline:
    """Return how many times as fast as the fastest peer a system is, with its range."""
    if not row["to_best_peer"]:
        return ()
    low, high = row["to_best_peer_lowest"], row["to_best_peer_highest"]
    return (*strong(number(row["to_best_peer"])), *small(f" {interval(low, high)}"))


def measured_what(row: Row) -> str:
    """Return what a measurement was of."""
    return f"{row['algorithm'].upper()} on {row['environment']}, {ORIGINS[row['origin']]}"


def measured_where(row: Row) -> str:
    """Return where and when a measurement was made, from which commit, and the command."""
    commit = (row["git_sha"] or "unknown")[:8] + (" with uncommitted changes" if row["git_dirty"] == "True" else "")
    return f"{row['machine']}; {moment(row['date']):%Y-%m-%d}; commit {commit}; {row['command']}"
