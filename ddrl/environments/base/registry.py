"""Environments by name: `prefix/task`, where `prefix` is a module of this package.

A name may also be that of a suite, `prefix/suite`, or of several tasks, `prefix/task+task`: then each environment
plays one of the tasks, in turn (`suites`). Random streams and records of a run are named by the task.

An adapter module exports

    TASKS     names of all its tasks
    EXAMPLES  task -> options: what the conformance check runs on (episodes must end within some hundred steps)
    OPTIONS   task -> {option name: Option}
    spec(task, **options) -> EnvSpec                                       cheap: builds no vector environment
    make(task, num_envs, seed, *, num_threads=1, **options) -> VectorEnv   with every option given

and, where it applies,

    SUITES    name -> names of tasks that one agent can play (the same observations, actions and frame skip)
    REFERENCE_SCORES   file of `replications/references/` with random and human scores of its tasks
    camera    (task, seed, **options) -> Camera, which shows more than what an agent sees (see `camera`)
    EXTRAS    tasks, as `doctor` names them -> (Python packages, shared libraries) that only these need
    missing   () -> why nothing can be made, if it can be imported without its simulator; EXAMPLES is then empty
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
        """Return what is allowed, in words."""
        if isinstance(self.default, bool):
            return "true, false"
        if isinstance(self.default, str):
            return ", ".join(self.choices)
        kind = "integers" if isinstance(self.default, int) else "numbers"
        return f"{kind} from {self.low} to {self.high}"

    def accepts(self, value: object) -> bool:
        """Return whether `value` has the right type and lies in the range."""
        if isinstance(self.default, bool) or isinstance(value, bool):
            return isinstance(self.default, bool) and isinstance(value, bool)
        if isinstance(self.default, str):
            return value in self.choices
        if not isinstance(value, int | float) or (isinstance(self.default, int) and not isinstance(value, int)):
            return False
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)


@cache
def prefixes() -> tuple[str, ...]:
    """Return all prefixes, sorted."""
    package = importlib.import_module("ddrl.environments")
    return tuple(sorted(module.name for module in pkgutil.iter_modules(package.__path__) if not module.ispkg))


def adapter(prefix: str, *, where: str = "") -> ModuleType:
    """Return the module of `prefix`. Raise UserError for an unknown one or a simulator that is not installed."""
    if prefix not in prefixes():
        raise unknown_name("environment prefix", prefix, prefixes(), where=where)
    try:
        return importlib.import_module(f"ddrl.environments.{prefix}")
    except ModuleNotFoundError as error:
        raise UserError(f"environment '{prefix}': the package '{error.name}' is not installed") from error


def tasks(prefix: str) -> tuple[str, ...]:
    """Return the full names `prefix/task` of one adapter's tasks."""
    return tuple(f"{prefix}/{task}" for task in adapter(prefix).TASKS)


def examples() -> dict[str, dict[str, Any]]:
    """Return name -> options of the environments that the conformance check runs on, of every installed adapter."""
    found: dict[str, dict[str, Any]] = {}
    for prefix in prefixes():
        try:
            module = adapter(prefix)
        except UserError:
            continue
        found |= {f"{prefix}/{task}": dict(options) for task, options in module.EXAMPLES.items()}
    return found


def suites(prefix: str) -> dict[str, tuple[str, ...]]:
    """Return name -> full names of the tasks, of every suite of one adapter."""
    found: Mapping[str, Sequence[str]] = getattr(adapter(prefix), "SUITES", {})
    return {f"{prefix}/{suite}": tuple(f"{prefix}/{task}" for task in members) for suite, members in found.items()}


def reference_file(prefix: str) -> str | None:
    """Return the file of `replications/references/` with random and human scores, None where there is none."""
    return getattr(adapter(prefix), "REFERENCE_SCORES", None) if prefix in prefixes() else None


def tasks_of(name: str, *, where: str = "environment.name") -> tuple[str, ...]:
    """Return the full names of a suite's tasks, in its order; for a task its own name alone.

    Raise UserError for an unknown prefix, task or suite, and for a task that is named twice.
    """
    _, tasks = _module_and_tasks(name, where)
    prefix = name.partition("/")[0]
    return tuple(f"{prefix}/{task}" for task in tasks)


def _module_and_tasks(name: str, where: str) -> tuple[ModuleType, tuple[str, ...]]:
    """Return the adapter of `name` and its tasks, without their prefix. Raise UserError as `tasks_of`."""
    prefix, slash, named = str(name).partition("/")
    if not slash:
        raise UserError(f"{where}: '{name}' is not of the form prefix/task; allowed prefixes: {', '.join(prefixes())}")
    module = adapter(prefix, where=where)
    suites = getattr(module, "SUITES", {})
    chosen = tuple(suites.get(named, named.split("+")))
    for task in chosen:
        if task not in module.OPTIONS:
            raise unknown_name(f"task of {prefix}", task, [*suites, *module.TASKS], where=where)
    if len(set(chosen)) < len(chosen):
        raise UserError(f"{where}: '{name}' names a task twice")
    return module, chosen


def column_tasks(name: str, first: int, num_envs: int) -> list[str]:
    """Return the task of each of `num_envs` environments; the first has number `first` among all of a run's."""
    tasks = tasks_of(name)
    return [tasks[(first + column) % len(tasks)] for column in range(num_envs)]


def resolve_options(name: str, options: Mapping[str, Any], *, where: str = "environment") -> dict[str, Any]:
    """Return the defaults, overridden by `options`.

    Raise UserError for an unknown environment or option, or a value that is not allowed.
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
    """Return the spec of what `make` would build, without building it.

    Raise UserError as `resolve_options`, and for tasks that no single agent can play.
    """
    given = resolve_options(name, options)
    module, tasks = _module_and_tasks(name, "environment.name")
    specs = [module.spec(task, **given) for task in tasks]
    return specs[0] if len(specs) == 1 else common_spec(name, specs)


def make(name: str, num_envs: int, seed: int, *, num_threads: int = 1, first_env: int = 0, **options: Any) -> VectorEnv:
    """Make `num_envs` environments `name`, whose episodes are fully determined by `seed` and the actions.

    `num_threads` is how many native threads step them, where the adapter has any; it changes no result. `first_env` is
    the number of the first of them among all of a run's, which decides which tasks of a suite they play.
    Raise UserError as `spec_for`.
    """
    given = resolve_options(name, options)

    def part(task: str, count: int, failures: int = 0) -> VectorEnv:
        own = seed_for(seed, f"{task}/failed", failures) if failures else seed  # no episode is played twice
        prefix, _, bare = task.partition("/")
        env: VectorEnv = adapter(prefix).make(bare, count, own, num_threads=num_threads, **given)
        return env

    if len(tasks_of(name)) == 1:
        return part(tasks_of(name)[0], num_envs)
    return SuiteEnvs(spec_for(name, **options), part, column_tasks(name, first_env, num_envs))


def _options(name: str, where: str) -> dict[str, Option]:
    """Return the options that every task of `name` has."""
    module, tasks = _module_and_tasks(name, where)
    each: list[Mapping[str, Option]] = [module.OPTIONS[task] for task in tasks]
    return {key: option for key, option in each[0].items() if all(own.get(key) == option for own in each)}
