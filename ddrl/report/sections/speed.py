"""What systems are and what they take, in the suite report: taxonomy, throughput, policy lag, compute."""

from __future__ import annotations

from ddrl.report.sections.cells import ORIGINS
from ddrl.report.sections.document import (
    Block,
    Cell,
    Group,
    Row,
    Table,
    cells_of,
    code,
    columns,
    joined,
    plain,
    small,
    strong,
)
from ddrl.report.sections.text import frames, moment, number, percent, words


def systems(rows: list[Row], names: dict[str, str]) -> tuple[Block, ...]:
    """The taxonomy: every algorithm with its topology, as the papers' settings state them."""
    lines = tuple(
        cells_of(
            joined(
                [strong(row["system"]), small(f"{names.get(row['paper'], row['paper'])}, {words(row['experiment'])}")]
            ),
            code(row["algorithm"]),
            row["moves"],
            row["schedule"],
            row["inference"],
            row["store"],
            row["runtime"],
            f"{row['num_actors']}\u00a0×\u00a0{row['envs_per_actor']}",
            row["learner_threads"],
            _bounds(row),
            row["networks"],
            row["tasks"],
        )
        for row in rows
    )
    if not lines:
        return ()
    table = Table(
        "Systems of the suite: an algorithm plus a topology",
        "tables/systems.csv",
        columns(
            ("System", "1.5fr"),
            "Algorithm",
            "Moves",
            ("Schedule", "auto"),
            ("Inference", "auto"),
            ("Store", "1fr"),
            ("Runtime", "auto"),
            ("Actors × envs", "auto", "right"),
            ("Learner threads", "auto", "right"),
            ("Lag", "0.9fr"),
            ("Networks", "0.9fr"),
            ("Tasks", "1fr"),
        ),
        (Group(lines),),
        "From experiments.yaml at scale paper and from what each algorithm’s module declares. Lag: the bound on "
        "policy lag and the delay of parameters, in learner updates.",
        size=8.0,
        ruled=True,
    )
    return (table,)


def _bounds(row: Row) -> str:
    """The bound on policy lag: none is possible where everyone waits for the update."""
    free = "0" if row["schedule"] == "synchronous" else "unbounded"
    parts = [
        f"at most {row['max_policy_lag']}" if row["max_policy_lag"] else free,
        f"delay {row['parameter_delay']}" if row["parameter_delay"] not in ("", "0") else "",
    ]
    return ", ".join(part for part in parts if part)


def layout(row: Row) -> str:
    """How a run was laid out on its machine."""
    learners = "" if row["learner_threads"] in ("", "1") else f", {row['learner_threads']} learner threads"
    delay = "" if row["parameter_delay"] in ("", "0") else f", parameters {row['parameter_delay']} updates late"
    actors = f"{row['num_actors']}\u00a0×\u00a0{row['envs_per_actor']}"
    central = ", central inference" if row["inference"] == "central" else ""
    return f"{row['runtime']}{central}, {row['schedule']}, {actors}{learners}{delay}"


def throughput(rows: list[Row], matrix: list[Row], names: dict[str, str]) -> tuple[Block, ...]:
    """Frames per second of training runs, and of benchmarks beside the sum of their parts."""
    labels = {(row["paper"], row["experiment"], row["variant"]): row["variant_label"] for row in matrix}
    tasks = {row["environment"]: row["env_label"] for row in matrix}
    runs: dict[tuple[str, str, str], list[tuple[Cell, ...]]] = {}
    benches: dict[tuple[str, str], list[tuple[Cell, ...]]] = {}
    for row in rows:
        what = ", ".join(part for part in (row["system"], row["network"], row["precision"]) if part)
        variant = labels.get((row["paper"], row["experiment"], row["variant"]), words(row["variant"]))
        wide = row["lowest"] != row["highest"]
        speed = (
            row["runs"],
            strong(number(row["frames_per_second"])),
            f"{number(row['lowest'])}–{number(row['highest'])}" if wide else "–",
        )
        task = tasks.get(row["environment"], row["environment"])
        if row["source"] == "bench":
            line = cells_of(
                joined([plain(f"{what}, {task}"), small(layout(row))]),
                *speed,
                number(row["bound"]),
                percent(row["ratio"]),
                number(row["policy_lag_mean"]),
                joined([small(row["limiting_part"] or "–"), code(row["file"])]),
            )
            benches.setdefault((row["origin"], row["machine"]), []).append(line)
        else:
            line = cells_of(joined([plain(variant), small(what)]), task, small(layout(row)), *speed)
            runs.setdefault((row["paper"], row["origin"], row["machine"]), []).append(line)
    return (*_speed_of_runs(runs, names), *_speed_of_benchmarks(benches))


def _speed_of_runs(
    groups: dict[tuple[str, str, str], list[tuple[Cell, ...]]], names: dict[str, str]
) -> tuple[Block, ...]:
    if not groups:
        return ()
    table = Table(
        "Throughput of training runs, in environment frames per second",
        "tables/throughput.csv",
        columns(
            ("System", "1fr"),
            ("Task", "auto"),
            ("Layout: actors × environments", "1.3fr"),
            ("Runs", "auto", "right"),
            ("Frames/s", "auto", "right"),
            ("Range", "auto", "right"),
        ),
        tuple(
            Group(tuple(lines), f"{names.get(paper, paper)}, {ORIGINS[origin]}", machine)
            for (paper, origin, machine), lines in groups.items()
        ),
        "Frames before frame skip, median over runs; recording, checkpoints and evaluation are part of the time, and "
        "other work on the machine slows a run.",
        size=8.2,
    )
    return (table,)


def _speed_of_benchmarks(groups: dict[tuple[str, str], list[tuple[Cell, ...]]]) -> tuple[Block, ...]:
    if not groups:
        return ()
    table = Table(
        "Benchmarks beside the sum of their parts, in environment frames per second",
        "tables/throughput.csv",
        columns(
            ("System", "1.1fr"),
            ("Repeats", "auto", "right"),
            ("Frames/s", "auto", "right"),
            ("Range", "auto", "right"),
            ("Bound", "auto", "right"),
            ("Of it", "auto", "right"),
            ("Lag", "auto", "right"),
            ("Limited by; file", "1.2fr"),
        ),
        tuple(
            Group(tuple(lines), ORIGINS[origin].capitalize(), machine) for (origin, machine), lines in groups.items()
        ),
        "Acting and learning alone. Bound: what the parts, each measured alone in the same run, could reach together.",
        size=8.2,
    )
    return (table,)


def lag(rows: list[Row], names: dict[str, str]) -> tuple[Block, ...]:
    """Policy lag of the runs."""
    groups: dict[tuple[str, str, str], list[tuple[Cell, ...]]] = {}
    for row in rows:
        line = cells_of(
            row["variant_label"],
            row["env_label"],
            small(layout(row)),
            row["runs"],
            number(row["lag_mean"]),
            number(row["lag_max"]),
        )
        groups.setdefault((row["paper"], row["experiment"], row["origin"]), []).append(line)
    if not groups:
        return ()
    table = Table(
        "Policy lag in learner updates",
        "tables/lag.csv",
        columns(
            ("Variant", "1fr"),
            ("Task", "0.7fr"),
            ("Layout: actors × environments", "1.5fr"),
            ("Runs", "auto", "right"),
            ("Mean", "auto", "right"),
            ("Largest", "auto", "right"),
        ),
        tuple(
            Group(tuple(lines), f"{names.get(paper, paper)}, {words(experiment)}", ORIGINS[origin])
            for (paper, experiment, origin), lines in groups.items()
        ),
        "Updates between the parameters that acted and those that learn. Mean: over training, then over seeds. "
        "Largest: of any batch.",
        size=8.2,
    )
    return (table,)


def compute(rows: list[Row], names: dict[str, str]) -> tuple[Block, ...]:
    """What the runs of each paper took."""
    lines = tuple(
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
    )
    if not lines:
        return ()
    table = Table(
        "Compute spent",
        "tables/compute.csv",
        columns(
            ("Paper", "1fr"),
            "Origin",
            ("Runs", "auto", "right"),
            ("Frames", "auto", "right"),
            ("Hours", "auto", "right"),
            ("Frames/s", "auto", "right"),
            ("Machines", "1fr"),
            "When",
        ),
        (Group(lines),),
        "Hours of training on the wall clock, summed over runs, also where runs went side by side.",
        size=8.2,
    )
    return (table,)


def _when(row: Row) -> str:
    if not row["started"] or not row["finished"]:
        return ""
    first, last = f"{moment(row['started']):%Y-%m-%d}", f"{moment(row['finished']):%Y-%m-%d}"
    return first if first == last else f"{first} to {last}"
