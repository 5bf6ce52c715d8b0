"""Our code and a peer are measured in turn, each between two of its updates."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddrl.cli import main
from ddrl.errors import UserError
from ddrl.peers.speed import OURS, Speed, measured, table
from tests.peers.fake import install
from tests.peers.train_test import config_of


def test_they_take_turns_and_are_measured_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    install(tmp_path)
    said: list[str] = []
    small = {"unroll_length": 32, "num_epochs": 2, "num_minibatches": 2}
    config = config_of(peer=None, hyperparameters=small)
    speeds = measured(config, [], seconds=1.0, repeats=2, threads=[1], note=said.append)
    assert [(one.system, one.repeat) for one in speeds] == [(OURS, 1), ("fake", 1), (OURS, 2), ("fake", 2)]
    ours, fake = speeds[0], speeds[1]
    assert (ours.trained_samples_per_step, fake.trained_samples_per_step) == (pytest.approx(2.0, abs=0.2), 2.0)
    assert fake.gradient_steps_per_step == 0.02
    assert ours.gradient_steps_per_step == pytest.approx(4 / 31, rel=0.2)
    assert 400 < fake.frames_per_second < 1000  # 100 steps in 0.11 seconds
    assert fake.cpu_seconds_per_1000_frames < ours.cpu_seconds_per_1000_frames * 10
    assert all(one.peak_memory_mib > 4 for one in speeds), "an interpreter has 4.8 MiB that it shares with no other"
    assert len(said) == 4


def test_a_table_has_medians_and_how_much_faster_ours_is() -> None:
    def one(system: str, repeat: int, speed: float) -> Speed:
        return Speed(system, 1, repeat, speed, 0.5, 100.0, 0.01, 1.0, 1000, 1.0)

    rows = table([one("ddrl", 1, 100.0), one("ddrl", 2, 300.0), one("ddrl", 3, 200.0), one("fake", 1, 80.0)])
    assert [row["frames/s"] for row in rows] == ["200", "80"]
    assert [row["ours is faster by"] for row in rows] == ["", "2.50"]
    assert rows[0]["lowest to highest"] == "100 to 300"


def test_no_peer_that_could_be_measured_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    install(tmp_path, ready=False)
    with pytest.raises(UserError, match="no peer that runs ppo is installed; type: make peers"):
        measured(config_of(peer=None), [], seconds=1.0, repeats=1, threads=[1], note=print)
    assert main(["peers", "speed", "a2c", "toy/catch"]) == 2


def test_an_unknown_peer_and_an_impossible_file_are_refused_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["peers", "speed", "ppo", "toy/catch"]
    assert main([*words, "--peers", "nosuch"]) == 2
    assert "--peers: unknown peer 'nosuch'" in capsys.readouterr().err
    for option in ("--csv", "--json"):
        assert main([*words, option, str(tmp_path)]) == 2
        assert f"{tmp_path}: is no file" in capsys.readouterr().err
        assert main([*words, option, str(tmp_path / "nowhere/speed")]) == 2
        assert f"{tmp_path / 'nowhere'}: no such folder" in capsys.readouterr().err
