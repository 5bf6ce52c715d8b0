"""A long run on Ray keeps its memory: `DDRL_SOAK_MINUTES` (20, if not set) of many small unrolls."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.runs import BASE, merged
from tests.runtimes.ray import clusters

MINUTES = float(os.environ.get("DDRL_SOAK_MINUTES", "20"))
SAMPLE_SECONDS = 5.0
BOUND_MIB = 24.0
"""Growth that the second half may show, by its fitted line. A run of 20 minutes makes some 25,000 unrolls in it, of
51.6 KiB (11 steps x 4 columns x 300 float32), so the bound sees what grows by 1 KiB an unroll: one unroll kept of each
fifty (25 MiB) is seen, one of each hundred (12.6 MiB) is not."""
CONFIG = merged(
    BASE,
    {
        "environment": {"name": "toy/catch", "rows": 20, "columns": 15},
        "env_frames": 2**40,
        "hyperparameters": {"unroll_length": 10, "batch_size": 8},
        "topology": {"runtime": "ray", "num_actors": 2, "envs_per_actor": 4},
        "evaluation": {"period_frames": 100_000},
        "recording": {"period_frames": 20_000},
        "checkpoint": {"period_frames": 50_000},
    },
)


def measured(family: list[psutil.Process]) -> tuple[float, float, int]:
    """MiB that belong to one process alone (over all of them), MiB of the object store, open files."""
    memory, store, files = 0.0, 0.0, 0
    for process in family:
        memory += process.memory_full_info().uss
        files += process.num_fds()
        if process.name() == "raylet":
            store += process.memory_info().shared
    return memory / 2**20, store / 2**20, files


@pytest.mark.learning
def test_memory_and_open_files_stay_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    process = clusters.start(CONFIG, tmp_path, RAY_ADDRESS="")
    try:
        clusters.wait_for_lines(process, tmp_path, 1)
        parent = psutil.Process(process.pid)
        family = [parent, *parent.children(recursive=True)]
        end, samples = time.monotonic() + 60 * MINUTES, []
        while time.monotonic() < end:
            time.sleep(SAMPLE_SECONDS)
            samples.append(measured(family))  # a process that is gone fails the test
        process.send_signal(signal.SIGTERM)
        error = process.ended(120)
    finally:
        process.kill()
    memory, store, files = (np.array(column)[len(samples) // 2 :] for column in zip(*samples, strict=True))
    growth = {name: float(np.polyfit(np.linspace(0, 1, len(one)), one, 1)[0]) for name, one in
              (("memory", memory), ("store", store))}  # fmt: skip
    with capsys.disabled():
        print(f"\n{MINUTES:g} minutes: memory {memory.mean():,.0f} MiB, object store {store.mean():,.0f} MiB; in the "
              f"second half {growth['memory']:+.1f} and {growth['store']:+.1f} MiB; files {files[0]} to {files[-1]}; "
              f"{[line for line in error.splitlines() if ' frames | ' in line][-1]}")  # fmt: skip
    assert growth["memory"] < BOUND_MIB
    assert growth["store"] < BOUND_MIB
    assert files[-1] <= files[0] + 10
