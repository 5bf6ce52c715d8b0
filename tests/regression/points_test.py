"""Reference convergence points: one for each algorithm, recorded so that a check can fail."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from ddrl import algorithms
from ddrl.errors import UserError
from ddrl.regression import limits, points
from ddrl.regression.checks import Check
from ddrl.system.csv_cells import read_rows
from ddrl.training.config.run_config import parse_run_config
from tests.regression import power

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / points.FOLDER).glob("*.json"))
IMPALA = ROOT / points.FOLDER / "impala.json"


def test_every_algorithm_has_a_point_and_no_other_name_has() -> None:
    assert {path.stem for path in FILES} == set(algorithms.NAMES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_point_is_of_its_algorithm_recorded_and_can_fail(path: Path) -> None:
    point = points.read(path)
    config = parse_run_config({**point["config"], "seed": 1})
    assert config.algorithm == path.stem
    assert config.topology.runtime == "serial", "which repeats, so that a failure can be looked into"
    assert config.hyperparameters.optimizer.decay_frames is None, "the rate must not depend on the budget"
    assert not points._outdated(point)
    assert list(point["frames"]) == [str(seed) for seed in points.SEEDS]
    assert not set(points.SEEDS) & set(points.FRESH), "a recorded seed would only be compared with itself"
    frames = list(point["frames"].values())
    limits.check_budget(frames, len(points.FRESH), config.env_frames, points.level(ROOT), str(path))


def test_training_stops_at_the_target_and_a_target_out_of_reach_takes_the_budget() -> None:
    config = points.read(IMPALA)["config"] | {"env_frames": 3000}
    early = points.frames_to_target(config, -1.0, 1)
    assert 500 <= early < 1500, "the first record with enough episodes"
    assert points.frames_to_target(config, 1.1, 1) == math.inf
    assert points.frames_to_target(config, -1.0, 1) == early


class Pool:
    """Does the work that it is given as soon as the result is asked for: a table of frames by seed."""

    def __init__(self, frames: dict[int, float]) -> None:
        self._frames = frames
        self.seeds: list[int] = []

    def submit(self, work: Any, config: Any, target: float, seed: int) -> Future[float]:
        self.seeds.append(seed)
        future: Future[float] = Future()
        future.set_result(self._frames[seed])
        return future


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with one point, of IMPALA."""
    path = tmp_path / points.FOLDER / "impala.json"
    path.parent.mkdir(parents=True)
    path.write_text(IMPALA.read_text())
    return tmp_path


def with_pool(monkeypatch: pytest.MonkeyPatch, seeds: Sequence[int], frames: float) -> Pool:
    pool = Pool({seed: frames * (1 + 0.1 * (index % 3)) for index, seed in enumerate(seeds)})
    monkeypatch.setattr(points, "workers", lambda prepare=None: nullcontext(pool))
    return pool


def test_the_check_trains_fresh_seeds_and_fails_where_they_are_slower(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = limits.mean(list(points.read(IMPALA)["frames"].values()))
    for factor, passes in ((0.9, True), (2.0, False)):
        pool = with_pool(monkeypatch, points.FRESH, factor * recorded)
        (check,) = points.checks(root)
        assert (check.name, check.passed) == ("point: impala", passes), check.line
        assert pool.seeds == list(points.FRESH)


def test_a_point_of_another_version_trains_nothing_and_says_to_record_it_anew(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = root / points.FOLDER / "impala.json"
    for content in ({"algorithm_version": 0}, {"frames": {}}):
        path.write_text(json.dumps(json.loads(IMPALA.read_text()) | content))
        pool = with_pool(monkeypatch, (), 1.0)
        (check,) = points.checks(root)
        assert check.passed is False
        assert f"run '{points.COMMAND} impala'" in check.line
        assert pool.seeds == []


def test_points_are_recorded_with_their_seeds_and_version(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = root / points.FOLDER / "impala.json"
    path.write_text(json.dumps({key: points.read(IMPALA)[key] for key in ("config", "target")}))
    with_pool(monkeypatch, points.SEEDS, 20_000)
    (line,) = points.record([], root)
    assert "frames to 0.9; limit" in line
    written = points.read(path)
    assert list(written["frames"]) == [str(seed) for seed in points.SEEDS]
    assert written["algorithm_version"] == algorithms.load("impala").VERSION
    assert written["config"] == points.read(IMPALA)["config"]
    with pytest.raises(UserError, match="allowed: impala"):
        list(points.record(["dqn"], root))


@pytest.mark.parametrize(
    ("content", "key"),
    [
        ("{", ""),
        ("[]", "'config'"),
        ('{"config": 1}', "'config'"),
        ('{"config": {}, "target": 1}', "'config.algorithm'"),
        ('{"config": {"algorithm": "impala"}, "target": 1}', "'config.env_frames'"),
        ('{"config": {"algorithm": "impala", "env_frames": 1}}', "'target'"),
        ('{"config": {"algorithm": "impala", "env_frames": 1}, "target": 1, "frames": [1]}', "'frames'"),
    ],
)
def test_a_damaged_point_is_named_with_its_key(tmp_path: Path, content: str, key: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(content)
    with pytest.raises(UserError, match=rf"broken\.json.*{key}"):
        points.read(path)


def test_a_point_that_does_not_say_its_version_is_recorded_anew(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = root / points.FOLDER / "impala.json"
    content = json.loads(IMPALA.read_text())
    del content["algorithm_version"]
    path.write_text(json.dumps(content))
    with_pool(monkeypatch, (), 1.0)
    (check,) = points.checks(root)
    assert check.passed is False
    assert "recorded with version None" in check.line


def test_what_the_points_find_was_measured_with_the_recorded_frames_and_says_every_fault_of_every_algorithm() -> None:
    rows = read_rows(power.FILE)
    assert {(row["fault"], row["point"]) for row in rows} == {
        (fault, name) for fault in power.FAULTS for name in algorithms.NAMES
    }
    for row in rows:
        frames = list(points.read(ROOT / points.FOLDER / f"{row['point']}.json")["frames"].values())
        allowed = limits.limit(frames, len(points.FRESH), points.level(ROOT))
        recorded = f"at most {allowed:,.0f} at level {points.level(ROOT):.2g} (recorded {limits.mean(frames):,.0f} over"
        assert recorded in row["line"]
        now = float(row["line"].partition(" ")[0].replace(",", ""))
        assert row["found"] == ("yes" if now > allowed else "no")
        assert row["meaning"] == (power.FAULTS[row["fault"]].__doc__ or "").splitlines()[0]


def test_a_point_where_nothing_was_compared_is_no_fault_that_was_found() -> None:
    compared = limits.judge([1000.0, 1100.0, 1200.0], [9000.0], budget=9000, level=0.05)
    assert power.found(Check("point: a", compared.passed, compared.line, 1.0)) == "yes"
    for line in ("ended with AttributeError: gone", "recorded with version 1, now 2: run"):
        with pytest.raises(RuntimeError, match=line):
            power.found(Check("point: a", False, line, 1.0))
