"""The file of a measurement holds every repeat, and where they come from; the table of speeds reads it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddrl.analysis.tables.peer_speed import peer_speed
from ddrl.cli import main
from ddrl.errors import UserError
from ddrl.peers.speed import OURS, Speed
from ddrl.peers.speed_result import speed_result
from ddrl.training.config.run_config import to_json
from tests.peers.fake import install
from tests.peers.train_test import config_of


def one(system: str, repeat: int, speed: float) -> Speed:
    return Speed(system, 1, repeat, speed, 0.5, 100.0, 0.01, 1.0, 1000, 1.0, f"{system} 1.0")


def test_repeats_are_grouped_by_system_and_the_table_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    install(tmp_path)
    speeds = [one(OURS, 1, 300.0), one("fake", 1, 100.0), one(OURS, 2, 400.0), one("fake", 2, 100.0)]
    found = speed_result(config_of(peer=None), speeds, seconds=20.0, command="ddrl peers speed ppo toy/catch")
    assert [(each["title"], len(each["repeats"])) for each in found["measurements"]] == [(OURS, 2), ("A Fake", 2)]
    assert {"git_sha", "git_dirty", "hardware", "packages", "date", "command"} <= set(found)
    path = tmp_path / "results/reference/peers/catch.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(found))
    table, problems = peer_speed("any", tmp_path / "results", "reference")
    assert problems == []
    assert list(table["to_best_peer"]) == [3.5, 1.0]
    assert list(table["versions"]) == ["ddrl 1.0", "fake 1.0"]


def test_nothing_measured_is_an_error() -> None:
    with pytest.raises(UserError, match="nothing was measured"):
        speed_result(config_of(peer=None), [], seconds=1.0, command="")


def test_the_command_writes_the_file_with_the_words_that_were_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    install(tmp_path)
    small = ["hyperparameters.unroll_length=32", "hyperparameters.num_epochs=1", "hyperparameters.num_minibatches=1"]
    options = ["--seconds", "0.3", "--repeats", "1", "--threads", "1"]
    assert main(["peers", "speed", "ppo", "toy/catch", *small, *options, "--json", "catch.json"]) == 0
    found = json.loads(Path("catch.json").read_text())
    assert found["command"].startswith("ddrl peers speed ppo toy/catch hyperparameters.unroll_length=32")
    assert found["command"].endswith("--seconds 0.3 --repeats 1 --threads 1")
    assert {each["system"] for each in found["measurements"]} == {OURS, "fake"}
    assert found["measurements"][1]["versions"] == "fake 1.0"


def test_the_command_names_no_folder_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    install(tmp_path)
    file = tmp_path / "catch_config.json"
    file.write_text(json.dumps(to_json(config_of(peer=None))))
    options = ["--seconds", "0.3", "--repeats", "1", "--threads", "1"]
    assert main(["peers", "speed", str(file), *options, "--json", "catch.json"]) == 0
    found = Path("catch.json").read_text()
    assert json.loads(found)["command"].startswith("ddrl peers speed catch_config.json --seconds 0.3")
    assert str(tmp_path) not in found
