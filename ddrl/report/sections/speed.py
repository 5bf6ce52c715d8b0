"""Sections of the suite report about systems and what they take: taxonomy, throughput, policy lag, compute."""

from __future__ import annotations

from ddrl.report.sections.cells import ORIGINS
from ddrl.report.sections.document import Field, Group, Row, Table
from ddrl.report.sections.numbers import frames, moment, number, percent
from ddrl.report.sections.spans import Inline, code, joined, plain, small, strong
from ddrl.report.sections.tables import Fields, grouped, numeric, right, table_of
from ddrl.report.sections.text import words


def systems(rows: list[Row], names: dict[str, str]) -> Table:
    """Return every algorithm with its topology, as the papers' settings state them."""

    def system(row: Row) -> Inline:
        experiment = f"{names.get(row['paper'], row['paper'])}, {words(row['experiment'])}"
        return joined([strong(row["system"]), small(experiment)])

    fields: Fields[Row] = (
        Field("System", system, "1.5fr"),
        Field("Algorithm", lambda row: code(row["algorithm"])),
        Field("Moves", lambda row: row["moves"]),
        Field("Schedule", lambda row: row["schedule"]),
        Field("Inference", lambda row: row["inference"]),
        Field("Store", lambda row: row["store"], "1fr"),
        Field("Runtime", lambda row: row["runtime"]),
        right("Actors × envs", _actors),
        numeric("Learner threads", "learner_threads"),
        Field("Lag", _bounds, "0.9fr"),
        Field("Networks", lambda row: row["networks"], "0.9fr"),
        Field("Tasks", lambda row: row["tasks"], "1fr"),
    )
    return table_of(
        "Systems of the suite: an algorithm plus a topology",
        "tables/systems.csv",
        fields,
        [Group(rows)],
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

    def task(row: Row) -> str:
        return tasks.get(row["environment"], row["environment"])

    def trained(row: Row) -> Inline:
        variant = labels.get((row["paper"], row["experiment"], row["variant"]), words(row["variant"]))
        return joined([plain(variant), small(_system(row))])

    speed: Fields[Row] = (
        numeric("Frames/s", "frames_per_second", lambda value: strong(number(value))),
        right("Range", _range),
    )
    of_runs: Fields[Row] = (
        Field("System", trained, "1fr"),
        Field("Task", task),
        Field("Layout: actors × environments", lambda row: small(layout(row)), "1.3fr"),
        numeric("Runs", "runs"),
        *speed,
    )
    of_benchmarks: Fields[Row] = (
        Field("System", lambda row: joined([plain(f"{_system(row)}, {task(row)}"), small(layout(row))]), "1.1fr"),
        numeric("Repeats", "runs"),
        *speed,
        numeric("Bound", "bound", number),
        numeric("Of it", "ratio", percent),
        numeric("Lag", "policy_lag_mean", number),
        Field("Limited by; file", lambda row: joined([small(row["limiting_part"] or "–"), code(row["file"])]), "1.2fr"),
    )
    runs = grouped((row for row in rows if row["source"] != "bench"), "paper", "origin", "machine")
    benchmarks = grouped((row for row in rows if row["source"] == "bench"), "origin", "machine")
    return (
        table_of(
            "Throughput of training runs, in environment frames per second",
            "tables/throughput.csv",
            of_runs,
            [
                Group(own, f"{names.get(paper, paper)}, {ORIGINS[origin]}", machine)
                for (paper, origin, machine), own in runs.items()
            ],
            "Frames before frame skip, median over runs; recording, checkpoints and evaluation are part of the time, "
            "and other work on the machine slows a run.",
            size=8.2,
        ),
        table_of(
            "Benchmarks beside the sum of their parts, in environment frames per second",
            "tables/throughput.csv",
            of_benchmarks,
            [Group(own, ORIGINS[origin].capitalize(), machine) for (origin, machine), own in benchmarks.items()],
            "Acting and learning alone. Bound: what the parts, each measured alone in the same run, could reach "
            "together.",
            size=8.2,
        ),
    )


def _system(row: Row) -> str:
    return ", ".join(filter(None, (row["system"], row["network"], row["precision"])))


def _range(row: Row) -> str:
    wide = row["lowest"] != row["highest"]
    return f"{number(row['lowest'])}–{number(row['highest'])}" if wide else "–"


def lag(rows: list[Row], names: dict[str, str]) -> Table:
    """Return the policy lag of the runs, by experiment and origin."""
    fields: Fields[Row] = (
        Field("Variant", lambda row: row["variant_label"], "1fr"),
        Field("Task", lambda row: row["env_label"], "0.7fr"),
        Field("Layout: actors × environments", lambda row: small(layout(row)), "1.5fr"),
        numeric("Runs", "runs"),
        numeric("Mean", "lag_mean", number),
        numeric("Largest", "lag_max", number),
    )
    return table_of(
        "Policy lag in learner updates",
        "tables/lag.csv",
        fields,
        [
            Group(own, f"{names.get(paper, paper)}, {words(experiment)}", ORIGINS[origin])
            for (paper, experiment, origin), own in grouped(rows, "paper", "experiment", "origin").items()
        ],
        "Updates between the parameters that acted and those that learn. Mean: over training, then over seeds. "
        "Largest: of any batch.",
        size=8.2,
    )


def compute(rows: list[Row], names: dict[str, str]) -> Table:
    """Return what the runs of each paper took."""
    fields: Fields[Row] = (
        Field("Paper", lambda row: strong(names.get(row["paper"], row["paper"])), "1fr"),
        Field("Origin", lambda row: ORIGINS[row["origin"]]),
        numeric("Runs", "runs"),
        numeric("Frames", "env_frames", frames),
        numeric("Hours", "hours", number),
        numeric("Frames/s", "frames_per_second", number),
        Field("Machines", lambda row: small(row["machines"]), "1fr"),
        Field("When", lambda row: small(_when(row))),
    )
    return table_of(
        "Compute spent",
        "tables/compute.csv",
        fields,
        [Group(rows)],
        "Hours of training on the wall clock, summed over runs, also where runs went side by side.",
        size=8.2,
    )


def _when(row: Row) -> str:
    """Return the days of the first and the last run."""
    if not row["started"] or not row["finished"]:
        return ""
    return " to ".join(dict.fromkeys(f"{moment(row[name]):%Y-%m-%d}" for name in ("started", "finished")))
