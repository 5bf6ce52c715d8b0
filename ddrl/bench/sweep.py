"""Grids of topologies, to find the best numbers of actors and environments on this machine."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ddrl.bench.defaults import default_config
from ddrl.errors import UserError, unknown_name
from ddrl.training.config.overrides import merged
from ddrl.training.config.run_config import RunConfig

KEYS = ("num_actors", "envs_per_actor", "env_groups", "learner_threads", "env_threads", "queue_capacity")
ENVIRONMENTS = (4, 8, 16, 32)
INFERENCE: dict[str, dict[str, Any]] = {
    "local": {"inference": "local"},
    "central": {"inference": "central"},
    "device": {"inference": "local", "acting": "device"},
    "workers": {"inference": "central", "central": {"worker_processes": True}},
}
"""Places of inference; for central inference in runtime threads, threads or processes (`workers`) step environments.

With `device`, environments and unrolls are on the run's device too (`topology.acting`).
"""


def grid(
    algorithm: str,
    environment: str,
    overrides: Mapping[str, Any],
    *,
    runtimes: Sequence[str],
    inferences: Sequence[str] = (),
    axes: Mapping[str, Sequence[int]],
    note: Callable[[str], None],
) -> list[RunConfig]:
    """Return every combination of `axes` (keys of the topology), `runtimes` and `inferences`.

    Without runtimes or inferences, the configuration's own is used. Combinations that are not allowed are left out with
    a note. Raise `UserError` if none is left.
    """
    configs, refused = [], []
    choices: list[list[dict[str, Any]]] = [[{key: value} for value in values] for key, values in axes.items()]
    choices += [[{"runtime": name} for name in runtimes] or [{}], [INFERENCE[name] for name in inferences] or [{}]]
    for chosen in itertools.product(*choices):
        topology = {name: value for part in chosen for name, value in part.items()}
        try:
            configs.append(default_config(algorithm, environment, merged(overrides, {"topology": topology})))
        except UserError as error:
            refused.append(error)
            if axes:
                note(f"left out: {', '.join(f'{name} {value}' for name, value in topology.items())}: {error}")
    if not configs:
        raise refused[0]
    return configs


def default_axes() -> dict[str, list[int]]:
    """Return the default axes: one actor, one per core, or one more; 4 to 32 environments each."""
    cores = len(os.sched_getaffinity(0))
    return {"num_actors": sorted({1, cores, cores + 1}), "envs_per_actor": list(ENVIRONMENTS)}


def parse_axes(texts: Sequence[str]) -> dict[str, list[int]]:
    """Parse `["num_actors=1,2", ...]` into axes; an empty list gives `default_axes`. Raise `UserError` if invalid."""
    axes: dict[str, list[int]] = {}
    for text in texts:
        key, _, values = text.partition("=")
        if key not in KEYS:
            raise unknown_name("key", key, KEYS, where="--sweep")
        if not all(value.isdecimal() and int(value) > 0 for value in values.split(",")):
            raise UserError(f"--sweep: '{text}' is not allowed; allowed: whole numbers from 1, such as {key}=1,2")
        axes[key] = list(dict.fromkeys(int(value) for value in values.split(",")))
    return axes or default_axes()
