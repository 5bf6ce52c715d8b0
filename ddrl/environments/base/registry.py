"""Environments by name: `prefix/task`, where `prefix` is a module of this package.

A name may also be that of a suite, `prefix/suite`, or of several tasks, `prefix/task+task`: then each environment
plays one of the tasks, in turn (`suites`). Random streams and records of a run are named by the task.

A module offers its tasks as `ADAPTER` (`ddrl.environments.base.adapter`). It stands beside this package's own, or in
another package that names it as an entry point of the group `ddrl.environments` (`ddrl.system.plugins`).
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ddrl.environments.base.adapter import Adapter, Option, OwnTerms
from ddrl.environments.base.task_suites import SuiteEnvs, common_spec
from ddrl.errors import UserError, unknown_name
from ddrl.system.plugins import ENVIRONMENTS
from ddrl.system.seeding import seed_for
from ddrl.types import DeviceVectorEnv, EnvSpec, VectorEnv


def prefixes() -> tuple[str, ...]:
    """Return all prefixes, sorted, also those of other installed packages."""
    return tuple(ENVIRONMENTS)


def adapter(prefix: str, *, where: str = "") -> Adapter:
    """Return the adapter of `prefix`.

    Raise UserError for a prefix that is unknown or in two packages, and for a simulator that is not installed.
    """
    try:
        found = ENVIRONMENTS.load(prefix, where=where).ADAPTER
    except ModuleNotFoundError as error:
        raise UserError(f"environment '{prefix}': the package '{error.name}' is not installed") from error
    if not isinstance(found, Adapter):
        raise UserError(f"environment '{prefix}': ADAPTER of {ENVIRONMENTS.module(prefix)} is no {Adapter.__name__}")
    return found


def about(prefix: str) -> str:
    """Return the first line of the docstring of a prefix's module. Raise UserError as `adapter`."""
    adapter(prefix)
    return (ENVIRONMENTS.load(prefix).__doc__ or "").strip().partition("\n")[0]


def tasks(prefix: str) -> tuple[str, ...]:
    """Return the full names `prefix/task` of one adapter's tasks."""
    return tuple(f"{prefix}/{task}" for task in adapter(prefix).tasks)


def examples() -> dict[str, dict[str, Any]]:
    """Return name -> options of the environments that the conformance check runs on, of every installed adapter."""
    found: dict[str, dict[str, Any]] = {}
    for prefix in prefixes():
        try:
            examples = adapter(prefix).examples
        except UserError:
            continue
        found |= {f"{prefix}/{task}": dict(options) for task, options in examples.items()}
    return found


def suites(prefix: str) -> dict[str, tuple[str, ...]]:
    """Return name -> full names of the tasks, of every suite of one adapter."""
    found = adapter(prefix).suites.items()
    return {f"{prefix}/{suite}": tuple(f"{prefix}/{task}" for task in members) for suite, members in found}


def reference_file(prefix: str) -> str | None:
    """Return the file with random and human scores (`Adapter.reference_scores`), None where there is none."""
    return adapter(prefix).reference_scores if prefix in ENVIRONMENTS else None


def tasks_of(name: str, *, where: str = "environment.name") -> tuple[str, ...]:
    """Return the full names of a suite's tasks, in its order; for a task its own name alone.

    Raise UserError for an unknown prefix, task or suite, and for a task that is named twice.
    """
    _, tasks = _adapter_and_tasks(name, where)
    prefix = name.partition("/")[0]
    return tuple(f"{prefix}/{task}" for task in tasks)


def _adapter_and_tasks(name: str, where: str) -> tuple[Adapter, tuple[str, ...]]:
    """Return the adapter of `name` and its tasks, without their prefix. Raise UserError as `tasks_of`."""
    prefix, slash, named = str(name).partition("/")
    if not slash:
        raise UserError(f"{where}: '{name}' is not of the form prefix/task; allowed prefixes: {', '.join(prefixes())}")
    found = adapter(prefix, where=where)
    chosen = tuple(found.suites.get(named, named.split("+")))
    for task in chosen:
        if task not in found.options:
            names = [*found.suites, *found.tasks]
            raise unknown_name(f"task of {prefix}", task, names, where=where, hint=_elsewhere(task))
    if len(set(chosen)) < len(chosen):
        raise UserError(f"{where}: '{name}' names a task twice")
    return found, chosen


def _elsewhere(task: str) -> str:
    """Return the name of a task whose prefix begins the unknown `task`, as in MiniGrid-Empty-5x5-v0, or ""."""
    for prefix in prefixes():
        if task.lower().startswith(prefix):
            with suppress(UserError):
                by_letters = {name.partition("/")[2].lower(): name for name in tasks(prefix)}
                rest = task[len(prefix) :].lstrip("-_/").lower()
                return by_letters.get(next(iter(difflib.get_close_matches(rest, by_letters, 1)), ""), "")
    return ""


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


def check_read(name: str, options: Mapping[str, Any], *, given: Mapping[str, Any], where: str = "environment") -> None:
    """Raise UserError for an option of `given`, a part of `options`, that differs from its default and is not read.

    The error names `where`. Raise it as `resolve_options`, too.
    """
    allowed, resolved = _options(name, f"{where}.name"), resolve_options(name, options, where=where)
    for key in given:
        option = allowed.get(key)
        if option is None or option.unread_with is None or resolved[key] == option.default:
            continue
        other, value = option.unread_with
        if resolved[other] == value:
            shown, default, beside = (json.dumps(one) for one in (resolved[key], option.default, value))
            raise UserError(
                f"{where}.{key}: {shown} would not be read with {other}: {beside}; allowed otherwise: {default}"
            )


def spec_for(name: str, **options: Any) -> EnvSpec:
    """Return the spec of what `make` would build, without building it.

    Raise UserError as `resolve_options`, and for tasks that no single agent can play.
    """
    given = resolve_options(name, options)
    found, tasks = _adapter_and_tasks(name, "environment.name")
    specs = [found.spec(task, **given) for task in tasks]
    return specs[0] if len(specs) == 1 else common_spec(name, specs)


def own_terms(name: str, **options: Any) -> OwnTerms | None:
    """Return how the simulator's own environment is spoken with; None for suites, and where the adapter has no word.

    Raise UserError as `spec_for`.
    """
    given = resolve_options(name, options)
    found, tasks = _adapter_and_tasks(name, "environment.name")
    return found.own_terms(tasks[0], **given) if found.own_terms and len(tasks) == 1 else None


def recipe(name: str, **options: Any) -> dict[str, Any]:
    """Return how another library's driver makes a task (`Adapter.recipe`).

    Raise UserError as `spec_for`, for a suite, and for a task that drivers cannot make.
    """
    given = resolve_options(name, options)
    found, tasks = _adapter_and_tasks(name, "environment.name")
    if found.recipe is None or len(tasks) > 1:
        raise UserError(f"environment '{name}': drivers of other libraries (workflows/peers/drivers) do not make it")
    return dict(found.recipe(tasks[0], **given))


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
        return adapter(prefix).make(bare, count, own, num_threads=num_threads, **given)

    if len(tasks_of(name)) == 1:
        return part(tasks_of(name)[0], num_envs)
    return SuiteEnvs(spec_for(name, **options), part, column_tasks(name, first_env, num_envs))


def make_on_device(name: str, num_envs: int, seed: int, device: str, **options: Any) -> DeviceVectorEnv | None:
    """Make environments that step on a device of torch (`Adapter.make_on_device`); None where there are none.

    A suite has none. Raise UserError as `spec_for`.
    """
    given = resolve_options(name, options)
    found, tasks = _adapter_and_tasks(name, "environment.name")
    if found.make_on_device is None or len(tasks) > 1:
        return None
    return found.make_on_device(tasks[0], num_envs, seed, device, **given)


def _options(name: str, where: str) -> dict[str, Option]:
    """Return the options that every task of `name` has."""
    found, tasks = _adapter_and_tasks(name, where)
    each = [found.options[task] for task in tasks]
    return {key: option for key, option in each[0].items() if all(own.get(key) == option for own in each)}
