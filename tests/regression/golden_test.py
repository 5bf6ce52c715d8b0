"""Golden curves: how records are compared, and what a damaged or outdated file says."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ddrl import algorithms
from ddrl.errors import UserError
from ddrl.regression import golden
from ddrl.training.config.run_config import parse_run_config
from tests.regression.used import used_by_papers
from tests.runs import CONTINUOUS, DISCRETE

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / golden.FOLDER).glob("*.json"))
RECORD = {"env_frames": 100.0, "updates": 1.0, "policy_loss": 0.25}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return Path(shutil.copy(ROOT / golden.FOLDER / "v_trace.json", tmp_path))


def change(path: Path, **parts: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | parts))


def test_the_files_cover_lag_replay_memory_and_another_correction() -> None:
    configs = [golden.read(path)["config"] for path in FILES]
    settings = [config["hyperparameters"] for config in configs]
    assert {config["topology"]["runtime"] for config in configs} == {"serial", "threads", "ray"}
    repeats = [config["topology"] for config in configs if config["topology"]["runtime"] != "serial"]
    assert all(topology["schedule"] == "synchronous" for topology in repeats), "only these repeat bit for bit"
    assert any(config["topology"].get("parameter_delay", 0) > 0 for config in configs)
    assert any(setting.get("replay_fraction") for setting in settings)
    assert any(setting.get("lstm_size") and setting.get("feed_last_action_and_reward") for setting in settings)
    assert {setting.get("correction", "v_trace") for setting in settings} > {"v_trace"}


def test_the_files_cover_frame_skip_decay_with_memory_and_shared_gradients() -> None:
    configs = [golden.read(path)["config"] for path in FILES]
    games = [config for config in configs if config["environment"]["name"].startswith("atari/")]
    players = used_by_papers() & set(DISCRETE)
    assert {config["algorithm"] for config in games} >= players, "rewards above 1 are in games alone"
    for config in games:
        decay = config["hyperparameters"]["optimizer"]["decay_frames"]
        assert config["env_frames"] / decay >= 0.25, "a rate that hardly falls tells nothing"
    assert any(config["hyperparameters"].get("lstm_size") for config in games)
    assert any(config["topology"].get("learner_threads", 1) > 1 for config in configs)
    assert any(config["topology"].get("num_learners", 1) > 1 for config in configs)


def test_games_clip_rewards_and_every_algorithm_that_clips_gradients_by_default_does_so_often() -> None:
    often: set[str] = set()
    for content in map(golden.read, FILES):
        hyperparameters = parse_run_config(content["config"]).hyperparameters
        if content["config"]["environment"]["name"].startswith("atari/"):
            assert hyperparameters.reward_clipping == "abs_one"
        norms = [record["gradient_norm"] for record in content["records"] if "gradient_norm" in record]
        bound = hyperparameters.max_grad_norm or math.inf
        if sum(norm > bound for norm in norms) >= 5:
            often.add(content["config"]["algorithm"])
    clipping = {name for name in used_by_papers() if algorithms.load(name).Config().max_grad_norm is not None}
    assert often >= clipping


def test_the_files_cover_every_algorithm_of_a_paper_and_continuous_actions() -> None:
    configs = [golden.read(path)["config"] for path in FILES]
    assert {config["algorithm"] for config in configs} >= used_by_papers()
    continuous = {config["algorithm"] for config in configs if config["environment"]["name"] == "toy/track"}
    assert continuous >= used_by_papers() & set(CONTINUOUS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_says_what_made_it_and_where(path: Path) -> None:
    content = golden.read(path)
    assert content["command"] == golden.COMMAND
    assert set(content["machine"]) == set(golden.machine_kind())
    assert len(content["records"]) > 20
    records = {name for record in content["records"] for name in record}
    assert (content["config"]["topology"]["runtime"] == "serial") is bool(records & set(golden.CLOCKED))
    assert "evaluation_return" in content["records"][-1]


def test_on_the_same_kind_of_machine_every_bit_counts() -> None:
    other = RECORD | {"policy_loss": 0.25 + 1e-12}
    (line,) = golden.differences([RECORD], [other], tolerance=0.0)
    assert line == "frame 100: policy_loss 0.25 -> 0.25"
    assert list(golden.differences([RECORD], [dict(RECORD)], tolerance=0.0)) == []


def test_elsewhere_only_what_is_more_than_another_order_of_sums() -> None:
    for factor, found in ((1 + golden.TOLERANCE / 2, 0), (1 + 2 * golden.TOLERANCE, 1)):
        other = RECORD | {"policy_loss": 0.25 * factor}
        assert len(list(golden.differences([RECORD], [other], tolerance=golden.TOLERANCE))) == found


def test_a_missing_record_and_a_missing_metric_are_differences() -> None:
    assert next(golden.differences([RECORD, RECORD], [RECORD], tolerance=1.0)) == "1 records instead of 2"
    without = {key: value for key, value in RECORD.items() if key != "policy_loss"}
    assert list(golden.differences([RECORD], [without], tolerance=1.0)) == ["frame 100: policy_loss 0.25 -> None"]


def test_a_run_repeats_what_was_recorded_and_tells_machines_apart(file: Path) -> None:
    assert golden.check(file).passed
    change(file, machine={"cpu": "another"})
    outcome = golden.check(file)
    assert outcome.passed, outcome.line
    assert "another kind of machine" in outcome.line


def test_a_run_in_threads_repeats_itself_but_for_the_records_that_episodes_fall_into() -> None:
    path = ROOT / golden.FOLDER / "v_trace_threads.json"
    first, second = (golden.run(golden.read(path)["config"], str(path)) for _ in range(2))
    assert list(golden.differences(first, second, tolerance=0.0)) == []
    assert not {name for record in first for name in record} & set(golden.CLOCKED)


@pytest.mark.regression
def test_the_curves_hold_on_a_machine_without_vector_instructions(tmp_path: Path) -> None:
    environment = os.environ | {"ATEN_CPU_CAPABILITY": "default", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "ddrl.regression", "check", "golden", "--junit", str(tmp_path / "junit.xml")]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("another kind of machine") == len(FILES)


def test_a_file_of_another_version_says_to_record_it_anew(file: Path) -> None:
    change(file, algorithm_version=0)
    outcome = golden.check(file)
    assert outcome.passed is False
    assert golden.COMMAND in outcome.line


@pytest.mark.parametrize("content", ["{", "[]", '{"config": 1}'])
def test_a_damaged_file_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(content)
    with pytest.raises(UserError, match=r"broken\.json"):
        golden.check(path)
