"""Makes the table of speeds: our code beside other libraries at the same work, as `ddrl peers speed` measured them.

Each file is one measurement of one configuration, in which all systems took turns (`ddrl.peers.speed_result`). Speeds
of different files are never compared. A row is a system with so many threads: medians over its repeats.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ddrl.analysis.runs.problems import Problem, portable
from ddrl.analysis.runs.run_data import LARGEST, machine
from ddrl.papers.table_names import REFERENCE
from ddrl.system.files import read_file
from ddrl.system.wording import shortened

FOLDER = "peers"
"""The folder of such files, in the results of a scale and among those that are committed."""
OURS = "ddrl"
COLUMNS = [
    "measurement",
    "origin",
    "algorithm",
    "environment",
    "system",
    "title",
    "threads",
    "runs",
    "frames_per_second",
    "lowest",
    "highest",
    "cpu_seconds_per_1000_frames",
    "peak_memory_mib",
    "gradient_steps_per_step",
    "trained_samples_per_step",
    "to_best_peer",
    "to_best_peer_lowest",
    "to_best_peer_highest",
    "machine",
    "date",
    "git_sha",
    "git_dirty",
    "versions",
    "command",
    "file",
]
_MEDIANS = (
    "frames_per_second",
    "cpu_seconds_per_1000_frames",
    "peak_memory_mib",
    "gradient_steps_per_step",
    "trained_samples_per_step",
)
_RATIOS = ("to_best_peer", "to_best_peer_lowest", "to_best_peer_highest")


def speed_files(results: Path, scale: str) -> dict[Path, str]:
    """Return the files of measurements with their origin: of this scale, and the committed ones."""
    places = {"run": results / scale / FOLDER, "reference": results / REFERENCE / FOLDER}
    wanted = ("reference",) if scale == REFERENCE else tuple(places)
    return {path: origin for origin in wanted for path in sorted(places[origin].rglob("*.json"))}


def _name(path: Path) -> str:
    """Return the path of a file below the folder of measurements, without its suffix."""
    parts = path.with_suffix("").parts
    return "/".join(parts[len(parts) - parts[::-1].index(FOLDER) :])


def peer_speed(paper: str, results: Path, scale: str) -> tuple[pd.DataFrame, list[Problem]]:
    """Return a row per measured system, columns `COLUMNS`, and the problems of unusable files, which are `paper`'s."""
    rows: list[dict[str, Any]] = []
    problems = []
    for path, origin in speed_files(results, scale).items():
        file = portable(path, results)
        try:
            rows += [row | {"origin": origin, "file": file} for row in _rows(_name(path), json.loads(read_file(path)))]
        except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
            reason = f"has no {error}" if isinstance(error, KeyError) else shortened(error)
            problems.append(Problem(origin, paper, FOLDER, "", "", 0, path, "damaged", reason))
    return as_table(rows), problems


def as_table(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return rows as a table with the types of its columns."""
    counts = dict.fromkeys(("threads", "runs"), "Int64")
    numbers = dict.fromkeys((*_MEDIANS, "lowest", "highest", *_RATIOS), "float64")
    return pd.DataFrame(rows, columns=COLUMNS).astype(counts | numbers | {"git_dirty": "boolean"})


def _rows(name: str, found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of one file. Raise ValueError where a number is not finite, `KeyError` where one is missing."""
    config = found["config"]
    shared = {
        "measurement": name,
        "algorithm": config["algorithm"],
        "environment": config["environment"]["name"],
        "machine": machine(found["hardware"]),
        **{key: found[key] for key in ("date", "git_sha", "git_dirty", "command")},
    }
    speeds = {
        (one["system"], int(one["threads"])): {
            int(repeat["repeat"]): float(repeat["frames_per_second"]) for repeat in one["repeats"]
        }
        for one in found["measurements"]
    }
    best = _best_peer(speeds)
    return [
        shared | _row(one) | _to_best(speeds[one["system"], int(one["threads"])], best) for one in found["measurements"]
    ]


def _row(one: Mapping[str, Any]) -> dict[str, Any]:
    values = {name: [float(repeat[name]) for repeat in one["repeats"]] for name in _MEDIANS}
    if not one["repeats"] or not all(abs(value) <= LARGEST for several in values.values() for value in several):
        raise ValueError("repeats must be finite numbers, and at least one")
    speeds = values["frames_per_second"]
    return {
        **{name: one[name] for name in ("system", "title", "threads", "versions")},
        "runs": len(speeds),
        **{name: statistics.median(several) for name, several in values.items()},
        "lowest": min(speeds),
        "highest": max(speeds),
    }


def _best_peer(speeds: Mapping[tuple[str, int], Mapping[int, float]]) -> Mapping[int, float]:
    """Return the speeds by repeat of the fastest peer, with the number of threads that it is fastest with."""
    peers = {key: own for key, own in speeds.items() if key[0] != OURS and own}
    return max(peers.values(), key=lambda own: statistics.median(own.values()), default={})


def _to_best(own: Mapping[int, float], best: Mapping[int, float]) -> dict[str, float]:
    """Return the speed over that of the best peer in the same repeats: median, lowest and highest."""
    ratios: Sequence[float] = [own[repeat] / best[repeat] for repeat in own if best.get(repeat)]
    if not ratios:
        return dict.fromkeys(_RATIOS, math.nan)
    return dict(zip(_RATIOS, (statistics.median(ratios), min(ratios), max(ratios)), strict=True))
