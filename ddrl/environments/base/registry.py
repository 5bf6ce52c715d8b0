"""Environments by name: `prefix/task`, where `prefix` is a module of this package.

A name may also be that of a suite, `prefix/suite`, or of several tasks, `prefix/task+task`: then each environment
plays one of the tasks, in turn (`suites`). What is random there, and what a run records, goes by the task.

An adapter module exports

    TASKS     names of all its tasks
    EXAMPLES  task -> options: what the conformance check runs on (episodes must end within some hundred steps)
    OPTIONS   task -> {option name: Option}
    spec(task, **options) -> EnvSpec                                       cheap: builds no vector environment
    make(task, num_envs, seed, *, num_threads=1, **options) -> VectorEnv   with every option given

and, if it has suites of tasks that one agent can play (the same observations, actions and frame skip),

    SUITES    name -> names of its tasks

and, if it can show more than what an agent sees, `camera(task, seed, **options) -> Camera` (see `camera`). One that can
be imported without its simulator also has `missing() -> str`: why nothing can be made, and then no examples.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

from ddrl.environments.base.task_suites import SuiteEnvs, common_spec
from ddrl.errors import UserError, unknown_name
from ddrl.system.seeding import seed_for
from ddrl.types import EnvSpec, VectorEnv


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
    return tuple(sorted(module.name for module in pkgutil.iter_modules(package.__path__) if not module.ispkg))


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


def suites(prefix: str) -> dict[str, tuple[str, ...]]:
    """Name -> full names of the tasks of every suite of one adapter."""
    found: Mapping[str, Sequence[str]] = getattr(adapter(prefix), "SUITES", {})
    return {f"{prefix}/{suite}": tuple(f"{prefix}/{task}" for task in members) for suite, members in found.items()}


def tasks_of(name: str, *, where: str = "environment.name") -> tuple[str, ...]:
    """Full names of the tasks of a suite, in its order; of a task its own name alone.

    Raises: UserError for an unknown prefix, task or suite, and for a task that is named twice.
    """
    prefix, slash, named = str(name).partition("/")
    if not slash:
        raise UserError(f"{where}: '{name}' is not of the form prefix/task; allowed prefixes: {', '.join(prefixes())}")
    module = adapter(prefix, where=where)
    chosen = tuple(getattr(module, "SUITES", {}).get(named, named.split("+")))
    for task in chosen:
        if task not in module.OPTIONS:
            raise unknown_name(f"task of {prefix}", task, [*getattr(module, "SUITES", ()), *module.TASKS], where=where)
    if len(set(chosen)) < len(chosen):
        raise UserError(f"{where}: '{name}' names a task twice")
    return tuple(f"{prefix}/{task}" for task in chosen)


def column_tasks(name: str, first: int, num_envs: int) -> list[str]:
    """The task of each of `num_envs` environments, of which the first has number `first` among all of a run's."""
    tasks = tasks_of(name)
    return [tasks[(first + column) % len(tasks)] for column in range(num_envs)]


def options_for(name: str, *, where: str = "environment.name") -> dict[str, bool | int | float | str]:
    """Option -> default of one environment, or of all those of a suite.

    Raises: UserError for an unknown prefix or task.
    """
    return {key: option.default for key, option in _options(name, where).items()}


def resolve_options(name: str, options: Mapping[str, Any], *, where: str = "environment") -> dict[str, Any]:
    """`options` over the defaults.

    Raises: UserError for an unknown environment or option, or a value that is not allowed.
    """
    allowed = _options(name, f"{where}.name")
    for key, value in options.items():
        if key not in allowed:
            raise unknown_name(f"option of {name}", key, allowed, where=where)
        if not allowed[key].accepts(value):
            raise UserError(f"{where}.{key}: {value!r} is not allowed for {name}; allowed: {allowed[key].describe()}")
    given = {key: option.default for key, option in allowed.items()} | dict(options)
    return {key: float(value) if isinstance(allowed[key].default, float) else value for key, value in given.items()}


def spec_for(name: str, **options: Any) -> EnvSpec:
    """What `make` would build, without building it.

    Raises: UserError as `resolve_options`, and for tasks that no one agent can play.
    """
    given = resolve_options(name, options)
    specs = [_module(task).spec(_bare(task), **given) for task in tasks_of(name)]
    return specs[0] if len(specs) == 1 else common_spec(name, specs)


def make(name: str, num_envs: int, seed: int, *, num_threads: int = 1, first_env: int = 0, **options: Any) -> VectorEnv:
    """`num_envs` environments `name`, whose episodes are fully determined by `seed` and the actions.

    `num_threads` is how many native threads step them, where the adapter has any; it changes no result. `first_env` is
    the number of the first of them among all of a run's, which decides who plays which task of a suite.
    Raises: UserError as `spec_for`.
    """
    given = resolve_options(name, options)

    def part(task: str, count: int, failures: int = 0) -> VectorEnv:
        own = seed_for(seed, f"{task}/failed", failures) if failures else seed  # no episode is played twice
        env: VectorEnv = _module(task).make(_bare(task), count, own, num_threads=num_threads, **given)
        return env

    if len(tasks_of(name)) == 1:
        return part(tasks_of(name)[0], num_envs)
    return SuiteEnvs(spec_for(name, **options), part, column_tasks(name, first_env, num_envs))


def _options(name: str, where: str) -> dict[str, Option]:
    """Those that every task of `name` has."""
    each: list[Mapping[str, Option]] = [_module(task).OPTIONS[_bare(task)] for task in tasks_of(name, where=where)]
    return {key: option for key, option in each[0].items() if all(own.get(key) == option for own in each)}


def _module(name: str) -> ModuleType:
    return adapter(name.partition("/")[0])


def _bare(name: str) -> str:
    return name.partition("/")[2]
