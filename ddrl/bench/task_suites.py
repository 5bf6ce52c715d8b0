"""A suite of tasks stepped together beside its tasks alone: does a slow task make fast ones wait?

    python -m ddrl.bench.task_suites firstperson/all30 [--envs 1] [--threads 1] [--seconds 2] [--repeats 3] \\
                                     [--json FILE]

Each thread steps environments of its own with random actions: in each repeat every task alone, then all of them as the
suite. Since each task gets the same number of steps, the suite's speed is at best the harmonic mean of the tasks'
speeds. The fraction of that mean that it reaches is printed, and how the steps are divided.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np

from ddrl.environments.base import registry
from ddrl.errors import UserError
from ddrl.system.exit_code import exit_code
from ddrl.system.files import write_whole
from ddrl.system.seeding import numpy_generator
from ddrl.training.records import manifest
from ddrl.types import Array, VectorEnv

WARM_UP_STEPS = 20


def speed(name: str, num_envs: int, num_threads: int, seconds: float) -> tuple[float, Array]:
    """Return valid agent steps per second over all threads, and the steps of each column, summed over threads [B]."""
    with ExitStack() as stack:
        envs = [stack.enter_context(closing(registry.make(name, num_envs, seed=index))) for index in range(num_threads)]
        for env in envs:
            env.reset()
            _step(env, 0, lambda steps: steps >= WARM_UP_STEPS)
        began = time.perf_counter()

        def work(index: int) -> Array:
            return _step(envs[index], 1 + index, lambda steps: time.perf_counter() - began >= seconds)

        with ThreadPoolExecutor(num_threads) as pool:
            each: Array = np.sum(list(pool.map(work, range(num_threads))), axis=0)
        taken = time.perf_counter() - began
        return float(each.sum()) / taken, each


def _step(env: VectorEnv, stream: int, enough: Callable[[int], bool]) -> Array:
    """Step with random actions until `enough(steps)`; return the valid steps of each column [B]."""
    generator, counts, steps = numpy_generator(stream, "bench-suites"), np.zeros(env.num_envs, dtype=np.int64), 0
    while not enough(steps):
        counts += env.step(generator.integers(0, env.spec.num_actions, env.num_envs)).valid
        steps += 1
    return counts


def measure(name: str, envs: int, threads: int, seconds: float, repeats: int) -> dict[str, Any]:
    """Return as plain data the speeds of all tasks alone and of the suite, and their ratio, for each repeat.

    Raise `UserError` for a single task or continuous actions.
    """
    tasks = registry.tasks_of(name)
    if len(tasks) < 2 or registry.spec_for(name).action_size:
        raise UserError(f"'{name}' must be a suite of tasks with discrete actions")
    found = []
    for _ in range(repeats):
        alone = {task: speed(task, envs, threads, seconds / len(tasks))[0] for task in tasks}
        together, steps = speed(name, envs * len(tasks), threads, seconds)
        expected = len(tasks) / sum(1 / rate for rate in alone.values())
        shares = {task: int(steps[index :: len(tasks)].sum()) for index, task in enumerate(tasks)}
        found.append(
            {"alone": alone, "suite": together, "expected": expected, "ratio": together / expected, "steps": shares}
        )
    where = manifest.provenance()
    return {"suite": name, "envs": envs, "threads": threads, "seconds": seconds, "repeats": found, **where}


def describe(result: dict[str, Any]) -> list[str]:
    """Return a report as lines."""
    repeats = result["repeats"]
    lines = [f"{result['suite']}: agent steps/s, {result['envs']} of each task in each of {result['threads']} threads"]
    for task in repeats[0]["alone"]:
        lines.append(f"  {task:45} {statistics.median(one['alone'][task] for one in repeats):10,.0f}")
    ratios = [one["ratio"] for one in repeats]
    steps = [count for one in repeats for count in one["steps"].values()]
    lines.append(f"harmonic mean of these {statistics.median(one['expected'] for one in repeats):32,.0f}")
    lines.append(f"all together {statistics.median(one['suite'] for one in repeats):41,.0f}")
    spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    lines.append(
        f"reached of the harmonic mean: {spread}; steps of a task in the suite: {min(steps):,} to {max(steps):,}"
    )
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m ddrl.bench.task_suites", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("suite", metavar="prefix/suite")
    parser.add_argument("--envs", type=int, default=1, help="of each task in each thread (%(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="that step (%(default)s)")
    parser.add_argument("--seconds", type=float, default=30.0, help="for all tasks alone, and for all (%(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="(%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured")
    given = parser.parse_args(arguments)
    if min(given.envs, given.threads, given.repeats, given.seconds) <= 0:
        parser.error("--envs, --threads, --seconds and --repeats must be above 0")

    def command() -> None:
        result = measure(given.suite, given.envs, given.threads, given.seconds, given.repeats)
        if given.json:
            write_whole(given.json, (json.dumps(result, indent=1) + "\n").encode())
        print("\n".join(describe(result)))

    return exit_code(command)


if __name__ == "__main__":
    sys.exit(main())
