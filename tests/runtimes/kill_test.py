"""kill -9 at ten random moments of a training job, resumed each time: the same final curve as without."""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from contextlib import suppress
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ddrl import cli
from tests import processes
from tests.processes import finish
from tests.runs import BASE, curves, merged

KILLS = 10
CATCH = merged(BASE, {"env_frames": 20_000, "checkpoint": {"period_frames": 750}})
BREAKOUT: dict[str, Any] = merged(
    BASE,
    {
        "environment": {"name": "atari/breakout"},
        "env_frames": 60_000,
        "hyperparameters": {"network": "shallow"},
        "topology": {"envs_per_actor": 4},
        "evaluation": {"period_frames": 20_000, "final_episodes": 2},
        "recording": {"period_frames": 1000},
        "checkpoint": {"period_frames": 2000},
    },
)


def command(config: Path, directory: Path) -> None:
    """`ddrl train`, as the whole of a process."""
    sys.exit(cli.main(["train", str(config), "--directory", str(directory), "--quiet"]))


def start(config: Path, directory: Path) -> ForkServerProcess:
    """The command in a process of its own."""
    return processes.start(command, config, directory)


def kill_somewhere(
    process: ForkServerProcess, directory: Path, generator: random.Random, seconds: float, after: str
) -> bool:
    """Kills the job at a random moment of the `seconds` after a new record, or after a new checkpoint, was written.

    Returns False when it finished before.
    """

    def newest() -> int:
        times = [0]
        for path in directory.glob(after):
            with suppress(FileNotFoundError):  # an old checkpoint, removed meanwhile
                status = path.stat()
                times.append(status.st_mtime_ns if status.st_size else 0)
        return max(times)

    before = newest()
    while process.is_alive() and newest() <= before:
        time.sleep(0.01)
    time.sleep(generator.uniform(0.0, seconds))
    process.kill()
    return finish(process) == -signal.SIGKILL


@pytest.mark.system
@pytest.mark.parametrize(
    ("config", "seconds"),
    [(CATCH, 0.2), pytest.param(BREAKOUT, 4.0, marks=pytest.mark.learning)],
    ids=["toy/catch", "atari/breakout"],
)
def test_a_serial_run_killed_at_ten_random_moments_has_the_same_curve(
    tmp_path: Path, config: dict[str, Any], seconds: float
) -> None:
    """Half of the moments follow a record, mostly before the first checkpoint; half follow a checkpoint."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    assert finish(start(path, tmp_path / "straight")) == 0
    generator = random.Random(2018)
    killed = tmp_path / "killed"
    moments = ["curves.jsonl", "checkpoints/*.sha256"] * (KILLS // 2)
    kills = sum(kill_somewhere(start(path, killed), killed, generator, seconds, after) for after in moments)
    assert kills == KILLS
    assert finish(start(path, killed)) == 0
    pd.testing.assert_frame_equal(curves(tmp_path / "straight"), curves(killed))
    resumes = json.loads((killed / "run.json").read_text())["resumes"]
    assert 1 <= resumes <= KILLS
