"""What a report prints, as text in its order: from the tables of one paper at one scale."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ddrl.errors import UserError
from ddrl.report_text import counted, duration, frames, interval, listed, number, ratio, task_name, words

Row = dict[str, str]
Tables = dict[str, list[Row]]

ORIGINS = {"run": "this run", "reference": "reference"}
CLAIM_VERDICTS = {  # in the order of the report: verdict -> how a sentence says it, of one and of several
    "supported": "is supported|are supported",
    "contradicted": "is contradicted|are contradicted",
    "inconclusive": "is inconclusive|are inconclusive",
    "not_run": "has no run at this scale|have no run at this scale",
}
CELL_VERDICTS = {
    "equivalent": "is equivalent|are equivalent",
    "consistent": "is consistent with ours|are consistent with ours",
    "below": "lies above what we reach|lie above what we reach",
    "above": "lies below what we reach|lie below what we reach",
    "inconclusive": "is inconclusive|are inconclusive",
    "not_comparable": "is not comparable|are not comparable",
    "not_run": "has no run at this scale|have no run at this scale",
}


def report_data(tables: Tables, summary: dict[str, Any], results: Path) -> dict[str, Any]:
    """Everything the document prints, as text, in its order."""
    own = [row for row in tables["runs"] if row["origin"] == "run"]
    if not own:
        raise UserError(f"{results}: no finished run to report on")
    reference = [row for row in tables["runs"] if row["origin"] == "reference"]
    return {
        "paper": summary["paper"] | {"authors": _authors(summary["paper"]["authors"])},
        "scale": summary["scale"],
        "finished": max(row["finished"] for row in own),
        "date": _date(max(row["finished"] for row in own)),
        "facts": _facts(own, summary),
        "verdict": _verdict(tables, summary, reference),
        "claims": _claims(tables["claims"]),
        "claim_counts": _counts(tables["claims"], CLAIM_VERDICTS),
        "cells": _cells(tables["cells"]),
        "cell_counts": _counts(tables["cells"], CELL_VERDICTS),
        "uncovered": _uncovered(tables["cells"]),
        "figures": [
            drawn for figure in summary["figures"] if (drawn := _figure(figure, tables["runs"], results))["note"]
        ],
        "reference": _reference(reference, tables),
        "departures": [row for row in tables["departures"] if row["where"] == "DEVIATIONS.md"],
        "changes": _changes(tables["departures"]),
        "hyperparameters": _hyperparameters(tables["hyperparameters"], summary["experiments"]),
        "provenance": _provenance(own, summary),
        "runs": _runs(own, summary["experiments"]),
    }


def _authors(authors: str | list[str]) -> str:
    return authors if isinstance(authors, str) else listed(authors)


def _facts(own: list[Row], summary: dict[str, Any]) -> list[dict[str, str]]:
    """First page: what ran, where, how long, budget against the paper's."""
    games = sorted({row["env_label"] for row in own})
    seeds = sorted({int(row["seed"]) for row in own})
    started, finished = min(row["started"] for row in own), max(row["finished"] for row in own)
    speeds = sorted(float(row["frames_per_second"]) for row in own)
    return [
        _fact(
            "What ran",
            f"{counted(len(own), 'training run')} on {listed(games)}, "
            f"{'seed' if len(seeds) == 1 else 'seeds'} {listed(map(str, seeds))}",
        ),
        _fact("Where", "; ".join(summary["hardware"])),
        _fact(
            "How long",
            f"{duration(sum(float(row['seconds']) for row in own))} of training at {_span(speeds)} frames/s, "
            f"from {_minute(started)} to {_minute(finished)} UTC",
        ),
        _fact("Budget", f"{_budget(own)}; environment frames of one run, before frame skip"),
    ]


def _budget(own: list[Row]) -> str:
    """Frames of a run beside the paper's, and those on tasks that stand in for the paper's."""
    parts = []
    for stated in sorted({row["paper_frames"] for row in own}, reverse=True):
        rows = [row for row in own if row["paper_frames"] == stated]
        counts = sorted({float(row["env_frames"]) for row in rows})
        reach = frames(counts[0]) if len(counts) == 1 else f"{frames(counts[0])} to {frames(counts[-1])}"
        if stated:
            shares = " to ".join(dict.fromkeys(ratio(count / float(stated)) for count in (counts[0], counts[-1])))
            parts.append(f"{reach} of the paper’s {frames(stated)} ({shares})")
        else:
            games = listed(sorted({row["env_label"] for row in rows}))
            parts.append(f"{reach} on {games}, in place of the paper’s tasks")
    return "; ".join(parts)


def _span(values: list[float]) -> str:
    low, high = number(values[0]), number(values[-1])
    return low if low == high else f"{low}–{high}"


def _verdict(tables: Tables, summary: dict[str, Any], reference: list[Row]) -> list[str]:
    """Sentences that sum up the verdicts on this run, what the scale allows to say, and the reference runs."""
    claims = [row for row in tables["claims"] if row["origin"] != "reference"]
    cells = [row for row in tables["cells"] if row["origin"] != "reference"]
    sentences = [
        _tally("claim", claims, CLAIM_VERDICTS),
        _tally("published cell", cells, CELL_VERDICTS),
        summary["scale_note"],
    ]
    if reference:
        decided = [row for row in tables["claims"] if row["origin"] == "reference" and row["verdict"] != "not_run"]
        games = listed(sorted({row["env_label"] for row in reference}))
        sentences += [
            f"Beside this run stand {counted(len(reference), 'committed reference run')} ({games}; up to "
            f"{frames(max(float(row['env_frames']) for row in reference))} frames each).",
            _tally("claim", decided, CLAIM_VERDICTS, " that they can decide") if decided else "",
        ]
    return [sentence for sentence in sentences if sentence]


def _tally(noun: str, rows: list[Row], verdicts: dict[str, str], which: str = "") -> str:
    """`Of 5 claims, 2 are supported, 1 is contradicted and 2 have no run at this scale.`"""
    found = [row["verdict"] for row in rows]
    parts = []
    for verdict, phrase in verdicts.items():
        if count := found.count(verdict):
            singular, plural = phrase.split("|")
            parts.append(f"{count} {singular if count == 1 else plural}")
    return f"Of {counted(len(rows), noun)}{which}, {listed(parts)}." if parts else ""


def _counts(rows: list[Row], verdicts: Iterable[str]) -> list[dict[str, str]]:
    found = [row["verdict"] for row in rows if row["origin"] != "reference"]
    return [{"verdict": words(name), "kind": name, "n": str(found.count(name))} for name in verdicts if name in found]


def _claims(rows: list[Row]) -> list[dict[str, Any]]:
    """Claims in the paper file's order, each with one finding per origin."""
    claims: dict[str, dict[str, Any]] = {}
    for row in rows:
        claim = claims.setdefault(
            row["claim"],
            {
                "title": row["title"],
                "text": "" if row["verdict"] == "not_run" else row["text"],
                "source": row["source"].replace("Table ", "Table\u00a0").replace("Section ", "Section\u00a0"),
                "findings": [],
            },
        )
        facts = [
            f"effect {number(row['effect'])} {row['effect_unit']}".strip() if row["effect"] else "",
            f"95\u00a0% interval {interval(row['ci95_low'], row['ci95_high'])}" if row["ci95_low"] else "",
            f"g\u00a0=\u00a0{number(row['hedges_g'])}" if row.get("hedges_g") else "",
            counted(int(float(row["seeds"])), "seed") if row["seeds"] else "",
            f"{frames(row['env_frames'])} frames" if row["env_frames"] else "",
        ]
        claim["findings"].append(
            {
                "origin": ORIGINS.get(row["origin"], ""),
                "verdict": words(row["verdict"]),
                "kind": row["verdict"],
                "evidence": "; ".join(fact for fact in facts if fact),
                "detail": row["detail"],
            }
        )
    return list(claims.values())


def _cells(rows: list[Row]) -> list[dict[str, Any]]:
    """Published cells that have a run beside them, grouped by published item and system."""
    groups: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in rows:
        if not row["ours"]:
            continue
        key = (row["item"], row["system"], row["published_variant"], row["metric"], row["unit"])
        name = ", ".join(part for part in (row["system"], row["published_variant"]) if part)
        group = groups.setdefault(key, {"item": row["item"], "name": name, "note": _published_note(row), "rows": []})
        group["rows"].append(
            {
                "task": task_name(row["task"]),
                "origin": ORIGINS.get(row["origin"], ""),
                "published": number(row["published"]),
                "ours": number(row["ours"]),
                "interval": interval(row["ci90_low"], row["ci90_high"]) if row["ci90_low"] else "",
                "seeds": number(row["seeds"]),
                "frames": frames(row["env_frames"]) if row["env_frames"] else "",
                "flags": _obstacles(row),
                "verdict": words(row["verdict"]),
                "kind": row["verdict"],
            }
        )
    for group in groups.values():
        shared = [flag for flag in group["rows"][0]["flags"] if all(flag in row["flags"] for row in group["rows"])]
        group["flags"] = shared
        for row in group["rows"]:
            row["flags"] = [flag for flag in row["flags"] if flag not in shared]
    return list(groups.values())


def _obstacles(row: Row) -> list[str]:
    """Flags, and how many seeds a verdict would take."""
    # How far the budget is reduced stands in the column of frames.
    flags = [flag.partition("(")[0] if flag.startswith("reduced_budget") else flag for flag in row["flags"].split(";")]
    found = [words(flag).replace("(", " (") for flag in flags if flag]
    return [*found, f"needs {counted(int(float(row['seeds_needed'])), 'seed')}"] if row["seeds_needed"] else found


def _published_note(row: Row) -> str:
    parts = [
        words(row["metric"]) + (f" ({row['unit']})" if row["unit"] else ""),
        words(row["published_statistic"]),
        counted(int(float(row["published_seeds"])), "seed") if row["published_seeds"] else "number of seeds unknown",
        f"{frames(row['published_frames'])} frames" if row["published_frames"] else "",
    ]
    return "; ".join(part for part in parts if part)


def _uncovered(rows: list[Row]) -> list[dict[str, Any]]:
    """Published cells that no value of ours stands beside, by published item and system."""
    items: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        if not row["ours"] and row["origin"] != "reference":
            name = ", ".join(part for part in (row["system"], row["published_variant"]) if part)
            unit = "\u202f%" if row["unit"] == "percent" else ""
            metric = "" if row["metric"] in ("episode_return", "throughput") else f" {words(row['metric'])}"
            cell = f"{task_name(row['task'])}{metric} {number(row['published'])}{unit}"
            items.setdefault(row["item"], {}).setdefault(name, []).append(cell)
    return [
        {"item": item, "systems": [{"name": name, "cells": ", ".join(cells)} for name, cells in systems.items()]}
        for item, systems in sorted(items.items())
    ]


def _figure(figure: dict[str, Any], runs: list[Row], results: Path) -> dict[str, str]:
    """A figure with its caption, and a line that states budget and seeds (empty where none of its runs is there)."""
    notes = []
    for origin, label in ORIGINS.items():
        rows = [
            row
            for row in runs
            if row["origin"] == origin and row["experiment"] in (figure.get("experiments") or [row["experiment"]])
        ]
        if rows:
            budgets = sorted({float(row["env_frames"]) for row in rows})
            reach = frames(budgets[0]) if len(budgets) == 1 else f"{frames(budgets[0])} to {frames(budgets[-1])}"
            seeds = len({row["seed"] for row in rows})
            notes.append(f"{label.capitalize()}: {reach} frames, {counted(seeds, 'seed')} each")
    return {
        "path": f"/{results.as_posix()}/figures/{figure['name']}.svg",
        "title": figure["caption"].partition(". ")[0].removesuffix("."),
        "caption": figure["caption"].partition(". ")[2],
        "alt": figure["alt"],
        "note": ". ".join(notes) + "." if notes else "",
    }


def _reference(runs: list[Row], tables: Tables) -> list[dict[str, str]]:
    """What the committed reference runs learned, one row per run."""
    scores = {_key(row): row for row in tables["scores"]}
    milestones = {_key(row): row for row in tables["milestones"]}
    rows = []
    for run in sorted(runs, key=_key):
        score, milestone = scores.get(_key(run), {}), milestones.get(_key(run), {})
        human = score.get("human_normalised_score", "")
        rows.append(
            {
                "run": f"{run['env_label']}, {run['variant_label']}",
                "seed": run["seed"],
                "frames": frames(run["env_frames"]),
                "time": duration(float(run["seconds"])),
                "speed": number(run["frames_per_second"]),
                "random": number(score.get("random", "")),
                "score": number(score.get("final_return", "")),
                "human": f"{number(round(100 * float(human)))}\u202f%" if human else "",
                "episodes": number(score.get("episodes", "")),
                "milestone": _milestone(milestone),
            }
        )
    return rows


def _changes(rows: list[Row]) -> list[dict[str, Any]]:
    """What experiments.yaml sets apart from the paper: settings that change together, for one reason."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row["where"] != "DEVIATIONS.md":
            groups.setdefault((words(row["where"]), row["reason"]), []).append(row)
    return [
        {
            "where": where,
            "reason": reason,
            "settings": [{"name": row["what"], "paper": row["paper"], "ours": row["ours"]} for row in rows],
            "flags": [words(flag) for flag in dict.fromkeys(row["flag"] for row in rows) if flag],
        }
        for (where, reason), rows in groups.items()
    ]


def _hyperparameters(rows: list[Row], experiments: dict[str, Any]) -> list[dict[str, Any]]:
    """Ours beside the paper's, by experiment."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["ours"]:
            title = experiments[row["experiment"]]["title"]
            groups.setdefault(title, []).append(
                {name: row[name] for name in ("name", "paper", "ours", "source")}
                | {"changed": row["changed"] == "True"}
            )
    return [{"experiment": title, "rows": rows} for title, rows in groups.items()]


def _milestone(row: Row) -> str:
    """Where the training return first passed the threshold that the paper's file states."""
    if not row:
        return ""
    if not row["env_frames"]:
        return f"below {number(row['threshold'])}"
    return f"{number(row['threshold'])} after {frames(row['env_frames'])}, {duration(float(row['seconds']))}"


def _key(row: Row) -> tuple[str, ...]:
    return (row["origin"], row["experiment"], row["variant"], row["environment"], row["seed"])


def _runs(own: list[Row], experiments: dict[str, Any]) -> list[dict[str, Any]]:
    """Every run of this scale, grouped by experiment."""
    groups: dict[str, list[dict[str, str]]] = {}
    for row in own:
        groups.setdefault(experiments[row["experiment"]]["title"], []).append(
            {
                "variant": row["variant_label"],
                "environment": row["env_label"],
                "seed": row["seed"],
                "frames": frames(row["env_frames"]),
                "time": duration(float(row["seconds"])),
                "speed": number(row["frames_per_second"]),
                "memory": number(row["peak_memory_mib"]),
                "resumes": number(row["resumes"]),
                "fingerprint": row["fingerprint"],
            }
        )
    return [{"experiment": experiment, "rows": rows} for experiment, rows in groups.items()]


def _provenance(own: list[Row], summary: dict[str, Any]) -> list[dict[str, Any]]:
    """How to get these numbers again."""
    revision = listed(summary["git_sha"]) or "not in a git repository"
    protocols = sorted({row["protocol"] for row in own})
    return [
        _fact("Command", summary["command"], code=True),
        _fact("Source", revision + (" with uncommitted changes" if summary["git_dirty"] else ""), code=True),
        _fact("Results", f"sha256 {summary['digest']} of the tables", code=True),
        _fact("Algorithm", listed(name.replace(" ", ", version ") for name in summary["algorithm_versions"])),
        _fact("Packages", "; ".join(summary["packages"])),
        _fact(f"Protocol{'s' if len(protocols) > 1 else ''}", "\n".join(protocols), code=True),
        _fact("Hardware", "; ".join(summary["hardware"])),
        _fact("Seeds", listed(map(str, sorted({int(row["seed"]) for row in own})))),
    ]


def _fact(label: str, value: str, *, code: bool = False) -> dict[str, Any]:
    return {"label": label, "value": value, "code": code}


def _date(moment: str) -> str:
    return f"{datetime.fromisoformat(moment).astimezone(UTC):%-d %B %Y}"


def _minute(moment: str) -> str:
    return f"{datetime.fromisoformat(moment).astimezone(UTC):%Y-%m-%d %H:%M}"
