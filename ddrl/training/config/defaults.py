"""Values that follow from the algorithm and the task where a configuration leaves them out.

`parse_run_config` knows one default for each key. A person who names an algorithm and a task wants a run that can
learn: a network that takes the task's observations, a schedule that the algorithm allows, and as many environments as
fill a batch. `completed` adds these, and the completed configuration is what a run directory keeps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ddrl import algorithms
from ddrl.environments.base import registry
from ddrl.interfaces import Hyperparameters, System, TaskKind
from ddrl.networks.actor_critic import EXCLUDED_BY, MEMORY_KEYS
from ddrl.system.plugins import ALGORITHMS
from ddrl.training.config.overrides import merged
from ddrl.training.config.run_config import hyperparameters_of
from ddrl.training.config.topology import Topology
from ddrl.types import EnvSpec

POINTS = 100
"""Points of the curves over the budget."""
MOST_ENVS = 32
"""Environments of one actor."""
LEARNING_ENVS = 4
"""Environments of an actor that learns from its own replay: one batch at each unroll, so more mean fewer updates."""


def kind_of(spec: EnvSpec) -> TaskKind:
    """Return the kind of a task: images first, since what they need does not depend on the actions."""
    if len(spec.observation_shape) == 3 or spec.image_shape:  # an image may be packed with an instruction
        return "images"
    return "continuous actions" if spec.action_size else "vectors"


def completed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return `values`, a run's configuration, with what follows from its algorithm and its task.

    Hyperparameters of the algorithm for this kind of task are added, unless `hyperparameters.network` is another one
    than theirs, and those for a network with a memory, where it has one; schedule, actors and queue where `topology`
    leaves them out. Nothing that was given changes. What is wrong stays as it is, for `parse_run_config` to refuse.
    Raise UserError where the environment cannot be made here.
    """
    found, environment = dict(values), values.get("environment")
    named = isinstance(environment, Mapping) and isinstance(environment.get("name"), str)
    if found.get("algorithm") not in ALGORITHMS or not named:
        return found
    module = algorithms.load(str(found["algorithm"]))
    given, topology = found.get("hyperparameters") or {}, found.get("topology") or {}
    if not isinstance(given, Mapping) or not isinstance(topology, Mapping):
        return found
    defaults = module.TASK_DEFAULTS.get("memory", {}) if any(given.get(key) for key in MEMORY_KEYS) else {}
    if "network" not in given or any(given["network"] == one.get("network") for one in module.TASK_DEFAULTS.values()):
        kind = kind_of(registry.spec_for(**dict(environment)))  # type: ignore[arg-type]
        of_task = module.TASK_DEFAULTS.get(kind, {})
        if given.get("network") in (None, of_task.get("network")):
            defaults = {**defaults, **of_task}
    if defaults:
        found["hyperparameters"] = _over(defaults, given)
    hyperparameters = hyperparameters_of(module, found.get("hyperparameters"))
    found["topology"] = _topology(topology, module.SYSTEM, hyperparameters)
    found["recording"] = _recording(found.get("recording"), found.get("env_frames"))
    return found


def _over(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return `defaults` with what is given, also within groups of keys, unless another `name` is given there.

    A default that what is given excludes is left out.
    """
    excluded = {key for key, others in EXCLUDED_BY.items() if any(given.get(other) for other in others)}
    defaults = {key: value for key, value in defaults.items() if not (value and key in excluded)}
    other = {
        key: value
        for key, value in given.items()
        if isinstance(value, Mapping) and value.get("name") not in (None, (defaults.get(key) or {}).get("name"))
    }
    return merged(defaults, given) | other


def _recording(given: Any, env_frames: Any) -> Any:
    """Return how the curves are recorded: some `POINTS` points, unless the period is given."""
    if not isinstance(given or {}, Mapping) or not isinstance(env_frames, int | float) or not 0 < env_frames < math.inf:
        return given or {}
    return {"period_frames": max(1, int(env_frames) // POINTS), **(given or {})}


def _topology(given: Mapping[str, Any], system: System, hyperparameters: Hyperparameters) -> dict[str, Any]:
    """Return the given topology with a schedule, actors and a queue with which the algorithm can learn."""
    found = dict(given)
    if Topology.schedule not in system.schedules:
        found.setdefault("schedule", system.schedules[0])
    if system.store == "local replay":
        found.setdefault("envs_per_actor", LEARNING_ENVS)
    fresh = hyperparameters.fresh_columns
    if not fresh or system.moves == "gradients":
        return found
    if found.get("schedule") == "synchronous":
        _divide(found, fresh)
    envs = found.get("envs_per_actor", Topology.envs_per_actor)
    if isinstance(envs, int) and envs > 0:
        found.setdefault("queue_capacity", max(Topology.queue_capacity, math.ceil(fresh / envs)))
    return found


def _divide(topology: dict[str, Any], fresh: int) -> None:
    """Set actors and environments, where they are not given, so that one round of all divides the batch."""
    actors, envs = topology.get("num_actors"), topology.get("envs_per_actor")
    if any(number is not None and not (isinstance(number, int) and number > 0) for number in (actors, envs)):
        return
    if actors is None and envs is None:
        actors = 2 if fresh % 2 == 0 else 1
    if envs is None and actors is not None:
        envs = _divisor(fresh // math.gcd(fresh, actors), MOST_ENVS)
    elif actors is None and envs is not None:
        actors = _divisor(fresh // math.gcd(fresh, envs), Topology.num_actors)
    topology.setdefault("num_actors", actors)
    topology.setdefault("envs_per_actor", envs)


def _divisor(number: int, most: int) -> int:
    """Return the largest divisor of `number` that is at most `most`."""
    return max(divisor for divisor in range(1, min(number, most) + 1) if number % divisor == 0)
