"""The runs in a report: scores side by side, reference runs, holes, departures, settings, provenance."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from ddrl.analysis.runs.milestones import FEWEST_EPISODES
from ddrl.report.sections.cells import ORIGINS, flags_of
from ddrl.report.sections.document import (
    BREAK,
    Block,
    Cell,
    Fact,
    Facts,
    Figure,
    Group,
    Inline,
    Row,
    Span,
    Table,
    Tables,
    Text,
    cells_of,
    code,
    columns,
    joined,
    plain,
    small,
    strong,
)
from ddrl.report.sections.text import counted, duration, frames, listed, number, percent, span, words

WHOSE = {
    "run": "this run, or of the reference runs where there is no other",
    "reference": "the reference runs",
}
HUMAN = "0\u202f% is random play, 100\u202f% a human tester."
GAP = "Gap: records were lost while the run trained (a damaged disk, a deleted file), and its curves lack them."
PROBLEMS = {
    "missing": "there is no finished run",
    "damaged": "the file cannot be read",
    "not_finite": "a value is not finite",
    "different_config": "the configuration is not the one that was asked for",
    "unreadable_manifest": "the manifest cannot be read",
}


def _swept(rows: Iterable[Row]) -> dict[tuple[str, str], set[str]]:
    """(experiment, system) -> its settings, where a sweep spread several over variants named <system>__<setting>."""
    found: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        system, setting = row["variant"].partition("__")[::2]
        if setting:
            found.setdefault((row["experiment"], system), set()).add(setting)
    return {key: settings for key, settings in found.items() if len(settings) > 1}


def _is_swept(row: Row, sweeps: dict[tuple[str, str], set[str]]) -> bool:
    return (row["experiment"], row["variant"].partition("__")[0]) in sweeps


def _left_out(rows: Iterable[Row], sweeps: dict[tuple[str, str], set[str]]) -> str:
    """What a table says that does not list the runs of a sweep's settings one by one."""
    number_of_runs = sum(_is_swept(row, sweeps) for row in rows)
    return f" Not listed: {counted(number_of_runs, 'run')} of a sweep’s settings." if number_of_runs else ""


def side_by_side(tables: Tables, experiments: dict[str, Any], subject: str) -> tuple[Block, ...]:
    """Final scores of this run's and the reference runs' seeds, one row per variant and environment."""
    groups: dict[str, dict[tuple[str, str], list[Row]]] = {}
    sweeps = _swept(tables["scores"])
    for row in tables["scores"]:
        if row["final_return"]:
            lines = groups.setdefault(row["experiment"], {})
            lines.setdefault((row["env_label"], _called(row, sweeps)), []).append(row)
    if not groups:
        return ()
    origins = [name for name in ORIGINS if any(row["origin"] == name for row in tables["scores"])]
    stated = [
        (heading, "auto", "right")
        for origin in origins
        for heading in (ORIGINS[origin].capitalize(), "Seeds", "Frames")
    ]
    human = any(row["human_normalised_score"] for row in tables["scores"])
    note = (
        "Mean over seeds of the mean return of a run’s last evaluation, and in brackets the smallest and the largest "
        "seed."
    )
    if sweeps:
        note += " Of a sweep: over its settings."
    if human:
        stated.append(("Human", "auto", "right"))
        note += f" Human: mean human-normalised score of {WHOSE[subject]}; {HUMAN}"
    gaps = sorted({flag for row in tables["scores"] for flag in flags_of(row)})
    note += f" Flags of the tasks: {'; '.join(gaps)}." if gaps else ""
    table = Table(
        "Final return" + (" of this run and of the reference runs" if len(origins) > 1 else ""),
        "tables/scores.csv",
        columns(("Task and variant", "1fr"), ("Random", "auto", "right"), *stated),
        tuple(
            Group(
                tuple(_scores_row(key, rows, origins, human) for key, rows in lines.items()), experiments[name]["title"]
            )
            for name, lines in groups.items()
        ),
        note,
        size=8.2,
    )
    return (table,)


def _called(row: Row, sweeps: dict[tuple[str, str], set[str]]) -> str:
    """The label of a row's variant; of a setting of a sweep that of its system."""
    settings = sweeps.get((row["experiment"], row["variant"].partition("__")[0]))
    return f"{row['variant_label'].partition(',')[0]}, {len(settings)} settings" if settings else row["variant_label"]


def _scores_row(key: tuple[str, str], rows: list[Row], origins: list[str], human: bool) -> tuple[Cell, ...]:
    contents: list[str | Inline] = [", ".join(key), number(rows[0]["random"])]
    for origin in origins:
        own = [row for row in rows if row["origin"] == origin]
        returns = [float(row["final_return"]) for row in own]
        if not returns:
            contents += ["–", "", ""]
            continue
        mean = strong(number(round(sum(returns) / len(returns), 6)))
        spread = small(f" [{number(min(returns))}, {number(max(returns))}]") if len(returns) > 1 else ()
        contents += [(*mean, *spread), str(len(returns)), span((row["env_frames"] for row in own), frames)]
    first = [row for row in rows if row["origin"] == rows[0]["origin"]]
    shares = [float(row["human_normalised_score"]) for row in first if row["human_normalised_score"]]
    if human:
        contents.append(percent(sum(shares) / len(shares)) if shares else "")
    return cells_of(*contents)


def learned(tables: Tables, origin: str) -> tuple[Block, ...]:
    """What the runs of an origin learned, one row per run."""
    runs = [row for row in tables["runs"] if row["origin"] == origin]
    if not runs:
        return ()
    scores = {_key(row): row for row in tables["scores"]}
    milestones = {_key(row): row for row in tables["milestones"]}
    human = any(scores.get(_key(run), {}).get("human_normalised_score") for run in runs)
    sweeps = _swept(runs)
    lines = tuple(
        _learned_row(run, scores.get(_key(run), {}), milestones.get(_key(run), {}), human)
        for run in sorted(runs, key=_key)
        if not _is_swept(run, sweeps)
    )
    table = Table(
        f"What each {'reference run' if origin == 'reference' else 'run'} learned",
        "tables/runs.csv, tables/scores.csv, tables/milestones.csv",
        columns(
            ("Run", "1.35fr"),
            ("Seed", "auto", "right"),
            ("Frames", "auto", "right"),
            ("Wall time", "auto", "right"),
            ("Frames/s", "auto", "right"),
            ("Random", "auto", "right"),
            ("Final return", "auto", "right"),
            *((("Human", "auto", "right"),) if human else ()),
            ("Passes", "1.05fr", "right"),
        ),
        (Group(lines),),
        "Wall time: of the whole run, its last evaluation included. Final return: mean over that many separate "
        "episodes, with the last parameters or with as many versions of the last quarter of the run as are named; then "
        f"±: standard deviation between versions, without that of their few episodes. "
        f"{f'Human: {HUMAN} ' if human else ''}Passes: where the training return, "
        f"the mean of {FEWEST_EPISODES} episodes or more, first reached the threshold; by the wall clock, or in CPU "
        "time (of CPU) where a run is one thread."
        f"{_left_out(runs, sweeps)}",
        size=7.4,
    )
    text = (
        "Long runs with full provenance, committed with the suite under results/reference. They are shown beside every "
    )
    return (Text(plain(f"{text}reader’s own runs.")), table) if origin == "reference" else (table,)


def _learned_row(run: Row, score: Row, milestone: Row, human: bool) -> tuple[Cell, ...]:
    episodes = f" ({number(score['episodes'])} ep.{_spread(score)})" if score else ""
    return cells_of(
        f"{run['env_label']}, {run['variant_label']}",
        run["seed"],
        frames(run["env_frames"]),
        duration(float(run["seconds"])),
        number(run["frames_per_second"]),
        number(score.get("random", "")),
        (*strong(number(score.get("final_return", ""))), *small(episodes)),
        *((percent(score.get("human_normalised_score", "")),) if human else ()),
        _milestone(milestone),
    )


def _spread(score: Row) -> str:
    """How many versions of the parameters were scored, and how far they are apart."""
    if int(score["versions"]) < 2:
        return ""
    apart = f", ±{number(score['between_versions'])}" if score["between_versions"] else ""
    return f", {score['versions']} versions{apart}"


def _milestone(row: Row) -> str:
    """Where the training return first passed the threshold that the paper's file states."""
    if not row:
        return ""
    if not row["env_frames"]:
        return f"below {number(row['threshold'])}"
    clock = " of CPU" if row.get("clock") == "cpu" else ""
    return f"{number(row['threshold'])} after {frames(row['env_frames'])}, {duration(float(row['seconds']))}{clock}"


def _key(row: Row) -> tuple[str, str, str, str, int]:
    return (row["origin"], row["experiment"], row["variant"], row["environment"], int(row["seed"]))


def holes(rows: list[Row]) -> tuple[Block, ...]:
    """Every file that was left out, in one line."""
    if not rows:
        return ()
    groups: dict[str, dict[tuple[str, str, str], list[str]]] = {}
    for row in rows:
        said = row["detail"] or PROBLEMS.get(row["what"], "")
        before, seed, after = re.fullmatch(r"(.*/seed|)(\d*)(.*)", row["file"]).groups()  # type: ignore[union-attr]
        groups.setdefault(row["what"], {}).setdefault((before, after, said), []).append(seed)
    introduction = (
        f"{counted(len(rows), 'file')} of the results {'is' if len(rows) == 1 else 'are'} missing or could not be "
        "used. A run with such a file is left out of every other table; nothing else is."
    )
    table = Table(
        "Holes in the results",
        "tables/problems.csv",
        columns(("File", "2.4fr"), ("What is wrong", "1fr")),
        tuple(
            Group(
                tuple(cells_of(code(_one_path(*place[:2], seeds)), small(place[2])) for place, seeds in places.items()),
                words(what).capitalize(),
                PROBLEMS.get(what, ""),
            )
            for what, places in groups.items()
        ),
        "Files that differ only in their seed share a line; braces read as in a shell.",
        size=7.6,
    )
    return (Text(plain(introduction)), table)


def _one_path(before: str, after: str, seeds: list[str]) -> str:
    """`seed` and `/run.json` with 1, 2 and 3 -> `seed{1,2,3}/run.json`."""
    return before + (seeds[0] if len(seeds) == 1 else f"{{{','.join(seeds)}}}") + after


def drawings(figures: Iterable[dict[str, Any]], runs: list[Row]) -> tuple[Block, ...]:
    """Figures of which at least one run is there, each with its budget and seeds."""
    return tuple(_figure(figure, note) for figure in figures if (note := _figure_note(figure, runs)))


def _figure_note(figure: dict[str, Any], runs: list[Row]) -> str:
    notes = []
    for origin, label in ORIGINS.items():
        wanted = figure.get("experiments")
        rows = [row for row in runs if row["origin"] == origin and (not wanted or row["experiment"] in wanted)]
        if rows:
            reach = span((row["env_frames"] for row in rows), frames)
            seeds = counted(len({row["seed"] for row in rows}), "seed")
            notes.append(f"{label.capitalize()}: {reach} frames, {seeds} each")
    return ". ".join(notes) + "." if notes else ""


def _figure(figure: dict[str, Any], note: str) -> Figure:
    title, _, caption = figure["caption"].partition(". ")
    source = ", ".join(f"tables/{name}.csv" for name in figure["tables"])
    path = f"figures/{figure['name']}.svg"
    return Figure(path, title.removesuffix("."), caption, figure["alt"], note, source)


def deviations(rows: list[Row]) -> tuple[Block, ...]:
    """DEVIATIONS.md, then what experiments.yaml sets apart from the paper: settings that change together."""
    known = [row for row in rows if row["where"] == "DEVIATIONS.md"]
    found: list[Block] = []
    if known:
        lines = tuple(
            cells_of(strong(row["what"]), row["paper"], row["ours"], (*plain(row["reason"]), *_flag([row["flag"]])))
            for row in known
        )
        stated = columns(("What", "0.8fr"), ("Paper", "1.1fr"), ("Here", "1.2fr"), ("Why", "1.3fr"))
        found.append(Table("Deviations from the paper", "tables/departures.csv", stated, (Group(lines),)))
    groups: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        if row["where"] != "DEVIATIONS.md":
            groups.setdefault(words(row["where"]), {}).setdefault(row["reason"], []).append(row)
    if groups:
        found.append(
            Table(
                "What this scale and these tasks change",
                "tables/departures.csv",
                columns(("Setting: paper → here", "1.5fr"), ("Why", "1.3fr")),
                tuple(
                    Group(tuple(_change(reason, same) for reason, same in reasons.items()), where)
                    for where, reasons in groups.items()
                ),
            )
        )
    return tuple(found)


def _change(reason: str, rows: list[Row]) -> tuple[Cell, ...]:
    settings = joined(
        [(Span(row["what"], "key"), Span(f": {row['paper']} → "), *strong(row["ours"])) for row in rows],
        (BREAK,),
    )
    return cells_of(settings, (*plain(reason), *_flag(dict.fromkeys(row["flag"] for row in rows))))


def _flag(flags: Iterable[str]) -> Inline:
    said = ", ".join(words(flag) for flag in flags if flag)
    return small(f" ({said})") if said else ()


def hyperparameters(rows: list[Row], experiments: dict[str, Any]) -> tuple[Block, ...]:
    """Ours beside the paper's, by experiment."""
    groups: dict[str, list[tuple[Cell, ...]]] = {}
    for row in rows:
        if row["ours"]:
            ours = (*strong(row["ours"]), *small(" changed")) if row["changed"] == "True" else plain(row["ours"])
            line = cells_of((Span(row["name"], "key"),), row["paper"], ours, small(row["source"]))
            groups.setdefault(experiments[row["experiment"]]["title"], []).append(line)
    if not groups:
        return ()
    stated = columns(("Key", "1.6fr"), ("Paper", "1fr"), ("Here", "1fr"), ("Source", "1.8fr"))
    table = Table(
        "Settings of the paper and of our runs",
        "tables/hyperparameters.csv",
        stated,
        tuple(Group(tuple(lines), title) for title, lines in groups.items()),
    )
    return (table,)


def provenance(own: list[Row], facts: dict[str, Any], command: str, digest: str) -> Facts:
    """How to get these numbers again."""
    protocols = sorted({row["protocol"] for row in own})
    rows = [
        Fact("Command", command, True),
        Fact("Source", listed(facts["sources"]) or "not in a git repository", True),
        Fact("Results", f"sha256 {digest} of the tables", True),
        Fact("Algorithm", listed(name.replace(" ", ", version ") for name in facts["algorithm_versions"])),
        Fact("Packages", "; ".join(facts["packages"])),
        Fact(f"Protocol{'s' if len(protocols) > 1 else ''}", "\n".join(protocols), True),
        Fact("Hardware", "; ".join(facts["hardware"])),
        Fact("Seeds", listed(map(str, sorted({int(row["seed"]) for row in own})))),
    ]
    return Facts(tuple(row for row in rows if row.value))


def run_list(own: list[Row], experiments: dict[str, Any]) -> tuple[Block, ...]:
    """Every run, grouped by experiment."""
    groups: dict[str, list[tuple[Cell, ...]]] = {}
    sweeps, lossy = _swept(own), any(row["records_lost_bytes"] for row in own)
    for row in own:
        if _is_swept(row, sweeps):
            continue
        line = cells_of(
            row["variant_label"],
            row["env_label"],
            row["seed"],
            frames(row["env_frames"]),
            duration(float(row["seconds"])),
            number(row["frames_per_second"]),
            number(row["peak_memory_mib"]),
            (*plain(number(row["resumes"])), *small(" (gap)" if row["records_lost_bytes"] else "")),
            code(row["fingerprint"]),
        )
        groups.setdefault(experiments[row["experiment"]]["title"], []).append(line)
    if not groups:
        return ()
    table = Table(
        "Runs",
        "tables/runs.csv",
        columns(
            ("Variant", "1.4fr"),
            ("Environment", "1fr"),
            ("Seed", "auto", "right"),
            ("Frames", "auto", "right"),
            ("Time", "auto", "right"),
            ("Frames/s", "auto", "right"),
            ("Peak MiB", "auto", "right"),
            ("Resumes", "auto", "right"),
            "Fingerprint",
        ),
        tuple(Group(tuple(lines), title) for title, lines in groups.items()),
        f"{GAP if lossy else ''}{_left_out(own, sweeps)}".strip(),
        size=8.0,
    )
    return (table,)
