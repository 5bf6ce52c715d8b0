"""The table of speeds is made from the files of measurements alone, each with where it comes from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ddrl.analysis.tables.peer_speed import COLUMNS, peer_speed

REPEAT = {
    "cpu_seconds_per_1000_frames": 0.5,
    "peak_memory_mib": 300.0,
    "gradient_steps_per_step": 0.1,
    "trained_samples_per_step": 4.0,
    "steps": 1000,
    "seconds": 20.0,
}


def system(name: str, speeds: list[float], threads: int = 1) -> dict[str, Any]:
    repeats = [REPEAT | {"repeat": number, "frames_per_second": speed} for number, speed in enumerate(speeds, 1)]
    return {"system": name, "title": name.upper(), "threads": threads, "versions": f"{name} 1.0", "repeats": repeats}


def content(*systems: dict[str, Any]) -> dict[str, Any]:
    return {
        "command": "ddrl peers speed ppo mujoco/HalfCheetah-v5",
        "date": "2026-11-27T20:00:00+00:00",
        "git_sha": "f" * 40,
        "git_dirty": False,
        "hardware": {"cpu": "a processor", "cores": 2, "memory_gib": 23.5, "gpu": None},
        "packages": {"python": "3.11"},
        "seconds": 20.0,
        "config": {"algorithm": "ppo", "environment": {"name": "mujoco/HalfCheetah-v5"}},
        "measurements": list(systems),
    }


def write_speeds(results: Path, place: str = "reference/peers/half_cheetah.json", **changes: Any) -> Path:
    """A measurement of ours, and of two peers, of which the one is faster with two threads."""
    path = results / place
    path.parent.mkdir(parents=True, exist_ok=True)
    found = content(
        system("ddrl", [2000.0, 2400.0, 2200.0]),
        system("sb3", [800.0, 900.0, 850.0]),
        system("sb3", [1000.0, 1200.0, 1100.0], threads=2),
        system("cleanrl", [1000.0, 1000.0, 1000.0]),
    )
    path.write_text(json.dumps(found | changes))
    return path


def test_rows_are_medians_and_ratios_to_the_fastest_peer_of_the_same_repeats(tmp_path: Path) -> None:
    write_speeds(tmp_path)
    table, problems = peer_speed("controls_2026", tmp_path, "reference")
    assert (list(table.columns), problems) == (COLUMNS, [])
    ours = table.iloc[0]
    assert (ours["system"], ours["frames_per_second"], ours["lowest"], ours["highest"]) == ("ddrl", 2200, 2000, 2400)
    assert ours["to_best_peer"] == 2.0  # 2000/1000, 2400/1200, 2200/1100
    assert table["to_best_peer"].iloc[3] == pytest.approx(1 / 1.1)
    assert (ours["runs"], ours["measurement"], ours["algorithm"]) == (3, "half_cheetah", "ppo")
    assert ours["file"] == f"{tmp_path.name}/reference/peers/half_cheetah.json"
    assert (ours["git_sha"], bool(ours["git_dirty"]), ours["versions"]) == ("f" * 40, False, "ddrl 1.0")


def test_measurements_of_a_scale_stand_beside_the_committed_ones(tmp_path: Path) -> None:
    write_speeds(tmp_path)
    write_speeds(tmp_path, "workstation/peers/controls_2026/beside/ours/task.json")
    table, _ = peer_speed("controls_2026", tmp_path, "workstation")
    assert list(dict.fromkeys(zip(table["origin"], table["measurement"], strict=True))) == [
        ("run", "controls_2026/beside/ours/task"),
        ("reference", "half_cheetah"),
    ]
    assert set(peer_speed("controls_2026", tmp_path, "reference")[0]["origin"]) == {"reference"}


def test_without_a_peer_there_is_no_ratio(tmp_path: Path) -> None:
    write_speeds(tmp_path, measurements=[system("ddrl", [100.0])])
    assert peer_speed("controls_2026", tmp_path, "reference")[0]["to_best_peer"].isna().all()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"config": {}}, "has no 'algorithm'"),
        ({"measurements": [system("ddrl", [float("nan")])]}, "repeats must be finite numbers"),
        ({"measurements": [system("ddrl", [])]}, "repeats must be finite numbers, and at least one"),
        ({"measurements": 3}, "not iterable"),
    ],
)
def test_a_damaged_file_is_a_problem_and_leaves_the_others(tmp_path: Path, changes: Any, reason: str) -> None:
    write_speeds(tmp_path)
    write_speeds(tmp_path, "reference/peers/damaged.json", **changes)
    table, (problem,) = peer_speed("controls_2026", tmp_path, "reference")
    assert set(table["measurement"]) == {"half_cheetah"}
    assert reason in problem.detail
    assert problem.file.name == "damaged.json"
