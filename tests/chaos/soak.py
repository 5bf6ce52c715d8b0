"""Hours of training: memory, open files, threads and shared memory stay as they are."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil

from tests.chaos.child import Child
from tests.chaos.kills import saved_frames
from tests.chaos.systems import System
from tests.chaos.tally import Row, Tally
from tests.runs import merged

SYSTEMS = ("serial impala toy/catch", "threads impala workers", "threads apex_dqn toy/catch", "threads impala central")
SAMPLES = 240
"""Of one system's soak, however long it is; at most one a second."""
WARM_FRACTION = 0.3
"""Of the time, whose samples do not count: buffers and replays fill."""
MIB_AN_HOUR = 16.0
"""Growth that memory may show by its fitted line; a soak of minutes is held to what would be noise in it."""
NOISE_MIB = 4.0
MEASURED = ("RSS MiB", "anonymous MiB", "descriptors", "threads", "shared MiB", "processes")


def soak(systems: Sequence[System], hours: float, folder: Path, tally: Tally) -> None:
    """Train each of a few systems for its share of the time."""
    chosen = [system for name in SYSTEMS for system in systems if system.name == name]
    if not hours or not chosen:
        return
    for system in chosen:
        with tally.row("soak", system.name) as row:
            _soak_one(system, 3600 * hours / len(chosen), folder / re.sub(r"\W+", "_", system.name), row, tally)


def _soak_one(system: System, seconds: float, folder: Path, row: Row, tally: Tally) -> None:
    endless = {
        "env_frames": 2**40,
        "evaluation": {"period_frames": 100_000},
        "recording": {"period_frames": 20_000},
        "checkpoint": {"period_frames": 50_000},
    }
    config, log = System(system.name, merged(system.config, endless)).write(folder / "config.json"), folder / "log"
    child = Child(["train", config, "--quiet", "--directory", folder / "run"], log)
    start, samples = time.monotonic(), []
    while time.monotonic() - start < seconds and not child.poll():
        time.sleep(max(1.0, seconds / SAMPLES))
        samples.append((time.monotonic() - start, *measured(child)))
        tally.progress(f"{system.name}: {(time.monotonic() - start) / 60:.0f} of {seconds / 60:.0f} minutes")
    if child.poll():
        row.fail(f"ended by itself: {child.end().said.strip()[-300:]}")
        return
    os.kill(child.pid, signal.SIGTERM)
    ended = child.end()
    if ended.code != 75:
        row.fail(f"exit {ended.code} after SIGTERM: {ended.said.strip()[-300:]}")
    row.count("samples", len(samples))
    row.measured["frames"] = float(saved_frames(folder / "run"))
    _judge(np.array(samples[:-1]), seconds, row)


def measured(child: Child) -> tuple[float, ...]:
    """Return `MEASURED`, over the process and all that it has started.

    Anonymous memory is counted whole: what a process has for itself alone grows when another one ends that shared it.
    """
    rss = anonymous = descriptors = threads = number = 0.0
    shared: dict[str, float] = {}
    for process in child.family():
        with suppress(psutil.Error):
            maps = process.memory_maps()
            rss += process.memory_info().rss / 2**20
            anonymous += sum(one.anonymous for one in maps) / 2**20
            descriptors, threads, number = descriptors + process.num_fds(), threads + process.num_threads(), number + 1
            shared |= {one.path: one.size / 2**20 for one in maps if one.path.startswith("/dev/shm/")}
    return rss, anonymous, descriptors, threads, sum(shared.values()), number


def _judge(samples: np.ndarray, seconds: float, row: Row) -> None:
    """Fit a line to each of what was measured, after the first part of the time."""
    settled = samples[samples[:, 0] > WARM_FRACTION * seconds] if len(samples) else samples
    if len(settled) < 5:
        row.fail(f"only {len(settled)} samples: soak for longer")
        return
    hours = settled[:, 0] / 3600
    for name, values in zip(MEASURED, settled[:, 1:].T, strict=True):
        slope = float(np.polyfit(hours, values, 1)[0])
        grown = slope * float(hours[-1] - hours[0])
        row.measured.update({name: round(float(np.median(values)), 1), f"{name} an hour": round(slope, 2)})
        if "MiB" in name:
            flat = grown < max(NOISE_MIB, MIB_AN_HOUR * float(hours[-1] - hours[0]))
        else:
            flat = float(np.median(values[-3:])) <= float(np.median(values[:3])) + 4
        if not flat:
            row.fail(f"{name}: from {values[0]:.1f} to {values[-1]:.1f}, {slope:+.1f} an hour")
