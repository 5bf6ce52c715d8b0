"""A suite of tasks beside its tasks alone."""

import json
from pathlib import Path

import pytest

from ddrl.bench.task_suites import main, speed

SUITE = "minigrid/Empty-Random-5x5-v0+DoorKey-8x8-v0"


@pytest.mark.parametrize("threads", [1, 2])
def test_every_task_of_a_suite_gets_as_many_steps_as_another(threads: int) -> None:
    rate, steps = speed(SUITE, 4, threads, seconds=0.2)
    assert rate > 0
    assert max(steps) <= min(steps) * 1.1 + 5 * threads  # but for the dead steps after ends


def test_it_writes_each_task_alone_and_all_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([SUITE, "--seconds", "0.2", "--repeats", "2", "--json", str(tmp_path / "suite.json")]) == 0
    found = json.loads((tmp_path / "suite.json").read_text())
    for one in found["repeats"]:
        first, second = one["alone"].values()
        assert one["expected"] == pytest.approx(2 / (1 / first + 1 / second))
        assert one["ratio"] == pytest.approx(one["suite"] / one["expected"])
    assert "reached of the harmonic mean: " in capsys.readouterr().out


def test_a_single_task_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["toy/catch"]) == 2
    assert capsys.readouterr().err == "ddrl: 'toy/catch' must be a suite of tasks with discrete actions\n"
