"""`ddrl roundtrip` measures the service itself: real worker processes, real streams."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddrl.cli import main
from ddrl.inference.idle_worker import SPEC

WHOLE = 4 * 84 * 84
"""Bytes of an observation; of its newest frame a quarter."""


def test_it_measures_every_layout_in_turn_and_writes_what_it_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "roundtrip.json"
    arguments = ["--workers", "1", "2", "--envs", "4", "--transport", "unix", "tcp"]
    assert main(["roundtrip", *arguments, "--seconds", "0.4", "--repeats", "2", "--json", str(path)]) == 0
    result = json.loads(path.read_text())
    layouts = [(one["workers"], one["envs"], one["transport"]) for one, _ in result["measurements"]]
    assert layouts == [(1, 4, "unix"), (2, 4, "unix"), (1, 4, "tcp"), (2, 4, "tcp")]
    for one in [one for repeats in result["measurements"] for one in repeats]:
        assert one["observations_per_second"] > 0
        assert 0 < one["round_trip_ms_p50"] <= one["round_trip_ms_p99"]
        assert WHOLE / 4 < one["bytes_per_observation"] < WHOLE / 4 + 200
    printed = capsys.readouterr()
    assert printed.out.count("observations/s") == 4
    assert printed.err.count("repeat") == 8
    assert str(list(SPEC.observation_shape)) in printed.out


def test_a_folder_that_is_missing_is_said_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["roundtrip", "--json", str(tmp_path / "missing/r.json")]) == 2
    assert "no such folder" in capsys.readouterr().err
