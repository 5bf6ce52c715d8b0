"""Measures random play: `python -m ddrl.environments.tools.random_play mujoco/Hopper-v5 ... > scores.csv`.

Actions are uniform: over the action set, or over [-1, 1] in each dimension. One row per environment, in the columns of
`replications/references/*.csv`. The same seed gives the same numbers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import numpy as np

from ddrl.environments.base import finite, registry
from ddrl.errors import UserError
from ddrl.system.csv_cells import write_rows
from ddrl.system.exit_code import exit_code
from ddrl.system.seeding import numpy_generator, seed_for
from ddrl.system.text_files import parse_yaml
from ddrl.types import Array

COLUMNS = ("task", "random", "human", "made_by", "variant", "source", "notes")
MODULE = "ddrl.environments.tools.random_play"
_NUM_ENVS = 10


def random_returns(name: str, episodes: int, seed: int, **options: Any) -> Array:
    """Return the raw returns [n] of at least `episodes` episodes, n a multiple of ten; `options` of the environment.

    Each of ten environments plays the same number of them: the first episodes to end would be short ones.
    Raise UserError for an unknown name, and for numbers that `ddrl.environments.base.finite` refuses.
    """
    rounds = -(-episodes // _NUM_ENVS)
    generator = numpy_generator(seed, "random-play")
    returns, total = np.zeros((rounds, _NUM_ENVS)), np.zeros(_NUM_ENVS)
    done = np.zeros(_NUM_ENVS, dtype=np.int64)
    with closing(registry.make(name, _NUM_ENVS, seed_for(seed, "random-play-environment"), **options)) as env:
        env.reset()
        while done.min() < rounds:
            if env.spec.action_size:
                actions: Array = generator.uniform(-1.0, 1.0, (_NUM_ENVS, env.spec.action_size)).astype(np.float32)
            else:
                actions = generator.integers(0, env.spec.num_actions, _NUM_ENVS)
            step = env.step(actions)
            if found := finite.fault(step):
                raise UserError(f"{name}: column {found.column} of {_NUM_ENVS}: the {found.what}")
            total += step.reward
            (over,) = np.nonzero(step.ended & (done < rounds))
            returns[done[over], over] = total[over]
            done[over] += 1
            total[step.ended] = 0.0
    return returns.reshape(-1)


def row(name: str, episodes: int, seed: int, **options: Any) -> dict[str, str]:
    """Return one row of a file of reference scores, without a human score."""
    returns = random_returns(name, episodes, seed, **options)
    given = "".join(f" --set {key}={value}" for key, value in options.items())
    error = returns.std(ddof=1) / len(returns) ** 0.5
    return {
        "task": name.partition("/")[2],
        "random": f"{returns.mean():.4g}",
        "human": "",
        "made_by": "",
        "variant": "measured",
        "source": f"measured: python -m {MODULE} {name} --episodes {len(returns)} --seed {seed}{given}",
        "notes": f"standard error {error:.2g}; {registry.spec_for(name, **options).protocol}",
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the rows; return the exit code."""
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__)
    parser.add_argument("names", nargs="+", metavar="prefix/task", help="or a suite: each of its tasks")
    parser.add_argument("--episodes", type=int, default=200, metavar="N", help="rounded up to a multiple of ten")
    parser.add_argument("--seed", type=int, default=0)
    help_text = "an option of the environment, such as reward=metric; may be given several times"
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=help_text)
    given = parser.parse_args(arguments)
    if given.episodes < 2:
        parser.error("--episodes must be at least 2")

    def command() -> None:
        options = {key: parse_yaml(value) for key, _, value in (one.partition("=") for one in given.set)}
        tasks = [task for name in given.names for task in registry.tasks_of(name)]
        write_rows(sys.stdout, COLUMNS, (row(task, given.episodes, given.seed, **options) for task in tasks))

    return exit_code(command)


if __name__ == "__main__":
    sys.exit(main())
