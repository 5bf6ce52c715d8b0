"""The prioritized replay: its sum tree alone, what it holds in memory, and whether a learner waits for it.

    python -m ddrl.bench.replay ENVIRONMENT [--frames 40000]

Prints how many priorities one core draws and updates per second in a tree of a million, the memory of a step with the
papers' settings, and for a short run of each algorithm the samples per insert asked for and reached, and the fraction
of the time in which the learner does not wait for batches.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ddrl import algorithms
from ddrl.bench.defaults import settings_of
from ddrl.bench.parts import quiet_run
from ddrl.errors import UserError
from ddrl.replay.prioritized import PrioritizedReplay
from ddrl.replay.replay_config import with_replay
from ddrl.replay.sum_tree import SumTree
from ddrl.runtimes.local import train_local
from ddrl.system.exit_code import exit_code
from ddrl.training.config.run_config import RunConfig, parse_run_config
from ddrl.training.records.recorder import read_curves

ENTRIES = 1_000_000
BATCHES = (64, 512)
SECONDS = 2.0
MIN_RECORDS = 2
"""Records needed in the second half of a run, since the ratio is a slope."""
MEASURED_STEPS = 64_000
"""Capacity of the replay whose memory per step is measured: so large that fixed costs hardly count."""
ONE = {"runtime": "serial", "num_actors": 1, "envs_per_actor": 1}
SMALL: dict[str, Any] = {
    "network": "shallow",
    "head_size": 256,
    "unroll_length": 20,
    "actor_update_period": 100,
    "samples_per_insert": 4.0,
    "target_update_period": 500,
    "replay_capacity": 40_000,
}
_SETTINGS = {name: found["replay"] for name in algorithms.NAMES if "replay" in (found := settings_of(name))}
RUNS: dict[str, dict[str, Any]] = {name: SMALL | found["hyperparameters"] for name, found in _SETTINGS.items()}
"""Algorithm -> hyperparameters of its short run."""
PAPERS: dict[str, dict[str, int]] = {name: found["paper"] for name, found in _SETTINGS.items() if "paper" in found}
"""Algorithm -> `sequences` in its paper's replay, and `steps` of one."""


def tree_speed(batch: int, seconds: float) -> float:
    """Return how many priorities are drawn and updated per CPU second in a tree of `ENTRIES`."""
    generator = np.random.default_rng(0)
    tree = SumTree(ENTRIES)
    tree.set(np.arange(ENTRIES), generator.random(ENTRIES))
    weights = generator.random((64, batch))
    calls, began = 0, time.process_time()
    while time.process_time() - began < seconds:
        tree.set(tree.sample(batch, generator), weights[calls % 64])
        calls += 1
    return calls * batch / (time.process_time() - began)


def bytes_per_step(algorithm: str, environment: str) -> float:
    """Return the bytes per step of an algorithm's replay with its paper's settings."""
    config = run_config(
        algorithm, environment, {"hyperparameters": {"replay_capacity": MEASURED_STEPS}, "topology": ONE}
    )
    with quiet_run(config) as run:
        assert isinstance(run.queue, PrioritizedReplay)
        return run.queue.nbytes / run.queue.capacity


def run_config(algorithm: str, environment: str, changes: dict[str, Any]) -> RunConfig:
    """Return the configuration of a run."""
    least = {"algorithm": algorithm, "environment": {"name": environment}, "seed": 1, "env_frames": 1}
    return parse_run_config(least | changes)


def short_run(algorithm: str, environment: str, frames: int) -> tuple[float, float]:
    """Return samples per insert and the learner's duty cycle in the second half of a run with threads.

    In the first half actors are ahead, by what the replay must hold before the first update.
    """
    config = run_config(
        algorithm,
        environment,
        {
            "env_frames": frames,
            "hyperparameters": RUNS[algorithm],
            "topology": {"runtime": "threads", "num_actors": 2, "envs_per_actor": 16, "prefetch": True},
            "evaluation": {"final_episodes": 1},
            "recording": {"period_frames": frames // 10},
            "tracking": [],
            "device": "cpu",
        },
    )
    with tempfile.TemporaryDirectory() as directory:
        train_local(config, Path(directory), quiet=True)
        curves = read_curves(Path(directory, "curves.jsonl"))
    records = curves.pivot_table(index="updates", columns="metric", values="value").dropna(subset="learner_utilisation")
    later = records.iloc[len(records) // 2 :]
    if len(later) < MIN_RECORDS:
        raise UserError(f"option --frames: {frames:,} are too few: the learner had hardly begun")
    sampled = later.index.to_numpy() * config.hyperparameters.batch_size
    inserted = sampled / later["replay_samples_per_insert"].to_numpy()
    reached = (sampled[-1] - sampled[0]) / (inserted[-1] - inserted[0])
    return float(reached), float(later["learner_utilisation"].mean())


def report(environment: str, frames: int) -> Iterator[str]:
    """Yield the lines of the report, each as soon as it is measured."""
    for batch in BATCHES:
        speed = tree_speed(batch, SECONDS)
        yield f"sum tree of {ENTRIES:,}, batches of {batch}: {speed:,.0f} priorities/s drawn and updated on one core"
    for algorithm in RUNS:
        per_step = bytes_per_step(algorithm, environment)
        capacity = with_replay(run_config(algorithm, environment, {}).hyperparameters).replay.capacity
        whole = f"{per_step * capacity / 1e9:.1f} GB for the {capacity:,} of its paper"
        yield f"{algorithm}: {per_step:,.0f} bytes a step, {whole}"
    for algorithm, paper in PAPERS.items():
        name, frames_stored = algorithms.load(algorithm).SYSTEM.name, paper["sequences"] * paper["steps"]
        size = f"{frames_stored * 84 * 84 / 1e9:.1f} GB"
        yield f"  (frames of {name}'s {paper['sequences']:,} sequences of {paper['steps']}, each stored: {size})"
    for algorithm, settings in RUNS.items():
        reached, duty = short_run(algorithm, environment, frames)
        asked = settings["samples_per_insert"]
        yield (
            f"{algorithm}, {frames:,} frames of {environment}: {reached:.3f} samples per insert of {asked:g} asked for "
            f"({reached / asked - 1:+.1%}); the learner does not wait {duty:.1%} of the time"
        )


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return the exit code, 2 if `--frames` are too few."""
    parser = argparse.ArgumentParser(prog="python -m ddrl.bench.replay", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("environment", help="task of the runs, such as atari/boxing")
    parser.add_argument("--frames", type=int, default=40_000, help="of each run (%(default)s)")
    torch.set_num_threads(1)
    parsed = parser.parse_args(arguments)

    def command() -> None:
        for line in report(parsed.environment, parsed.frames):
            print(line, flush=True)

    return exit_code(command)


if __name__ == "__main__":
    sys.exit(main())
