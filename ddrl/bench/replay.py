"""The prioritized replay: its sum tree alone, what it holds in memory, and whether a learner waits for it.

    python -m ddrl.bench.replay [--frames 40000]

Prints, on one core, how many priorities a second are drawn and given new values in a tree of a million; what a step
takes in memory with the papers' settings; and of a short real run of each algorithm the samples per insert asked for
and reached, and the part of the time that the learner does not wait for batches.
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

from ddrl.bench.parts import quiet_run
from ddrl.errors import UserError
from ddrl.replay.prioritized import PrioritizedReplay
from ddrl.replay.sum_tree import SumTree
from ddrl.runtimes.local import train_local
from ddrl.system.exit_code import exit_code
from ddrl.training.config.run_config import RunConfig, parse_run_config
from ddrl.training.records.recorder import read_curves

GAME = "atari/boxing"
ENTRIES = 1_000_000
BATCHES = (64, 512)
SECONDS = 2.0
MIN_RECORDS = 2
"""In the second half of a run: a ratio is a slope."""
MEASURED_STEPS = 64_000
"""A replay of so many steps says what one takes: the number of rings and their ends hardly count."""
ONE = {"runtime": "serial", "num_actors": 1, "envs_per_actor": 1}
PAPER_SEQUENCES, PAPER_SEQUENCE_STEPS = 100_000, 120
"""Of R2D2: sequences in its replay, and steps of one with its burn-in."""
SMALL: dict[str, Any] = {
    "network": "shallow",
    "head_size": 256,
    "unroll_length": 20,
    "actor_update_period": 100,
    "samples_per_insert": 4.0,
    "target_update_period": 500,
    "replay_capacity": 40_000,
}
RUNS: dict[str, dict[str, Any]] = {
    "apex_dqn": SMALL | {"batch_size": 128, "min_replay_size": 1000, "error_buffer": 1024.0},
    "r2d2": SMALL
    | {"batch_size": 16, "min_replay_size": 100, "error_buffer": 64.0, "lstm_size": 256}
    | {"sequence_length": 20, "sequence_period": 10, "burn_in": 10},
}
"""Small enough for two cores; the ratio and the waiting are what is looked at."""


def tree_speed(batch: int, seconds: float) -> float:
    """Priorities a second of CPU time, each drawn and given a new value, in a tree of `ENTRIES`."""
    generator = np.random.default_rng(0)
    tree = SumTree(ENTRIES)
    tree.set(np.arange(ENTRIES), generator.random(ENTRIES))
    weights = generator.random((64, batch))
    calls, began = 0, time.process_time()
    while time.process_time() - began < seconds:
        tree.set(tree.sample(batch, generator), weights[calls % 64])
        calls += 1
    return calls * batch / (time.process_time() - began)


def bytes_per_step(algorithm: str) -> float:
    """Of the replay of an algorithm with its paper's settings, on an Atari game."""
    config = run_config(algorithm, {"hyperparameters": {"replay_capacity": MEASURED_STEPS}, "topology": ONE})
    with tempfile.TemporaryDirectory() as directory, quiet_run(config, Path(directory)) as run:
        assert isinstance(run.queue, PrioritizedReplay)
        return run.queue.nbytes / run.queue.capacity


def run_config(algorithm: str, changes: dict[str, Any]) -> RunConfig:
    """Of a run on `GAME`."""
    least = {"algorithm": algorithm, "environment": {"name": GAME}, "seed": 1, "env_frames": 1}
    return parse_run_config(least | changes)


def short_run(algorithm: str, frames: int) -> tuple[float, float]:
    """Samples per insert, and the learner's duty cycle, in the second half of a run with threads.

    In the first half actors are ahead by what must be there before the first update.
    """
    config = run_config(
        algorithm,
        {
            "env_frames": frames,
            "hyperparameters": RUNS[algorithm],
            "topology": {"runtime": "threads", "num_actors": 2, "envs_per_actor": 16, "prefetch": True},
            "evaluation": {"final_episodes": 1},
            "recording": {"period_frames": frames // 10, "tensorboard": False},
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


def report(frames: int) -> Iterator[str]:
    """The lines, as soon as each is known."""
    for batch in BATCHES:
        speed = tree_speed(batch, SECONDS)
        yield f"sum tree of {ENTRIES:,}, batches of {batch}: {speed:,.0f} priorities/s drawn and updated on one core"
    frame = 84 * 84
    by_item = PAPER_SEQUENCES * PAPER_SEQUENCE_STEPS * frame / 1e9
    for algorithm in RUNS:
        size = bytes_per_step(algorithm)
        capacity = run_config(algorithm, {}).hyperparameters.replay_capacity
        yield f"{algorithm}: {size:,.0f} bytes a step, {size * capacity / 1e9:.1f} GB for the {capacity:,} of its paper"
    yield f"  (frames of R2D2's {PAPER_SEQUENCES:,} sequences of {PAPER_SEQUENCE_STEPS}, each stored: {by_item:.1f} GB)"
    for algorithm, settings in RUNS.items():
        reached, duty = short_run(algorithm, frames)
        asked = settings["samples_per_insert"]
        yield (
            f"{algorithm}, {frames:,} frames of {GAME}: {reached:.3f} samples per insert of {asked:g} asked for "
            f"({reached / asked - 1:+.1%}); the learner does not wait {duty:.1%} of the time"
        )


def main(arguments: list[str] | None = None) -> int:
    """The command; 2 where so few frames say nothing."""
    parser = argparse.ArgumentParser(prog="python -m ddrl.bench.replay", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--frames", type=int, default=40_000, help="of each run (%(default)s)")
    torch.set_num_threads(1)
    frames = parser.parse_args(arguments).frames
    return exit_code(lambda: _print(report(frames)))


def _print(lines: Iterator[str]) -> None:
    for line in lines:
        print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
