"""Where the parts of a run are measured, and what is said of them where a GPU trains; the GPU is a fake."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ddrl import bench
from ddrl.analysis.tables.suite import _benchmarks
from ddrl.bench import parts
from ddrl.bench.measure import write_result
from ddrl.training.config.run_config import RunConfig
from tests.runs import config


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The parts believe in a GPU, the runs they make do not; the devices that those runs are made with."""
    monkeypatch.setattr(parts, "resolve_device", lambda name: torch.device("cpu" if name == "cpu" else "cuda"))
    devices: list[str] = []
    quiet_run = parts.quiet_run

    def noted(chosen: RunConfig) -> Any:
        devices.append(chosen.device)
        return quiet_run(chosen)

    monkeypatch.setattr(parts, "quiet_run", noted)
    return devices


@pytest.mark.parametrize(("runtime", "devices"), [("ray", ["cpu", "auto"]), ("threads", ["auto"])])
def test_acting_is_measured_where_actors_act(gpu: list[str], runtime: str, devices: list[str]) -> None:
    chosen = config(topology={"runtime": runtime}, device="auto")
    measured = parts.measure_parts(chosen, 0.1)
    assert gpu == devices  # acting, and training where that is on another one
    assert measured.training.frames_per_second > 0
    assert math.isnan(measured.bound)


BURN = """
import sys, time
for _ in sys.stdin:
    start = time.process_time()
    while time.process_time() - start < 0.05:
        pass
    print(flush=True)
"""


def test_what_a_game_in_a_process_of_its_own_takes_is_counted() -> None:
    with subprocess.Popen([sys.executable, "-c", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as game:
        assert game.stdin is not None and game.stdout is not None

        def step() -> None:
            game.stdin.write(b"\n")
            game.stdin.flush()
            game.stdout.readline()

        speed = parts._time(step, steps=10, frame_skip=4, seconds=0.5)
        game.stdin.close()
    assert speed.cpu_seconds_per_step > 0.004


def test_runtimes_that_act_on_different_devices_do_not_share_their_parts(gpu: list[str]) -> None:
    for device, shared in (("auto", False), ("cpu", True)):
        ray, threads = (config(topology={"runtime": runtime}, device=device) for runtime in ("ray", "threads"))
        assert (parts.alone(ray) == parts.alone(threads)) == shared


def test_without_a_bound_none_is_shown_and_the_reason_is(gpu: list[str]) -> None:
    result = bench.bench([config(device="auto", topology={"runtime": "threads"})], seconds=0.2, repeats=1, note=print)
    text = bench.describe(result)
    assert "nan" not in text
    assert "bound -, ratio -" in text
    assert "no bound: a GPU trains" in text


def test_a_file_of_a_gpu_is_a_row_without_a_bound(gpu: list[str], tmp_path: Path) -> None:
    result = bench.bench([config(device="auto", topology={"runtime": "threads"})], seconds=0.2, repeats=1, note=print)
    (folder := tmp_path / "reference" / "bench").mkdir(parents=True)
    hardware = result["hardware"]
    for name, card in (("with.json", "a GPU"), ("without.json", None)):
        write_result(folder / name, result | {"hardware": hardware | {"gpu": card}})
        assert "NaN" not in (folder / name).read_text()
    ((row,), (problem,)) = _benchmarks(tmp_path)
    assert row["frames_per_second"] == result["measurements"][0]["median_training_frames_per_second"]
    assert (row["bound"], row["ratio"]) == (None, None)
    assert problem["file"].endswith("without.json")


def test_with_a_bound_no_reason_is_given() -> None:
    result = bench.bench([config()], seconds=0.2, repeats=1, note=print)
    assert result["measurements"][0]["median_ratio"] > 0
    assert "no bound" not in bench.describe(result)
