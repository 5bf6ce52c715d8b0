"""Environments stepped side by side, without a policy: agent steps per second for numbers of copies and of threads.

    python -m ddrl.bench.environments mujoco/Ant-v5 mujoco_batch/Ant-v5 [--envs 1 16 256 1024] [--threads 1 2] \\
                                      [--seconds 2] [--repeats 3] [--json FILE]

For each number of copies all that is named is made, and stepped with random actions in turns, `--repeats` times. The
first name, on one thread, is what the others are compared with: by the clock, and by the time of processors, which says
more on a machine that is busy. A step of a copy that begins an episode counts too, since it takes time. An environment
without native threads ignores their number.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from ddrl.environments.base import registry
from ddrl.system.exit_code import exit_code
from ddrl.system.files import write_whole
from ddrl.system.seeding import numpy_generator
from ddrl.training.records import manifest
from ddrl.types import Array, VectorEnv

WARM_UP_STEPS = 3
_KINDS = ("steps_per_second", "steps_per_cpu_second")
_PLANS = 16
"""Steps whose actions are drawn beforehand; they are repeated."""


def measure(
    names: Sequence[str], envs: Sequence[int], threads: Sequence[int], seconds: float, repeats: int
) -> dict[str, Any]:
    """Return as plain data the speeds of every environment, number of copies and number of threads, for each repeat.

    Raise `UserError` for unknown names, and for more copies than an environment can hold.
    """
    measurements: list[dict[str, Any]] = []
    for count in envs:
        with ExitStack() as stack:
            made: list[tuple[dict[str, Any], VectorEnv, Array]] = []
            for name in names:
                for number in threads:
                    env = stack.enter_context(closing(registry.make(name, count, seed=1, num_threads=number)))
                    found: dict[str, Any] = {"name": name, "envs": count, "threads": number} | {
                        kind: [] for kind in _KINDS
                    }
                    made.append((found, env, _actions(env)))
            for _, env, actions in made:
                env.reset()
                for chosen in actions[:WARM_UP_STEPS]:
                    env.step(chosen)
            for _ in range(repeats):
                for found, env, actions in made:
                    for kind, rate in zip(_KINDS, _speeds(env, actions, seconds), strict=True):
                        found[kind].append(rate)
            measurements += [found for found, _, _ in made]
    return {"seconds": seconds, "measurements": measurements, **manifest.provenance()}


def _actions(env: VectorEnv) -> Array:
    """Return random actions [_PLANS, B] or [_PLANS, B, A]."""
    generator = numpy_generator(1, "bench-environments")
    if env.spec.action_size:
        shape = (_PLANS, env.num_envs, env.spec.action_size)
        return generator.uniform(-1.0, 1.0, shape).astype("float32")
    return generator.integers(0, env.spec.num_actions, (_PLANS, env.num_envs))


def _speeds(env: VectorEnv, actions: Array, seconds: float) -> tuple[float, float]:
    """Return how many steps all copies together make, dead ones included, in a second and in a processor's second."""
    began, worked, steps, taken = time.perf_counter(), time.process_time(), 0, 0.0
    while not steps or taken < seconds:  # one at least: the machine may have been busy with others all the time
        env.step(actions[steps % len(actions)])
        steps, taken = steps + 1, time.perf_counter() - began
    made = steps * env.num_envs
    return made / taken, made / (time.process_time() - worked)


def describe(result: dict[str, Any]) -> list[str]:
    """Return a report as lines: medians, and ratios to the first environment with as many copies, turn by turn."""
    lines = [
        f"{'environment':28} {'copies':>7} {'threads':>8} {'steps/s':>10}   {'ratio (range)':22} "
        f"{'steps/CPU s':>12}   ratio (range)"
    ]
    base: dict[int, dict[str, Any]] = {}
    for one in result["measurements"]:
        reference = base.setdefault(one["envs"], one)
        line = f"{one['name']:28} {one['envs']:7,} {one['threads']:8}"
        for kind, width in zip(_KINDS, (10, 12), strict=True):
            ratios = [mine / theirs for mine, theirs in zip(one[kind], reference[kind], strict=True)]
            spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            line += f" {statistics.median(one[kind]):{width},.0f}   {spread:22}"
        lines.append(line.rstrip())
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m ddrl.bench.environments", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("names", metavar="prefix/task", nargs="+")
    parser.add_argument("--envs", type=int, nargs="+", default=[1, 16, 256, 1024], help="copies (%(default)s)")
    parser.add_argument("--threads", type=int, nargs="+", default=[1], help="native threads (%(default)s)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement (%(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="(%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured")
    given = parser.parse_args(arguments)
    if min(*given.envs, *given.threads, given.repeats, given.seconds) <= 0:
        parser.error("--envs, --threads, --seconds and --repeats must be above 0")

    def command() -> None:
        result = measure(given.names, given.envs, given.threads, given.seconds, given.repeats)
        if given.json:
            write_whole(given.json, (json.dumps(result, indent=1) + "\n").encode())
        print("\n".join(describe(result)))

    return exit_code(command)


if __name__ == "__main__":
    sys.exit(main())
