"""Topologies that an algorithm cannot learn with, that would never move, or whose keys nobody would read."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from ddrl.errors import UserError
from ddrl.training.config.systems import has_parameter_server, moves_gradients, replays, shares_parameters
from ddrl.training.config.topology import CentralInference, Topology


def check_lag(config: Any, schedules: Sequence[str], where: str) -> None:
    """Lag that the algorithm, which can learn under these schedules, does not correct for."""
    name, topology = config.algorithm, config.topology
    if topology.schedule not in schedules:
        raise UserError(
            f"{where}: key 'topology.schedule' must be {' or '.join(schedules)} with algorithm {name} "
            f"(got {topology.schedule})"
        )
    if topology.parameter_delay and set(schedules) == {"synchronous"}:  # on policy
        raise UserError(
            f"{where}: key 'topology.parameter_delay' must be 0 with algorithm {name}, which corrects for no lag "
            f"(got {topology.parameter_delay})"
        )


def check_topology(config: Any, where: str) -> None:
    """Combinations that would never move, or whose keys nobody would read."""
    topology = config.topology
    if (topology.schedule == "bounded_lag") != (topology.max_policy_lag is not None):
        raise UserError(
            f"{where}: key 'topology.max_policy_lag' goes with 'topology.schedule: bounded_lag' and only with it "
            f"(got {topology.max_policy_lag} with {topology.schedule})"
        )
    _check_shared(config, where)
    _check_learners(config, where)
    _check_inference(topology, where)
    _check_replay(config, where)
    if replays(config) or moves_gradients(config):
        return
    columns, fresh = topology.num_actors * topology.envs_per_actor, config.hyperparameters.fresh_columns
    if topology.schedule == "synchronous" and fresh % columns:
        raise UserError(
            f"{where}: 'topology.schedule: synchronous' needs num_actors x envs_per_actor to divide the "
            f"{fresh} fresh unrolls of a batch (got {topology.num_actors} x {topology.envs_per_actor})"
        )
    columns, fresh = columns // topology.num_learners, fresh // topology.num_learners
    if topology.schedule == "asynchronous" and topology.queue_capacity * topology.envs_per_actor < fresh:
        raise UserError(
            f"{where}: key 'topology.queue_capacity' must be at least {-(-fresh // topology.envs_per_actor)}, so that "
            f"unrolls of {topology.envs_per_actor} columns can feed a batch of {fresh} (got {topology.queue_capacity})"
        )
    if topology.max_policy_lag is None:
        return
    smallest = _smallest_lag(columns, fresh, config.hyperparameters.first_update)
    if topology.max_policy_lag < smallest:
        raise UserError(
            f"{where}: key 'topology.max_policy_lag' must be at least {smallest}, since one round of {columns} columns "
            f"must be under way before the batch of {fresh} that its last column belongs to is first learned from"
        )


def _check_shared(config: Any, where: str) -> None:
    """Keys of a learner that publishes versions, or computes all gradients, or of actors that have no network."""
    only: dict[str, Any] = {"num_trainers": 1}
    why = "which has one trainer and no parameter server"
    if shares_parameters(config):
        only = {"num_learners": 1, "learner_threads": 1, "parameter_delay": 0}
        why = "whose parameters are shared and have no versions"
    if moves_gradients(config):
        only |= {"inference": "local", "prefetch": False, "num_trainers": 1}
        why = "whose actors compute the gradients"
    elif config.topology.runtime == "serial":
        only["num_trainers"] = 1
    if not has_parameter_server(config):
        only["parameter_shards"] = 1
    for key, value in only.items():
        if (given := getattr(config.topology, key)) != value:
            raise UserError(
                f"{where}: key 'topology.{key}' must be {json.dumps(value)} with algorithm {config.algorithm}, {why} "
                f"(got {json.dumps(given)})"
            )


def _check_replay(config: Any, where: str) -> None:
    topology = config.topology
    if config.checkpoint.replay == "refilled" and (topology.runtime == "serial" or not replays(config)):
        raise UserError(
            f"{where}: key 'checkpoint.replay' may be refilled only with a prioritized replay, and not with "
            "'topology.runtime: serial', which continues bit for bit"
        )
    if topology.replay == "learner":
        return
    if not replays(config):
        raise UserError(
            f"{where}: key 'topology.replay' may be own only with an algorithm that has a prioritized replay "
            f"(got {config.algorithm})"
        )
    if (topology.runtime, topology.inference) != ("ray", "local"):
        raise UserError(
            f"{where}: key 'topology.replay' may be own only with 'topology.runtime: ray', which has processes, and "
            "'topology.inference: local', since with central inference experience begins on the learner (got "
            f"{topology.runtime} and {topology.inference})"
        )


def _check_learners(config: Any, where: str) -> None:
    learners = config.topology.num_learners
    if learners > 1 and config.topology.runtime != "ray":
        raise UserError(
            f"{where}: key 'topology.num_learners' may exceed 1 only with 'topology.runtime: ray' "
            f"(got {learners} with {config.topology.runtime})"
        )
    if learners == 1:
        return
    hyperparameters = config.hyperparameters
    shared = {
        "topology.num_actors": config.topology.num_actors,
        "hyperparameters.batch_size": hyperparameters.batch_size,
        "the fresh columns of a batch": hyperparameters.fresh_columns,
    }
    for name, number in shared.items():
        if number % learners:
            raise UserError(f"{where}: key 'topology.num_learners' must divide {name} (got {learners} and {number})")


def _check_inference(topology: Topology, where: str) -> None:
    if topology.prefetch and topology.runtime == "serial":
        raise UserError(f"{where}: key 'topology.prefetch' may be true only with 'topology.runtime: threads' or ray")
    central, columns = topology.central, topology.num_actors * topology.envs_per_actor // topology.num_learners
    if topology.inference == "local" and central != CentralInference():
        raise UserError(f"{where}: key 'topology.central' is read only with 'topology.inference: central'")
    if central.worker_processes and topology.runtime != "threads":
        raise UserError(
            f"{where}: key 'topology.central.worker_processes' may be true only with 'topology.runtime: threads' (got "
            f"{topology.runtime}{', whose workers are processes anyway' if topology.runtime == 'ray' else ''})"
        )
    _check_adjustment(topology, where)
    largest = columns if central.max_columns is None else central.max_columns
    if largest < topology.envs_per_actor:
        raise UserError(
            f"{where}: key 'topology.central.max_columns' must be at least the {topology.envs_per_actor} environments "
            f"of an actor, whose calls are not split (got {largest})"
        )
    if central.min_columns > min(largest, columns):
        raise UserError(
            f"{where}: key 'topology.central.min_columns' must be at most {min(largest, columns)}: no more columns can "
            f"be in a batch (got {central.min_columns})"
        )


def _check_adjustment(topology: Topology, where: str) -> None:
    adjustment = topology.adjustment
    if adjustment is None:
        return
    place = (topology.inference, topology.schedule, topology.num_learners)
    if topology.runtime == "serial" or place != ("central", "asynchronous", 1):
        raise UserError(
            f"{where}: key 'topology.adjustment' goes with 'topology.runtime: threads' or ray, inference: central, "
            f"schedule: asynchronous and one learner (got {topology.runtime}, {', '.join(map(str, place))})"
        )
    most = {
        "actors": topology.num_actors,
        "predictors": topology.central.num_threads,
        "trainers": topology.num_trainers,
    }
    for kind, number in most.items():
        if getattr(adjustment, kind) > number:
            raise UserError(
                f"{where}: key 'topology.adjustment.{kind}' must be at most {number}, as many as there are (got "
                f"{getattr(adjustment, kind)})"
            )


def _smallest_lag(columns: int, fresh: int, first_update: Callable[[int], int]) -> int:
    """The smallest bound on the lag with which no actor waits for ever, by the rule of `ddrl.coordinator.schedule`.

    What a round needs is the version that first uses the batch of its last column; what is there before it is every
    update up to the first one that lacks a batch. A resumed run may begin at any batch.
    """
    further = max(((k + 1) * columns - 1) // fresh - k * columns // fresh for k in range(_CHECKED))
    return max(first_update(batch + further) - first_update(batch) for batch in range(_CHECKED))


_CHECKED = 1000
"""Rounds, and batches, for which a bounded lag is checked to move; the pattern repeats much sooner."""
