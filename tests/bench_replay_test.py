"""`python -m ddrl.bench.replay` prints what it measures; the speeds themselves are for a quiet machine."""

from __future__ import annotations

import re

import pytest

from ddrl.bench import replay


def test_a_step_of_the_papers_replays_takes_one_frame_and_little_more() -> None:
    frame = 84 * 84
    for algorithm, states in (("apex_dqn", 0), ("r2d2", 2 * 512 * 4 / 40)):
        assert frame + states < replay.bytes_per_step(algorithm) < 1.3 * frame


def test_100_000_sequences_of_120_frames_take_less_than_half_of_storing_each() -> None:
    capacity = replay.run_config("r2d2", {}).hyperparameters.replay_capacity
    assert capacity == replay.PAPER_SEQUENCES * 40
    assert replay.bytes_per_step("r2d2") * capacity < 0.5 * replay.PAPER_SEQUENCES * 120 * 84 * 84


def test_every_line_says_its_measure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(replay, "ENTRIES", 1000)
    monkeypatch.setattr(replay, "SECONDS", 0.01)
    # 2,000 agent steps, of which the fewest that are learned from are at most 1,000.
    assert replay.main(["--frames", "8000"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if "priorities/s" in line]) == 2
    for algorithm in replay.RUNS:
        (line,) = (line for line in lines if line.startswith(f"{algorithm}, "))
        reached = float(re.findall(r"([\d.]+) samples per insert", line)[0])
        assert 0 < reached <= 4.0
