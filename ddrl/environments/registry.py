"""Environments by name: `prefix/task`, where `prefix` is a module of this package.

An adapter module exports

    TASKS     names of all its tasks
    EXAMPLES  task -> options: what the conformance check runs on (episodes must end within some hundred steps)
    OPTIONS   task -> {option name: Option}
    spec(task, **options) -> EnvSpec                                       cheap: builds no vector environment
    make(task, num_envs, seed, *, num_threads=1, **options) -> VectorEnv   with every option given

and, if it can show more than what an agent sees, `camera(task, seed, **options) -> Camera` (see `camera`).
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

from ddrl.errors import UserError, unknown_name
from ddrl.types import EnvSpec, VectorEnv

_NOT_ADAPTERS = frozenset(
    {
        "registry",
        "check",
        "camera",
        "contract",
        "firstperson_tasks",
        "miniworld_drawing",
        "miniworld_world",
        "physics",
        "random_play",
        "replayed",
        "simulator_camera",
        "toy_games",
        "vizdoom_world",
    }
)


@dataclass(frozen=True)
class Option:
    """An option's default, which also fixes its type, and its inclusive range (numbers), or its values (texts)."""

    default: bool | int | float | str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()

    def describe(self) -> str:
        """What is allowed, in words."""
        if isinstance(self.default, bool):
            return "true, false"
        if isinstance(self.default, str):
            return ", ".join(self.choices)
        kind = "integers" if isinstance(self.default, int) else "numbers"
        return f"{kind} from {self.low} to {self.high}"

    def accepts(self, value: object) -> bool:
        """Whether `value` has the right type and lies in the range."""
        if isinstance(self.default, bool) or isinstance(value, bool):
            return isinstance(self.default, bool) and isinstance(value, bool)
        if isinstance(self.default, str):
            return value in self.choices
        if not isinstance(value, int | float) or (isinstance(self.default, int) and not isinstance(value, int)):
            return False
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)


@cache
def prefixes() -> tuple[str, ...]:
    """Every prefix there is, sorted."""
    package = importlib.import_module("ddrl.environments")
    return tuple(sorted({module.name for module in pkgutil.iter_modules(package.__path__)} - _NOT_ADAPTERS))


def adapter(prefix: str, *, where: str = "") -> ModuleType:
    """The module of `prefix`.

    Raises: UserError for an unknown prefix or a simulator that is not installed.
    """
    if prefix not in prefixes():
        raise unknown_name("environment prefix", prefix, prefixes(), where=where)
    try:
        return importlib.import_module(f"ddrl.environments.{prefix}")
    except ModuleNotFoundError as error:
        raise UserError(f"environment '{prefix}': the package '{error.name}' is not installed") from error


def tasks(prefix: str) -> tuple[str, ...]:
    """Every full name `prefix/task` of one adapter."""
    return tuple(f"{prefix}/{task}" for task in adapter(prefix).TASKS)


def examples() -> dict[str, dict[str, Any]]:
    """Name -> options of every adapter's environments that the conformance check runs on.

    An adapter whose simulator is not installed has none.
    """
    found: dict[str, dict[str, Any]] = {}
    for prefix in prefixes():
        try:
            module = adapter(prefix)
        except UserError:
            continue
        found |= {f"{prefix}/{task}": dict(options) for task, options in module.EXAMPLES.items()}
    return found


def options_for(name: str, *, where: str = "environment.name") -> dict[str, bool | int | float | str]:
    """Option -> default of one environment.

    Raises: UserError for an unknown prefix or task.
    """
    module, task = _split(name, where)
    return {key: option.default for key, option in module.OPTIONS[task].items()}


def resolve_options(name: str, options: Mapping[str, Any], *, where: str = "environment") -> dict[str, Any]:
    """`options` over the defaults.

    Raises: UserError for an unknown environment or option, or a value that is not allowed.
    """
    module, task = _split(name, f"{where}.name")
    allowed: Mapping[str, Option] = module.OPTIONS[task]
    for key, value in options.items():
        if key not in allowed:
            raise unknown_name(f"option of {name}", key, allowed, where=where)
        if not allowed[key].accepts(value):
            raise UserError(f"{where}.{key}: {value!r} is not allowed for {name}; allowed: {allowed[key].describe()}")
    given = {key: option.default for key, option in allowed.items()} | dict(options)
    return {key: float(value) if isinstance(allowed[key].default, float) else value for key, value in given.items()}


def spec_for(name: str, **options: Any) -> EnvSpec:
    """What `make` would build, without building it.

    Raises: UserError as `resolve_options`.
    """
    module, task = _split(name, "environment.name")
    spec: EnvSpec = module.spec(task, **resolve_options(name, options))
    return spec


def make(name: str, num_envs: int, seed: int, *, num_threads: int = 1, **options: Any) -> VectorEnv:
    """`num_envs` environments `name`, whose episodes are fully determined by `seed` and the actions.

    `num_threads` is how many native threads step them, where the adapter has any; it changes no result.
    Raises: UserError as `resolve_options`.
    """
    module, task = _split(name, "environment.name")
    resolved = resolve_options(name, options)
    env: VectorEnv = module.make(task, num_envs, seed, num_threads=num_threads, **resolved)
    return env


def _split(name: str, where: str) -> tuple[ModuleType, str]:
    prefix, slash, task = str(name).partition("/")
    if not slash:
        raise UserError(f"{where}: '{name}' is not of the form prefix/task; allowed prefixes: {', '.join(prefixes())}")
    module = adapter(prefix, where=where)
    if task not in module.OPTIONS:
        raise unknown_name(f"task of {prefix}", task, module.TASKS, where=where)
    return module, task
