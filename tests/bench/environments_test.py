"""Environments side by side: each number of copies and threads, in turns, beside the first one named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddrl.bench.environments import describe, main

SMALL = ["--envs", "1", "3", "--threads", "1", "2", "--seconds", "0.05", "--repeats", "2"]


def test_every_pair_of_copies_and_threads_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["mujoco/HalfCheetah-v5", "mujoco_batch/HalfCheetah-v5"]
    assert main([*names, *SMALL, "--json", str(tmp_path / "speed.json")]) == 0
    found = json.loads((tmp_path / "speed.json").read_text())
    one = [(row["envs"], row["name"], row["threads"]) for row in found["measurements"]]
    assert one == [(envs, name, threads) for envs in (1, 3) for name in names for threads in (1, 2)]
    assert all(len(row["steps_per_second"]) == 2 and min(row["steps_per_second"]) > 0 for row in found["measurements"])
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(one)


def test_ratios_are_to_the_first_environment_with_as_many_copies_turn_by_turn() -> None:
    rows = [("a", 1, [10.0, 20.0]), ("b", 1, [20.0, 80.0]), ("a", 8, [5.0, 5.0]), ("b", 8, [5.0, 10.0])]
    measured = [
        {"name": name, "envs": envs, "threads": 1, "steps_per_second": own, "steps_per_cpu_second": own}
        for name, envs, own in rows
    ]
    for line, ratio in zip(describe({"measurements": measured})[1:], ("1.00", "3.00", "1.00", "1.50"), strict=True):
        assert line.count(f" {ratio} (") == 2
    assert describe({"measurements": measured})[2].endswith("3.00 (2.00 to 4.00)")


def test_a_measurement_has_a_step_at_least_however_busy_the_machine_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["toy/catch", "--envs", "2", "--seconds", "1e-9", "--repeats", "2"]) == 0
    assert "toy/catch" in capsys.readouterr().out


def test_discrete_actions_are_drawn_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["toy/catch", *SMALL]) == 0
    assert capsys.readouterr().out.count("toy/catch") == 4


def test_an_unknown_name_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mujoco_batch/Aunt-v5"]) == 2
    assert capsys.readouterr().err.startswith("ddrl: environment.name: unknown task of mujoco_batch 'Aunt-v5'")
