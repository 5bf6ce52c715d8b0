"""What the words behind `ddrl train` say: a configuration, or an algorithm and a task, and settings."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ddrl.api import settings
from ddrl.environments.base import registry
from ddrl.errors import Command, UserError, about
from ddrl.system.plugins import ALGORITHMS
from ddrl.training.config.overrides import parse_settings
from ddrl.training.config.run_config import RunConfig

CALLER = Command("ddrl train")
_USAGE = (
    "allowed: a configuration file, or an algorithm and a task, then key=value settings, such as: "
    "ddrl train impala atari/pong env_frames=2e6"
)


def run_config(words: Sequence[str]) -> RunConfig:
    """Return the configuration that the words on the command line describe. Raise UserError for what is not allowed."""
    names = names_of(words)
    with about(CALLER):
        if len(names) not in (1, 2):
            raise UserError(f"got {len(names)} names ({', '.join(names) or 'none'}); {_USAGE}")
        given = parse_settings([word for word in words if word not in names])
        if len(names) == 2 and names[1] in ALGORITHMS and names[0] not in ALGORITHMS:
            raise UserError(f"the algorithm comes first: {CALLER} {names[1]} {names[0]}")
        if len(names) == 1 and names[0] in ALGORITHMS and not Path(names[0]).exists():
            raise UserError(f"on which task? Such as: {CALLER} {names[0]} atari/pong")
        if len(names) == 1 and names[0].partition("/")[0] in registry.prefixes() and not Path(names[0]).exists():
            raise UserError(f"with which algorithm? Such as: {CALLER} {next(iter(ALGORITHMS))} {names[0]}")
    if len(names) == 2:
        return settings.run_config(CALLER, given, algorithm=names[0], environment=names[1])
    if Path(names[0]).is_dir():
        raise UserError(f"{names[0]}: is a folder, not a file; to continue a run: ddrl resume {names[0]}")
    return settings.run_config(CALLER, given, config=Path(names[0]))


def names_of(words: Sequence[str]) -> list[str]:
    """Return the words that are no settings: those without '=', and files."""
    return [word for word in words if "=" not in word or os.path.isfile(word)]  # False for a long word, too


def file_of(words: Sequence[str]) -> Path | None:
    """Return the configuration file among the words; None where an algorithm and a task are named."""
    names = names_of(words)
    return Path(names[0]) if len(names) == 1 else None
