"""Which run is asked for (an algorithm and a task, or a configuration, and settings), and the directory it goes to.

The command line and the Python interface read what they are told with the functions here, so both take the same
defaults and refuse the same slips.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ddrl import algorithms
from ddrl.environments.base import registry
from ddrl.errors import Command, UserError, about, unknown_name
from ddrl.system.locks import locked
from ddrl.system.plugins import ALGORITHMS
from ddrl.training.config.defaults import completed
from ddrl.training.config.overrides import merged
from ddrl.training.config.run_config import RunConfig, load_run_config, nearest, parse_run_config, read_mapping_of

RUNS = Path("runs")
"""Runs without a directory of their own go below this folder."""
FIRST = {"seed": 1, "env_frames": 1_000_000}
"""Where they are left out, in a configuration too."""


def run_config(
    caller: str | Command,
    settings: Mapping[str, Any],
    *,
    algorithm: str | None = None,
    environment: str | Mapping[str, Any] | None = None,
    config: Path | Mapping[str, Any] | None = None,
) -> RunConfig:
    """Return the configuration that `config` (a file or its keys), or an algorithm and a task, and settings describe.

    An algorithm or a task beside `config` replaces that of `config`. Raise UserError for what is not allowed; it begins
    with the file's name, or with `caller`.
    """
    where = str(config) if isinstance(config, Path) else caller
    stated = read_mapping_of(config) if isinstance(config, Path) else config or {}
    values = {**FIRST, **stated}
    with about(caller):
        if algorithm is not None:
            algorithms.load(algorithm)
            values["algorithm"] = algorithm
        if isinstance(environment, str):
            _check_prefix(environment)
        if environment is not None:
            values["environment"] = {"name": environment} if isinstance(environment, str) else dict(environment)
        _check_names(settings, values)
    with about(where):
        values = completed(merged(values, settings))
    return parse_run_config(values, where=where)


def _check_prefix(name: str) -> None:
    """Raise UserError for a task without a prefix that exists, such as `pong` or `atrai/pong`, with what is meant."""
    given, slash, _ = name.partition("/")
    if given in registry.prefixes():
        return
    tasks: dict[str, str] = {}
    for prefix in registry.prefixes():
        with suppress(UserError):
            for task in registry.tasks(prefix):
                tasks |= {task.lower(): task, task.partition("/")[2].lower(): task}
    close = difflib.get_close_matches(name.lower(), tasks, 1, 0.75)
    hint = f" (did you mean '{tasks[close[0]]}'?)" if close else ""
    wrong = f"unknown prefix '{given}'" if slash else f"'{name}' is not of the form prefix/task"
    raise UserError(
        f"environment.name: {wrong}{hint}; allowed prefixes: "
        f"{', '.join(registry.prefixes())}; their tasks: ddrl list environments PREFIX"
    )


def _check_names(settings: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Raise UserError for a setting of an unknown key, with the full key that was most likely meant."""
    allowed = set(RunConfig.__dataclass_fields__)
    name = settings.get("algorithm", values.get("algorithm"))
    module = algorithms.load(str(name)) if name in ALGORITHMS else None
    for key in settings:
        if key not in allowed:
            raise unknown_name("key", key, allowed, hint=nearest(key, module))


def check_task(config: RunConfig, where: Path | str | Command) -> None:
    """Raise `UserError` that names `where` if the task does not exist here or the algorithm cannot learn it."""
    import torch

    from ddrl.training.builder import Builder

    with about(where):
        Builder(config, torch.device("cpu")).network()


def run_directory(config: RunConfig, source: Path | None = None) -> Path:
    """Return `runs/<algorithm>/<task>/<seed>-<n>`: of an unfinished run of this configuration, or a new one.

    So the same command continues a run that was interrupted, and begins another one after a run that has finished or
    while one is going on. A `config.json` as `source`, which a run keeps in its directory, stands for that directory.
    """
    if source is not None and source.name == "config.json":
        return source.parent
    task = re.sub(r"[^\w.+/-]", "_", str(config.environment["name"]))
    folder = RUNS / config.algorithm / task
    taken = {}
    for path in folder.glob(f"{config.seed}-*"):
        number = path.name.rpartition("-")[2]
        if number.isdecimal():
            taken[int(number)] = path
    for _, path in sorted(taken.items(), reverse=True):
        if _can_continue(path, config):
            return path
    return folder / f"{config.seed}-{max(taken, default=0) + 1}"


def _can_continue(path: Path, config: RunConfig) -> bool:
    """Return whether an unfinished run of this configuration is there which nobody trains at present."""
    if (path / "run.json").exists():
        return False
    with suppress(UserError, OSError):
        if load_run_config(path / "config.json") == config:
            with locked(path):
                return True
    return False
