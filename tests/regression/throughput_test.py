"""The throughput guard's rules, on measurements that are made up."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddrl import bench
from ddrl.bench import PartSpeed, Repeat
from ddrl.errors import UserError
from ddrl.regression import throughput
from ddrl.regression.throughput import ALLOWED, judge

PART = PartSpeed(1e-4, 1e4)
COMMITTED = 0.9
ROOT = Path(__file__).resolve().parents[2]


def repeat(ratio: float, others: float) -> Repeat:
    speeds: dict[str, Any] = {"bound": 1e4, "rollout": 1e4 * ratio, "training": 1e4 * ratio, "ratio": ratio}
    return Repeat(PART, PART, PART, **speeds, duty={}, cpu_utilisation=1.0, policy_lag_mean=1.0, others=others)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    path = tmp_path / throughput.FILE
    path.parent.mkdir(parents=True)
    config = {"algorithm": "impala", "environment": {"name": "toy/catch"}, "seed": 0, "env_frames": 1000}
    path.write_text(json.dumps({"ratio": COMMITTED, "seconds": 1.0, "cores": 1, "config": config}))
    return tmp_path


def measuring(monkeypatch: pytest.MonkeyPatch, *repeats: tuple[float, float]) -> Iterator[Repeat]:
    """The benchmark gives these (ratio, others) one after the other."""
    results = iter([repeat(*facts) for facts in repeats])
    monkeypatch.setattr(bench, "measure", lambda config, seconds: next(results))
    return results


@pytest.mark.parametrize(("factor", "passes"), [(1, True), (0.86, True), (0.84, False), (1.14, True), (1.16, False)])
def test_the_median_must_stay_within_15_percent_and_both_numbers_are_printed(factor: float, passes: bool) -> None:
    assert ALLOWED == 0.15
    outcome = judge([COMMITTED * factor, 0.1, 9.0], COMMITTED)
    assert outcome.passed is passes
    assert f"{COMMITTED * factor:.2f} of the sum-of-parts bound" in outcome.line
    assert "committed 0.90" in outcome.line


def test_one_slow_repeat_of_three_does_not_flip_it(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measuring(monkeypatch, (0.9, 0.0), (0.4, 0.0), (0.9, 0.0))
    assert throughput.check(project).passed


def test_what_other_processes_took_is_left_out_of_the_bound(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measuring(monkeypatch, *[(0.9 * 0.82, 0.18)] * 3)
    outcome = throughput.check(project)
    assert outcome.passed
    assert outcome.line.startswith("0.90 of the sum-of-parts bound")


def test_a_disturbed_repeat_is_made_again(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = measuring(monkeypatch, (0.2, 0.6), (0.9, 0.0), (0.1, 0.7), (0.9, 0.0), (0.9, 0.0))
    assert throughput.check(project).passed
    assert list(left) == []


def test_a_machine_too_busy_to_tell_is_not_passed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measuring(monkeypatch, *[(0.2, 0.6), (0.2, 0.5), (0.2, 0.7)])
    outcome = throughput.check(project)
    assert outcome.passed is None
    assert "50% to 70%" in outcome.line


def test_it_measures_on_as_many_cores_as_were_committed_and_gives_them_back(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, used = os.sched_getaffinity(0), []
    monkeypatch.setattr(bench, "measure", lambda *_: used.append(len(os.sched_getaffinity(0))) or repeat(0.9, 0.0))
    assert throughput.check(project).passed
    assert used == [1, 1, 1]
    assert os.sched_getaffinity(0) == before


def test_too_few_cores_and_a_missing_or_damaged_file_are_said(project: Path) -> None:
    path = project / throughput.FILE
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"cores": 4096}))
    assert throughput.check(project).passed is None
    path.write_text(json.dumps(content | {"ratio": "fast"}))
    with pytest.raises(UserError, match="damaged"):
        throughput.check(project)
    path.unlink()
    with pytest.raises(UserError, match=r"python -m ddrl\.regression throughput"):
        throughput.check(project)


def test_a_ratio_of_a_busy_machine_is_not_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput, "CORES", 1)
    (tmp_path / throughput.MEASURED).parent.mkdir(parents=True)
    shutil.copy(ROOT / throughput.MEASURED, tmp_path / throughput.MEASURED)
    measuring(monkeypatch, *[(0.9, 0.5)] * 3)
    with pytest.raises(UserError, match="stop them first"):
        throughput.accept(tmp_path, lambda _: None)
    measuring(monkeypatch, *[(0.9, 0.0)] * 3)
    assert "ratio 0.900" in throughput.accept(tmp_path, lambda _: None)
    measuring(monkeypatch, *[(0.9, 0.0)] * 3)
    assert throughput.check(tmp_path).passed
