"""`python -m ddrl.bench.replay` prints what it measures; the speeds themselves are for a quiet machine."""

from __future__ import annotations

import re

import pytest

from ddrl.bench import replay

BOXING = "atari/boxing"


def test_a_step_of_the_papers_replays_takes_one_frame_and_little_more() -> None:
    frame = 84 * 84
    for algorithm, states in (("apex_dqn", 0), ("r2d2", 2 * 512 * 4 / 40)):
        assert frame + states < replay.bytes_per_step(algorithm, BOXING) < 1.3 * frame


def test_100_000_sequences_of_120_frames_take_less_than_half_of_storing_each() -> None:
    capacity = replay.run_config("r2d2", BOXING, {}).hyperparameters.replay_capacity
    paper = replay.PAPERS["r2d2"]
    assert (capacity, paper["steps"]) == (paper["sequences"] * 40, 120)
    assert replay.bytes_per_step("r2d2", BOXING) * capacity < 0.5 * paper["sequences"] * 120 * 84 * 84


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catch instead of a game, and a small tree."""
    monkeypatch.setattr(replay, "ENTRIES", 1000)
    monkeypatch.setattr(replay, "SECONDS", 0.01)
    monkeypatch.setattr(replay, "bytes_per_step", lambda algorithm, environment: 9000.0)
    small = {"network": "mlp", "head_size": 16, "error_buffer": 128.0}
    runs = {name: settings | small | {"min_replay_size": 50} for name, settings in replay.RUNS.items()}
    monkeypatch.setattr(replay, "RUNS", runs | {"r2d2": runs["r2d2"] | {"lstm_size": 8}})


@pytest.mark.usefixtures("quick")
def test_every_line_says_its_measure(capsys: pytest.CaptureFixture[str]) -> None:
    assert replay.main(["toy/catch", "--frames", "12000"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if "priorities/s" in line]) == 2
    for algorithm in replay.RUNS:
        (line,) = (line for line in lines if line.startswith(f"{algorithm}, "))
        reached = float(re.findall(r"([\d.]+) samples per insert", line)[0])
        assert reached == pytest.approx(4.0, rel=0.15)  # of a short run, whose ends are steps of an unroll


@pytest.mark.usefixtures("quick")
def test_too_few_frames_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert replay.main(["toy/catch", "--frames", "400"]) == 2
    assert "option --frames: 400 are too few" in capsys.readouterr().err
