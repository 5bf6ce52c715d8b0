"""What `ddrl train` is told (a configuration, or an algorithm and a task, and settings), and where the run goes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ddrl import algorithms
from ddrl.errors import UserError, about, unknown_name
from ddrl.system.locks import locked
from ddrl.training.config.defaults import completed
from ddrl.training.config.overrides import merged, parse_settings
from ddrl.training.config.run_config import RunConfig, load_run_config, nearest, parse_run_config, read_mapping_of

RUNS = Path("runs")
"""Runs without a directory of their own go below this folder."""
FIRST = {"seed": 1, "env_frames": 1_000_000}
"""Where an algorithm and a task are named and nothing else."""
_USAGE = (
    "allowed: a configuration file, or an algorithm and a task, then key=value settings, such as: "
    "ddrl train impala atari/pong env_frames=2e6"
)


def run_config(words: Sequence[str]) -> RunConfig:
    """Return the configuration that the words on the command line describe. Raise UserError for what is not allowed."""
    names = names_of(words)
    settings = [word for word in words if word not in names]
    if len(names) not in (1, 2):
        raise UserError(f"ddrl train: got {len(names)} names ({', '.join(names) or 'none'}); {_USAGE}")
    if len(names) == 2:
        if names[0] not in algorithms.NAMES:
            raise unknown_name("algorithm", names[0], algorithms.NAMES, where="ddrl train")
        where, values = "ddrl train", dict(FIRST, algorithm=names[0], environment={"name": names[1]})
    elif names[0] in algorithms.NAMES and not Path(names[0]).exists():
        raise UserError(f"ddrl train: on which task? Such as: ddrl train {names[0]} atari/pong")
    else:
        where, values = names[0], read_mapping_of(Path(names[0]))
    given = parse_settings(settings, "ddrl train: ")
    _check_names(given, values)
    with about(where):
        values = completed(merged(values, given))
    return parse_run_config(values, where=where)


def names_of(words: Sequence[str]) -> list[str]:
    """Return the words that are no settings: those without '=', and files."""
    return [word for word in words if "=" not in word or Path(word).is_file()]


def _check_names(given: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Raise UserError for a setting of an unknown key, with the full key that was most likely meant."""
    allowed = set(RunConfig.__dataclass_fields__)
    name = given.get("algorithm", values.get("algorithm"))
    module = algorithms.load(str(name)) if name in algorithms.NAMES else None
    for key in given:
        if key not in allowed:
            raise unknown_name("key", key, allowed, where="ddrl train", hint=nearest(key, module))


def run_directory(config: RunConfig, words: Sequence[str]) -> Path:
    """Return `runs/<algorithm>/<task>/<seed>-<n>`: of an unfinished run of this configuration, or a new one.

    So the same command continues a run that was interrupted, and begins another one after a run that has finished or
    while one is going on. The `config.json` that a run keeps in its directory stands for that directory.
    """
    own = [Path(word) for word in words if Path(word).name == "config.json"]
    if own:
        return own[0].parent
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
