"""Sections about the runs: scores side by side, reference runs, holes, departures, settings, provenance."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from ddrl.analysis.runs.milestones import FEWEST_EPISODES
from ddrl.papers.experiments import system_of
from ddrl.papers.published import MADE_BY
from ddrl.report.sections.cells import ORIGINS, flags_of
from ddrl.report.sections.document import Block, Drawing, Fact, Facts, Field, Group, Origin, Row, Table, Tables, Text
from ddrl.report.sections.first_page import stated
from ddrl.report.sections.numbers import duration, frames, number, percent, span
from ddrl.report.sections.spans import Inline, Span, code, joined, plain, small, strong
from ddrl.report.sections.tables import Fields, by_experiment, grouped, merged, numeric, of_origin, right, table_of
from ddrl.report.sections.text import counted, listed, seeds_listed, words

WHOSE = {
    "run": "this run, or of the reference runs where there is no other",
    "reference": "the reference runs",
}
GAP = "Gap: records were lost while the run trained (a damaged disk, a deleted file), and its curves lack them."
PROBLEMS = {
    "missing": "there is no finished run",
    "damaged": "the file cannot be read",
    "not_finite": "a value is not finite",
    "different_config": "the configuration is not the one that was asked for",
    "unreadable_manifest": "the manifest cannot be read",
    "identical": "the run is a copy of another seed or variant",
}
DEPARTURES, LISTED = "tables/departures.csv", "DEVIATIONS.md"
FEWEST_SEEDS = 3
"""Fewest seeds for a mean with an interval in a figure (`ddrl.analysis.figures.plots.band`)."""
BAND = re.compile(
    r"([Mm]ean) over seeds with its 95 % interval where there are three or more(?:, otherwise each seed)?"
)
FILE = re.compile(r"(?P<before>.*/seed|)(?P<seed>\d*)(?P<after>.*)")
"""The path of a file; a part of its own for the seed that it may name."""
Sweeps = dict[tuple[str, str], set[str]]
"""(experiment, system) -> settings, of the sweeps whose variants are named <system>__<setting>."""


def _sweeps(rows: Iterable[Row]) -> Sweeps:
    found: Sweeps = {}
    for row in rows:
        system, _, setting = row["variant"].partition("__")
        if setting:
            found.setdefault((row["experiment"], system), set()).add(setting)
    return {key: settings for key, settings in found.items() if len(settings) > 1}


def _settings(row: Row, sweeps: Sweeps) -> set[str]:
    """Return the settings of the sweep that a row belongs to; none where it belongs to no sweep."""
    return sweeps.get((row["experiment"], system_of(row["variant"])), set())


def _not_listed(rows: Iterable[Row], sweeps: Sweeps) -> str:
    """Return the note of a table that does not list the runs of sweeps one by one."""
    count = sum(bool(_settings(row, sweeps)) for row in rows)
    return f" Not listed: {counted(count, 'run')} of a sweep’s settings." if count else ""


def side_by_side(tables: Tables, experiments: dict[str, Any], subject: str) -> Table:
    """Return the final scores of this run's and the reference runs' seeds, one row per variant and environment."""
    scores = tables["scores"]
    sweeps = _sweeps(scores)
    origins = [name for name in ORIGINS if of_origin(scores, name)]
    human = any(row["human_normalised_score"] for row in scores)

    def label(row: Row) -> str:
        settings = _settings(row, sweeps)
        system = f"{row['variant_label'].partition(',')[0]}, {len(settings)} settings"
        return f"{row['env_label']}, {system if settings else row['variant_label']}"

    fields: Fields[list[Row]] = (
        Field("Task and variant", lambda rows: rows[0]["label"], "1fr"),
        right("Random", lambda rows: number(rows[0]["random"])),
        *(field for origin in origins for field in _score_fields(origin)),
        *([right("Human", _human)] if human else []),
    )
    labelled = [row | {"label": label(row)} for row in scores if row["final_return"]]
    flags = sorted({flag for row in scores for flag in flags_of(row)})
    return table_of(
        "Final return" + (" of this run and of the reference runs" if len(origins) > 1 else ""),
        "tables/scores.csv",
        fields,
        merged(by_experiment(labelled, experiments), "label"),
        "Mean over seeds of the mean return of a run’s last evaluation, and in brackets the smallest and the largest "
        "seed."
        + (" Of a sweep: over its settings." if sweeps else "")
        + (f" Human: mean human-normalised score of {WHOSE[subject]}; {whole_score(scores)}" if human else "")
        + (f" Flags of the tasks: {'; '.join(flags)}." if flags else ""),
        size=8.2,
    )


def whole_score(scores: Iterable[Row]) -> str:
    """Return what 0 % and 100 % of a human-normalised score are, of the scores that have one."""
    used = {row.get("made_by", "") for row in scores if row.get("human_normalised_score")} - {""}
    whole = "; or ".join(MADE_BY[name] for name in sorted(used, reverse=True)) or "a human tester"
    return f"0\u202f% is random play, 100\u202f% {whole}."


def _score_fields(origin: str) -> Fields[list[Row]]:
    """Return the columns about the runs of one origin."""

    def final(rows: list[Row]) -> Inline:
        returns = [float(row["final_return"]) for row in of_origin(rows, origin)]
        if not returns:
            return plain("–")
        spread = small(f" [{number(min(returns))}, {number(max(returns))}]") if len(returns) > 1 else ()
        return (*strong(number(round(sum(returns) / len(returns), 6))), *spread)

    return (
        right(ORIGINS[origin].capitalize(), final),
        right("Seeds", lambda rows: str(len(of_origin(rows, origin)) or "")),
        right("Frames", lambda rows: span((row["env_frames"] for row in of_origin(rows, origin)), frames)),
    )


def _human(rows: list[Row]) -> str:
    """Return the mean score of the first origin that has runs."""
    scores = [row["human_normalised_score"] for row in of_origin(rows, rows[0]["origin"])]
    shares = [float(score) for score in scores if score]
    return percent(sum(shares) / len(shares)) if shares else ""


def learned(tables: Tables, experiments: dict[str, Any]) -> tuple[Block, ...]:
    """Return what the reference runs learned, one row per run; not of runs made for a speed, a traffic or a lag."""
    runs = [row for row in of_origin(tables["runs"], "reference") if _has_scores(row, experiments)]
    if not runs:
        return ()
    scores = {_key(row): row for row in tables["scores"]}
    milestones = {_key(row): row for row in tables["milestones"]}
    sweeps = _sweeps(runs)

    def score(run: Row, name: str) -> str:
        return scores.get(_key(run), {}).get(name, "")

    human = any(score(run, "human_normalised_score") for run in runs)
    fields: Fields[Row] = (
        Field("Run", lambda run: f"{run['env_label']}, {run['variant_label']}", "1.35fr"),
        numeric("Seed", "seed"),
        numeric("Frames", "env_frames", frames),
        numeric("Wall time", "seconds", duration),
        numeric("Frames/s", "frames_per_second", number),
        right("Random", lambda run: number(score(run, "random"))),
        right("Final return", lambda run: _final(scores.get(_key(run)))),
        *([right("Human", lambda run: percent(score(run, "human_normalised_score")))] if human else []),
        Field("Passes", lambda run: _milestone(milestones.get(_key(run), {})), "1.05fr", "right"),
    )
    table = table_of(
        "What each reference run learned",
        "tables/runs.csv, tables/scores.csv, tables/milestones.csv",
        fields,
        [Group([run for run in sorted(runs, key=_key) if not _settings(run, sweeps)])],
        "Wall time: of the whole run, its last evaluation included. Final return: mean over that many separate "
        "episodes, with the last parameters or with as many versions of the last quarter of the run as are named; then "
        f"±: standard deviation between versions, without that of their few episodes. "
        f"{f'Human: {whole_score(scores.values())} ' if human else ''}Passes: where the training return, "
        f"the mean of {FEWEST_EPISODES} episodes or more, first reached the threshold; by the wall clock, or in CPU "
        f"time (of CPU) where a run is one thread.{_not_listed(runs, sweeps)}",
        size=7.4,
    )
    text = (
        "Long runs with full provenance, committed with the suite under results/reference. They are shown beside every "
        "reader’s own runs."
    )
    return (Text(plain(text)), table)


def _has_scores(row: Row, experiments: dict[str, Any]) -> bool:
    scored = experiments[row["experiment"]]["scored"]
    return scored if isinstance(scored, bool) else row["environment"] in scored


def _key(row: Row) -> tuple[str, str, str, str, int]:
    return (row["origin"], row["experiment"], row["variant"], row["environment"], int(row["seed"]))


def _final(score: Row | None) -> Inline:
    """Return the final return with its episodes and, where there are several, its versions of the parameters."""
    if score is None:
        return ()
    versions = f", {score['versions']} versions" if int(score["versions"]) > 1 else ""
    deviation = f", ±{number(score['between_versions'])}" if versions and score["between_versions"] else ""
    episodes = small(f" ({number(score['episodes'])} ep.{versions}{deviation})")
    return (*strong(number(score["final_return"])), *episodes)


def _milestone(row: Row) -> str:
    """Return where the training return first passed the threshold that the paper's file states."""
    if not row:
        return ""
    if not row["env_frames"]:
        return f"below {number(row['threshold'])}"
    clock = " of CPU" if row.get("clock") == "cpu" else ""
    return f"{number(row['threshold'])} after {frames(row['env_frames'])}, {duration(row['seconds'])}{clock}"


def holes(rows: list[Row]) -> tuple[Block, ...]:
    """Return every file that was left out; files that differ only in their seed share a line."""
    if not rows:
        return ()
    found = [
        row | FILE.fullmatch(row["file"]).groupdict() | {"detail": row["detail"] or PROBLEMS.get(row["what"], "")}  # type: ignore[union-attr]
        for row in rows
    ]
    fields: Fields[list[Row]] = (
        Field("File", lambda same: code(_one_path(same)), "2.4fr"),
        Field("What is wrong", lambda same: small(same[0]["detail"]), "1fr"),
    )
    groups = [
        Group(own, words(what).capitalize(), PROBLEMS.get(what, "")) for (what,), own in grouped(found, "what").items()
    ]
    introduction = (
        f"{counted(len(rows), 'file')} of the results {'is' if len(rows) == 1 else 'are'} missing or could not be "
        "used. A run with such a file is left out of every other table; nothing else is."
    )
    table = table_of(
        "Holes in the results",
        "tables/problems.csv",
        fields,
        merged(groups, "before", "after", "detail"),
        "Files that differ only in their seed share a line; braces read as in a shell.",
        size=7.6,
    )
    return (Text(plain(introduction)), table)


def _one_path(rows: list[Row]) -> str:
    """Return `seed{1,2,3}/run.json` for files that differ in their seeds 1, 2 and 3 alone."""
    seeds = [row["seed"] for row in rows]
    return rows[0]["before"] + (seeds[0] if len(seeds) == 1 else f"{{{','.join(seeds)}}}") + rows[0]["after"]


def drawings(summary: dict[str, Any], runs: list[Row]) -> list[Drawing]:
    """Return the figures with at least one run in them, each with its budget and seeds."""
    found, script = [], f"replications/{summary['paper']['key']}/figures.py"
    for figure in summary["figures"]:
        if note := _figure_note(figure.get("experiments"), runs):
            title, _, caption = _as_drawn(figure, runs).partition(". ")
            source = ", ".join(f"tables/{name}.csv" for name in figure["tables"])
            path = f"figures/{figure['name']}.svg"
            found.append(Drawing(path, title.removesuffix("."), caption, figure["alt"], note, source, script))
    return found


def _as_drawn(figure: dict[str, Any], runs: list[Row]) -> str:
    """Return the caption of a figure, which names means and intervals only where there are seeds enough for them."""
    groups = grouped(_drawn(figure.get("experiments"), runs), "origin", "experiment", "variant", "environment")
    if any(len(own) >= FEWEST_SEEDS for own in groups.values()):
        return str(BAND.sub(r"\1 over seeds with its 95 % interval", figure["caption"]))
    return str(BAND.sub(lambda found: "Each seed" if found[1] == "Mean" else "each seed", figure["caption"]))


def _drawn(experiments: list[str] | None, runs: list[Row]) -> list[Row]:
    """Return the runs of `experiments` (None or empty: all)."""
    return [row for row in runs if not experiments or row["experiment"] in experiments]


def _figure_note(experiments: list[str] | None, runs: list[Row]) -> str:
    """Return budget and seeds of the runs of `experiments` (None or empty: of all), by origin."""
    notes = []
    for origin, label in ORIGINS.items():
        if rows := of_origin(_drawn(experiments, runs), origin):
            reach = span((row["env_frames"] for row in rows), frames)
            groups = grouped(rows, "experiment", "variant", "environment")
            fewest, most = (extreme(map(len, groups.values())) for extreme in (min, max))
            seeds = counted(most, "seed") if fewest == most else f"{fewest} to {most} seeds"
            notes.append(f"{label.capitalize()}: {reach} frames, {seeds} each.")
    return " ".join(notes)


def deviations(rows: list[Row]) -> Table:
    """Return what DEVIATIONS.md lists."""
    known: Fields[Row] = (
        Field("What", lambda row: strong(row["what"]), "0.8fr"),
        Field("Paper", lambda row: row["paper"], "1.1fr"),
        Field("Here", lambda row: row["ours"], "1.2fr"),
        Field("Why", lambda row: _reason([row]), "1.3fr"),
    )
    listed_there = [row for row in rows if row["where"] == LISTED]
    return table_of("Deviations from the paper", DEPARTURES, known, [Group(listed_there)], size=8.2)


def changes(rows: list[Row]) -> Table:
    """Return where experiments.yaml differs from the paper, by the reason that the differences share."""
    fields: Fields[list[Row]] = (Field("Setting: paper → here", _change, "1.5fr"), Field("Why", _reason, "1.3fr"))
    places = grouped((row for row in rows if row["where"] != LISTED), "where")
    groups = merged([Group(own, words(where)) for (where,), own in places.items()], "reason")
    return table_of("What this scale and these tasks change", DEPARTURES, fields, groups, size=8.2)


def _change(rows: list[Row]) -> Inline:
    """Return the settings that change together for one reason."""
    return joined((Span(row["what"], "key"), Span(f": {row['paper']} → "), *strong(row["ours"])) for row in rows)


def _reason(rows: list[Row]) -> Inline:
    """Return the reason that these departures share, and their flags."""
    flags = ", ".join(words(flag) for flag in dict.fromkeys(row["flag"] for row in rows) if flag)
    return (*plain(rows[0]["reason"]), *small(f" ({flags})" if flags else ""))


def hyperparameters(rows: list[Row], experiments: dict[str, Any]) -> Table:
    """Return our settings beside the paper's, by experiment."""

    def ours(row: Row) -> Inline:
        return (*strong(row["ours"]), *small(" changed")) if row["changed"] == "True" else plain(row["ours"])

    fields: Fields[Row] = (
        Field("Key", lambda row: (Span(row["name"], "key"),), "1.6fr"),
        Field("Paper", lambda row: row["paper"], "1fr"),
        Field("Here", ours, "1fr"),
        Field("Source", lambda row: small(row["source"]), "1.8fr"),
    )
    groups = by_experiment((row for row in rows if row["ours"]), experiments)
    return table_of("Settings of the paper and of our runs", "tables/hyperparameters.csv", fields, groups)


def provenance(own: list[Row], facts: dict[str, Any], origin: Origin) -> Facts:
    """Return what is needed to get these numbers again."""
    protocols = sorted({row["protocol"] for row in own})
    rows = [
        Fact("Command", origin.command, True),
        Fact("Source", listed(facts["sources"]) or "not in a git repository", True),
        Fact("Results", f"sha256 {origin.digest} of the tables", True),
        Fact("Algorithm", listed(name.replace(" ", ", version ") for name in facts["algorithm_versions"])),
        Fact("Packages", "; ".join(facts["packages"])),
        Fact(f"Protocol{'s' if len(protocols) > 1 else ''}", "\n".join(protocols), True),
        Fact("Hardware", "; ".join(facts["hardware"])),
        Fact("Seeds", seeds_listed(int(row["seed"]) for row in own)),
    ]
    return Facts(stated(rows))


def run_list(own: list[Row], experiments: dict[str, Any]) -> Table:
    """Return every run, by experiment."""
    sweeps, lossy = _sweeps(own), any(row["records_lost_bytes"] for row in own)

    def resumes(row: Row) -> Inline:
        return (*plain(number(row["resumes"])), *small(" (gap)" if row["records_lost_bytes"] else ""))

    fields: Fields[Row] = (
        Field("Variant", lambda row: row["variant_label"], "1.4fr"),
        Field("Environment", lambda row: row["env_label"], "1fr"),
        numeric("Seed", "seed"),
        numeric("Frames", "env_frames", frames),
        numeric("Time", "seconds", duration),
        numeric("Frames/s", "frames_per_second", number),
        numeric("Peak MiB", "peak_memory_mib", number),
        right("Resumes", resumes),
        Field("Fingerprint", lambda row: code(row["fingerprint"])),
    )
    return table_of(
        "Runs",
        "tables/runs.csv",
        fields,
        by_experiment((row for row in own if not _settings(row, sweeps)), experiments),
        f"{GAP if lossy else ''}{_not_listed(own, sweeps)}".strip(),
        size=8.0,
    )
