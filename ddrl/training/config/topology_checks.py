"""Checks that refuse topologies with which an algorithm cannot learn, that would block, or with keys without effect."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from ddrl import algorithms
from ddrl.errors import UserError
from ddrl.training.config.topology import DynamicBatching, Topology

if TYPE_CHECKING:
    from ddrl.training.config.run_config import RunConfig


def _check_lag(config: RunConfig) -> None:
    """Refuse a policy lag that the algorithm does not correct."""
    name, topology, schedules = config.algorithm, config.topology, config.system.schedules
    if topology.schedule not in schedules:
        raise _refused("schedule", f"must be {' or '.join(schedules)} with algorithm {name}", topology.schedule)
    if topology.parameter_delay and set(schedules) == {"synchronous"}:  # on policy
        rule = f"must be 0 with algorithm {name}, which corrects for no lag"
        raise _refused("parameter_delay", rule, topology.parameter_delay)


def check_topology(config: RunConfig) -> None:
    """Raise `UserError` for keys with which the algorithm cannot learn, that would block the run, or have no effect."""
    topology = config.topology
    _check_lag(config)
    if (topology.schedule == "bounded_lag") != (topology.max_policy_lag is not None):
        given = f"{topology.max_policy_lag} with {topology.schedule}"
        raise _refused("max_policy_lag", "goes with 'topology.schedule: bounded_lag' and only with it", given)
    _check_shared(config)
    _check_learners(config)
    _check_preemption(config)
    _check_inference(topology)
    _check_groups(topology)
    _check_acting(config)
    _check_replay(config)
    if config.system.store == "prioritized" or config.system.moves == "gradients":
        return
    columns, fresh = topology.num_actors * topology.envs_per_actor, config.hyperparameters.fresh_columns
    if topology.schedule == "synchronous" and fresh % columns:
        raise UserError(
            f"'topology.schedule: synchronous' needs num_actors x envs_per_actor to divide the {fresh} fresh unrolls "
            f"of a batch (got {topology.num_actors} x {topology.envs_per_actor})"
        )
    columns, fresh = columns // topology.num_learners, fresh // topology.num_learners
    if topology.schedule == "asynchronous" and topology.queue_capacity * topology.envs_per_actor < fresh:
        least = -(-fresh // topology.envs_per_actor)
        why = f"so that unrolls of {topology.envs_per_actor} columns can feed a batch of {fresh}"
        raise _refused("queue_capacity", f"must be at least {least}, {why}", topology.queue_capacity)
    if topology.max_policy_lag is None:
        return
    smallest = _smallest_lag(columns, fresh, config.hyperparameters.first_update)
    if topology.max_policy_lag < smallest:
        raise UserError(
            f"key 'topology.max_policy_lag' must be at least {smallest}, since one round of {columns} columns "
            f"must be under way before the batch of {fresh} that its last column belongs to is first learned from"
        )


def without_effect(config: RunConfig) -> str:
    """Return a line about a key that is accepted though it has no effect, or "".

    It is accepted since experiments change the number of learners alone, from run to run.
    """
    weighting = asdict(config.hyperparameters).get("weighting", "samples")  # type: ignore[call-overload]
    if weighting == "samples" or config.topology.num_learners > 1:
        return ""
    return f"key 'hyperparameters.weighting': {weighting} has no effect with one learner"


def _refused(key: str, rule: str, given: object) -> UserError:
    return UserError(f"key 'topology.{key}' {rule} (got {given})")


def _check_shared(config: RunConfig) -> None:
    """Refuse keys that do not fit the algorithm's way of sharing parameters."""
    only: dict[str, Any] = {"num_trainers": 1}
    why = "which has one trainer and no parameter server"
    if config.system.parameters != "versions":
        only = {"num_learners": 1, "learner_threads": 1, "parameter_delay": 0}
        why = "whose parameters are shared and have no versions"
    if config.system.moves == "gradients":
        only |= {"inference": "local", "prefetch": False, "num_trainers": 1}
        why = "whose actors compute the gradients"
    elif config.topology.runtime == "serial":
        only["num_trainers"] = 1
    if config.system.parameters != "sharded":
        only["parameter_shards"] = 1
    for key, value in only.items():
        if (given := getattr(config.topology, key)) != value:
            rule = f"must be {json.dumps(value)} with algorithm {config.algorithm}, {why}"
            raise _refused(key, rule, json.dumps(given))


def _check_replay(config: RunConfig) -> None:
    topology, replays = config.topology, config.system.store == "prioritized"
    if config.checkpoint.replay == "refilled" and (topology.runtime == "serial" or not replays):
        raise UserError(
            "key 'checkpoint.replay' may be refilled only with a prioritized replay, and not with "
            "'topology.runtime: serial', which continues bit for bit"
        )
    if topology.replay == "learner":
        return
    if not replays:
        rule = "may be own only with an algorithm that has a prioritized replay"
        raise _refused("replay", rule, config.algorithm)
    if (topology.runtime, topology.inference) != ("ray", "local"):
        rule = (
            "may be own only with 'topology.runtime: ray', which has processes, and 'topology.inference: local', since "
            "with central inference experience begins on the learner"
        )
        raise _refused("replay", rule, f"{topology.runtime} and {topology.inference}")


def _check_learners(config: RunConfig) -> None:
    learners, runtime = config.topology.num_learners, config.topology.runtime
    if learners == 1:
        if config.topology.required_gradients is not None:
            raise _refused("required_gradients", "needs several learners", config.topology.required_gradients)
        return
    if runtime != "ray":
        rule = "may exceed 1 only with 'topology.runtime: ray'"
        raise _refused("num_learners", rule, f"{learners} with {runtime}")
    shared = {
        "topology.num_actors": config.topology.num_actors,
        "hyperparameters.batch_size": config.hyperparameters.batch_size,
        "the fresh columns of a batch": config.hyperparameters.fresh_columns,
    }
    required = config.topology.required_gradients
    if required is not None and required >= learners:
        raise _refused(
            "required_gradients", f"must be null, or at least 1 and below num_learners: {learners}", required
        )
    for name, number in shared.items():
        if number % learners:
            default = ", which is its default" if number in _defaults(config).get(name, ()) else ""
            raise _refused("num_learners", f"must divide {name}", f"{learners} and {number}{default}")


def _defaults(config: RunConfig) -> dict[str, list[Any]]:
    """Return the keys that learners share -> the values that nobody may have typed."""
    module, key = algorithms.load(config.algorithm), "batch_size"
    of_tasks = [own[key] for own in module.TASK_DEFAULTS.values() if key in own]
    own = [one.default for one in fields(config.hyperparameters) if one.name == key]  # type: ignore[arg-type]
    return {"topology.num_actors": [Topology.num_actors], f"hyperparameters.{key}": [*own, *of_tasks]}


def _check_preemption(config: RunConfig) -> None:
    topology = config.topology
    if topology.preemption is None:
        return
    if config.system.moves != "unrolls" or config.system.store != "queue":
        raise _refused("preemption", "needs an algorithm whose actors send unrolls to a queue", config.algorithm)
    if topology.schedule != "synchronous":
        raise _refused("preemption", "needs 'topology.schedule: synchronous'", topology.schedule)
    if topology.num_learners == 1:
        raise _refused("preemption", "needs several learners ('topology.num_learners')", 1)
    threshold, actors = topology.preemption.threshold, topology.num_actors
    if threshold < 1.0 and threshold * actors > actors - 1:
        rule = f"would preempt nobody: {threshold:g} of {actors} actors are all of them; allowed: at most"
        raise _refused("preemption.threshold", f"{rule} {(actors - 1) / actors:.4g}, or 1.0", threshold)


def _check_inference(topology: Topology) -> None:
    if topology.prefetch and topology.runtime == "serial":
        raise UserError("key 'topology.prefetch' may be true only with 'topology.runtime: threads' or ray")
    central, columns = topology.central, topology.num_actors * topology.envs_per_actor // topology.num_learners
    if topology.inference == "local" and central != DynamicBatching():
        raise UserError("key 'topology.central' is read only with 'topology.inference: central'")
    if central.worker_processes and topology.runtime != "threads":
        given = f"{topology.runtime}{', whose workers are processes anyway' if topology.runtime == 'ray' else ''}"
        raise _refused("central.worker_processes", "may be true only with 'topology.runtime: threads'", given)
    _check_adjustment(topology)
    largest = columns if central.max_columns is None else central.max_columns
    if largest < topology.envs_per_actor:
        rule = f"must be at least the {topology.envs_per_actor} environments of an actor, whose calls are not split"
        raise _refused("central.max_columns", rule, largest)
    if central.min_columns > min(largest, columns):
        rule = f"must be at most {min(largest, columns)}: no more columns can be in a batch"
        raise _refused("central.min_columns", rule, central.min_columns)


def _check_groups(topology: Topology) -> None:
    if topology.env_groups == 1:
        return
    if topology.inference != "central":
        rule = "may exceed 1 only with 'topology.inference: central': an actor's own network makes no group wait"
        raise _refused("env_groups", rule, f"{topology.env_groups} with {topology.inference}")
    if topology.envs_per_actor % topology.env_groups:
        raise _refused("env_groups", f"must divide envs_per_actor {topology.envs_per_actor}", topology.env_groups)


def _check_acting(config: RunConfig) -> None:
    """Refuse unrolls on the run's device where what takes them is elsewhere, or keeps them."""
    topology, system = config.topology, config.system
    if topology.acting == "host":
        return
    kind = (system.moves, system.store, system.parameters)
    if kind != ("unrolls", "queue", "versions") or config.hyperparameters.stored_columns:
        rule = "may be device only with an algorithm that learns from each unroll once, from a queue without a replay"
        raise _refused("acting", rule, config.algorithm)
    place = (topology.runtime, topology.inference, topology.schedule, topology.prefetch)
    if place[0] == "ray" or place[1:] != ("local", "synchronous", False):
        rule = (
            "may be device only with 'topology.runtime: serial' or threads, inference: local, schedule: synchronous "
            "and prefetch: false, since actors and learner share the device and take turns"
        )
        raise _refused("acting", rule, f"{', '.join(place[:3])}, prefetch {json.dumps(topology.prefetch)}")


def _check_adjustment(topology: Topology) -> None:
    adjustment = topology.adjustment
    if adjustment is None:
        return
    place = (topology.inference, topology.schedule, topology.num_learners)
    if topology.runtime == "serial" or place != ("central", "asynchronous", 1):
        rule = (
            "goes with 'topology.runtime: threads' or ray, inference: central, schedule: asynchronous and one learner"
        )
        raise _refused("adjustment", rule, f"{topology.runtime}, {', '.join(map(str, place))}")
    most = {
        "actors": topology.num_actors,
        "predictors": topology.central.num_threads,
        "trainers": topology.num_trainers,
    }
    for kind, number in most.items():
        if (given := getattr(adjustment, kind)) > number:
            raise _refused(f"adjustment.{kind}", f"must be at most {number}, as many as there are", given)


def _smallest_lag(columns: int, fresh: int, first_update: Callable[[int], int]) -> int:
    """Return the smallest bound on the lag with which no actor blocks for ever, by `ddrl.coordinator.schedule`.

    A round needs the version that first uses the batch of its last column; before the round there are all updates up to
    the first one that lacks a batch. A resumed run may begin at any batch.
    """
    further = max(((k + 1) * columns - 1) // fresh - k * columns // fresh for k in range(_CHECKED))
    return max(first_update(batch + further) - first_update(batch) for batch in range(_CHECKED))


_CHECKED = 1000
"""The number of rounds and of batches that are checked; the pattern repeats much sooner."""
