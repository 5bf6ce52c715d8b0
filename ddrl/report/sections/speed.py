"""Sections of the suite report about systems and what they take: taxonomy, throughput, policy lag, compute."""

from __future__ import annotations

from ddrl.report.sections.cells import ORIGINS
from ddrl.report.sections.document import Group, Line, Row, Table
from ddrl.report.sections.numbers import frames, moment, number, percent
from ddrl.report.sections.spans import code, joined, plain, small, strong
from ddrl.report.sections.tables import cells_of, columns, grouped, right
from ddrl.report.sections.text import words


def systems(rows: list[Row], names: dict[str, str]) -> Table:
    """Return every algorithm with its topology, as the papers' settings state them."""
    lines = [
        cells_of(
            joined(
                [strong(row["system"]), small(f"{names.get(row['paper'], row['paper'])}, {words(row['experiment'])}")]
            ),
            code(row["algorithm"]),
            *(row[name] for name in ("moves", "schedule", "inference", "store", "runtime")),
            _actors(row),
            row["learner_threads"],
            _bounds(row),
            row["networks"],
            row["tasks"],
        )
        for row in rows
    ]
    return Table(
        "Systems of the suite: an algorithm plus a topology",
        "tables/systems.csv",
        columns(
            ("System", "1.5fr"),
            *("Algorithm", "Moves", "Schedule", "Inference"),
            ("Store", "1fr"),
            "Runtime",
            *right("Actors × envs", "Learner threads"),
            ("Lag", "0.9fr"),
            ("Networks", "0.9fr"),
            ("Tasks", "1fr"),
        ),
        [Group(lines)],
        "From experiments.yaml at scale paper and from what each algorithm’s module declares. Lag: the bound on "
        "policy lag and the delay of parameters, in learner updates.",
        size=8.0,
        ruled=True,
    )


def _actors(row: Row) -> str:
    return f"{row['num_actors']}\u00a0×\u00a0{row['envs_per_actor']}"


def _bounds(row: Row) -> str:
    """Return the bound on policy lag (0 where the schedule is synchronous) and the delay of parameters."""
    free = "0" if row["schedule"] == "synchronous" else "unbounded"
    bound = f"at most {row['max_policy_lag']}" if row["max_policy_lag"] else free
    return bound if row["parameter_delay"] in ("", "0") else f"{bound}, delay {row['parameter_delay']}"


def layout(row: Row) -> str:
    """Return how a run was laid out on its machine."""
    learners = "" if row["learner_threads"] in ("", "1") else f", {row['learner_threads']} learner threads"
    delay = "" if row["parameter_delay"] in ("", "0") else f", parameters {row['parameter_delay']} updates late"
    central = ", central inference" if row["inference"] == "central" else ""
    return f"{row['runtime']}{central}, {row['schedule']}, {_actors(row)}{learners}{delay}"


def throughput(rows: list[Row], matrix: list[Row], names: dict[str, str]) -> tuple[Table, Table]:
    """Return the frames per second of training runs, and of benchmarks beside the sum of their parts."""
    labels = {(row["paper"], row["experiment"], row["variant"]): row["variant_label"] for row in matrix}
    tasks = {row["environment"]: row["env_label"] for row in matrix}
    runs = grouped((row for row in rows if row["source"] != "bench"), "paper", "origin", "machine")
    benches = grouped((row for row in rows if row["source"] == "bench"), "origin", "machine")
    return (
        Table(
            "Throughput of training runs, in environment frames per second",
            "tables/throughput.csv",
            columns(
                ("System", "1fr"),
                "Task",
                ("Layout: actors × environments", "1.3fr"),
                *right("Runs", "Frames/s", "Range"),
            ),
            [
                Group(
                    [_run_line(row, labels, tasks) for row in own],
                    f"{names.get(paper, paper)}, {ORIGINS[origin]}",
                    machine,
                )
                for (paper, origin, machine), own in runs.items()
            ],
            "Frames before frame skip, median over runs; recording, checkpoints and evaluation are part of the time, "
            "and other work on the machine slows a run.",
            size=8.2,
        ),
        Table(
            "Benchmarks beside the sum of their parts, in environment frames per second",
            "tables/throughput.csv",
            columns(
                ("System", "1.1fr"),
                *right("Repeats", "Frames/s", "Range", "Bound", "Of it", "Lag"),
                ("Limited by; file", "1.2fr"),
            ),
            [
                Group([_bench_line(row, tasks) for row in own], ORIGINS[origin].capitalize(), machine)
                for (origin, machine), own in benches.items()
            ],
            "Acting and learning alone. Bound: what the parts, each measured alone in the same run, could reach "
            "together.",
            size=8.2,
        ),
    )


def _run_line(row: Row, labels: dict[tuple[str, str, str], str], tasks: dict[str, str]) -> Line:
    variant = labels.get((row["paper"], row["experiment"], row["variant"]), words(row["variant"]))
    task = tasks.get(row["environment"], row["environment"])
    return (
        *cells_of(joined([plain(variant), small(_system(row))]), task, small(layout(row))),
        *_speed(row),
    )


def _bench_line(row: Row, tasks: dict[str, str]) -> Line:
    task = tasks.get(row["environment"], row["environment"])
    return (
        *cells_of(joined([plain(f"{_system(row)}, {task}"), small(layout(row))])),
        *_speed(row),
        *cells_of(
            number(row["bound"]),
            percent(row["ratio"]),
            number(row["policy_lag_mean"]),
            joined([small(row["limiting_part"] or "–"), code(row["file"])]),
        ),
    )


def _system(row: Row) -> str:
    return ", ".join(filter(None, (row["system"], row["network"], row["precision"])))


def _speed(row: Row) -> Line:
    """Return the number of runs, their median speed, and the range of their speeds."""
    wide = row["lowest"] != row["highest"]
    limits = f"{number(row['lowest'])}–{number(row['highest'])}" if wide else "–"
    return cells_of(row["runs"], strong(number(row["frames_per_second"])), limits)


def lag(rows: list[Row], names: dict[str, str]) -> Table:
    """Return the policy lag of the runs, by experiment and origin."""

    def line(row: Row) -> Line:
        return cells_of(
            row["variant_label"],
            row["env_label"],
            small(layout(row)),
            row["runs"],
            number(row["lag_mean"]),
            number(row["lag_max"]),
        )

    return Table(
        "Policy lag in learner updates",
        "tables/lag.csv",
        columns(
            ("Variant", "1fr"),
            ("Task", "0.7fr"),
            ("Layout: actors × environments", "1.5fr"),
            *right("Runs", "Mean", "Largest"),
        ),
        [
            Group([line(row) for row in own], f"{names.get(paper, paper)}, {words(experiment)}", ORIGINS[origin])
            for (paper, experiment, origin), own in grouped(rows, "paper", "experiment", "origin").items()
        ],
        "Updates between the parameters that acted and those that learn. Mean: over training, then over seeds. "
        "Largest: of any batch.",
        size=8.2,
    )


def compute(rows: list[Row], names: dict[str, str]) -> Table:
    """Return what the runs of each paper took."""
    lines = [
        cells_of(
            strong(names.get(row["paper"], row["paper"])),
            ORIGINS[row["origin"]],
            row["runs"],
            frames(row["env_frames"]),
            number(row["hours"]),
            number(row["frames_per_second"]),
            small(row["machines"]),
            small(_when(row)),
        )
        for row in rows
    ]
    return Table(
        "Compute spent",
        "tables/compute.csv",
        columns(("Paper", "1fr"), "Origin", *right("Runs", "Frames", "Hours", "Frames/s"), ("Machines", "1fr"), "When"),
        [Group(lines)],
        "Hours of training on the wall clock, summed over runs, also where runs went side by side.",
        size=8.2,
    )


def _when(row: Row) -> str:
    """Return the days of the first and the last run."""
    if not row["started"] or not row["finished"]:
        return ""
    return " to ".join(dict.fromkeys(f"{moment(row[name]):%Y-%m-%d}" for name in ("started", "finished")))
