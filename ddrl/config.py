"""The resolved configuration of one run: YAML or JSON -> frozen dataclasses. An unknown key is an error.

Counts are in environment frames (before frame skip) or carry their unit in the name. Each algorithm's own settings
stand next to it (`ddrl.algorithms.<name>.Config`); here is what every run has: environment, topology, budget,
bookkeeping.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

import yaml
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from ddrl import algorithms
from ddrl.errors import UserError, unknown_name
from ddrl.keys import STRICT

NO_MAPPING = {"union_tag_invalid", "union_tag_not_found", "model_attributes_type", "dataclass_type"}
"""pydantic's names of errors that say: here should be the keys of a dataclass, or of one of several."""


@dataclass(frozen=True, config=STRICT)
class CentralInference:
    """Dynamic batching: a batch begins when a thread is free and enough columns wait; it takes whole calls."""

    min_columns: PositiveInt = 1
    max_columns: PositiveInt | None = None
    """null: all columns of the learner's actors."""
    max_wait_ms: NonNegativeFloat = 10.0
    """A call that has waited so long for others (`min_columns`) waits no longer."""
    num_threads: PositiveInt = 1
    """Inference threads, each with a copy of the network."""
    device: Annotated[str, Field(pattern=r"^(learner|cpu|cuda(:[0-9]+)?)$")] = "learner"
    """learner: where it trains; another one, such as cuda:1, keeps inference and training out of each other's way."""
    worker_processes: bool = False
    """Runtime threads: each actor's environments are in a process that the run starts (with runtime ray they are)."""


@dataclass(frozen=True, config=STRICT)
class Topology:
    """Who acts, who learns, and how far they may drift apart."""

    runtime: Literal["serial", "threads", "ray"] = "threads"
    """serial: one thread, repeated bit for bit; threads: one process; ray: a process for each actor and learner, on
    this machine or on the cluster that the environment variable RAY_ADDRESS names. There actors act on the CPU."""
    schedule: Literal["asynchronous", "synchronous", "bounded_lag"] = "asynchronous"
    """asynchronous: actors never wait for parameters; synchronous: lag 0; bounded_lag: lag <= `max_policy_lag`."""
    num_actors: PositiveInt = 2
    envs_per_actor: PositiveInt = 32
    """Environments (columns of an unroll) that one actor steps together."""
    env_threads: PositiveInt = 1
    """Native stepping threads of one actor's environments."""
    max_policy_lag: PositiveInt | None = None
    """In learner updates; needed by, and only allowed with, schedule `bounded_lag`."""
    parameter_delay: NonNegativeInt = 0
    """Actors act with parameters this many updates old (controlled lag, IMPALA Figure E.1)."""
    queue_capacity: PositiveInt = 2
    """Unrolls (of `envs_per_actor` columns) that wait for the learner before actors block (asynchronous schedule)."""
    inference: Literal["local", "central"] = "local"
    """local: each actor has a copy of the network; central: the learner infers for all of them, and environments need
    no network (runtime ray: they are in processes that send observations and get actions)."""
    central: CentralInference = CentralInference()
    """Read with `inference: central`."""
    replay: Literal["learner", "own"] = "learner"
    """Where a prioritized replay is: in the learner's process, or (runtime ray, local inference) in one of its own, to
    which actors send and from which the learner draws a batch ahead. A batch is then copied twice more."""
    prefetch: bool = False
    """A thread makes the next batch ready while the learner trains (runtimes threads and ray); for a GPU, in memory
    that it copies from by itself. The policy lag may grow by an update."""
    learner_threads: PositiveInt = 1
    """Threads that share the gradient of one batch, column-wise."""
    num_learners: PositiveInt = 1
    """Learners (runtime ray) that each take their share of every batch and add up gradients; each has a queue of its
    own, filled by its share of the actors. With a GPU each (device cuda) they use NCCL, else gloo."""


@dataclass(frozen=True, config=STRICT)
class Evaluation:
    """Separate episodes on seeds of their own; actions are sampled from the policy, as in training, or where an
    algorithm explores with an epsilon, with that of its evaluations."""

    period_frames: PositiveInt | None = None
    """Evaluate each time the learner has consumed this many more frames; null: only at the end."""
    episodes: PositiveInt = 10
    final_episodes: PositiveInt = 200
    """Episodes behind the final score (IMPALA, section 5.3.2: 200)."""


@dataclass(frozen=True, config=STRICT)
class Recording:
    """What goes to the curves."""

    period_frames: PositiveInt = 50_000
    tensorboard: bool = True


@dataclass(frozen=True, config=STRICT)
class Checkpointing:
    """When the state is saved (two are kept)."""

    period_frames: PositiveInt = 1_000_000
    replay: Literal["saved", "refilled"] = "saved"
    """A prioritized replay is saved with the rest, as it must be in runtime serial; or it is left out, and a run that
    is continued first plays until it holds as many items again."""


@dataclass(frozen=True, config=STRICT)
class RunConfig:
    """One run: fully determined by this and, in runtime `serial`, repeated bit for bit."""

    algorithm: str
    environment: dict[str, Any]
    """`name: prefix/task`, and the adapter's options."""
    seed: NonNegativeInt
    env_frames: PositiveInt
    """Budget: fresh environment frames that the learner consumes."""
    hyperparameters: Any
    """The algorithm's own `Config`."""
    topology: Topology = Topology()
    evaluation: Evaluation = Evaluation()
    recording: Recording = Recording()
    checkpoint: Checkpointing = Checkpointing()
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16: autocast of the networks' matrix work; parameters, losses and the optimizer stay in float32."""


def parse_run_config(mapping: Mapping[str, Any], where: str = "configuration") -> RunConfig:
    """Checks a mapping and fills in defaults. Raises `UserError` naming `where`, the key and what is allowed."""
    values = dict(mapping)
    name = values.get("algorithm")
    if name not in algorithms.NAMES:
        raise unknown_name("algorithm", name, algorithms.NAMES, where=where)
    environment = values.get("environment")
    if not isinstance(environment, Mapping) or not isinstance(environment.get("name"), str):
        raise UserError(f"{where}: key 'environment.name' must be a text like atari/pong")
    module = algorithms.load(str(name))
    hyperparameters = values.get("hyperparameters") or {}
    values["hyperparameters"] = _validated(module.Config, hyperparameters, where, prefix="hyperparameters.")
    config = _validated(RunConfig, values, where)
    assert isinstance(config, RunConfig)
    _check_lag(config, module.SCHEDULES, where)
    _check_topology(config, where)
    return config


def _validated(target: Any, values: Any, where: str, prefix: str = "") -> Any:
    try:
        return TypeAdapter(target).validate_python(values)
    except ValidationError as error:
        problems = [_explain(problem, target, prefix) for problem in error.errors()]
        raise UserError(f"{where}: " + "; ".join(problems)) from None


def _explain(problem: Any, target: Any, prefix: str) -> str:
    location, allowed, kinds = _place(target, [str(part) for part in problem["loc"]])
    key = prefix + ".".join(location)
    if problem["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        return str(unknown_name("key", key, [prefix + ".".join([*location[:-1], name]) for name in allowed]))
    if problem["type"] in NO_MAPPING:
        names = " or ".join(str(kind.name) for kind in kinds if hasattr(kind, "name"))
        wanted = f"a mapping with name: {names}" if names else "a mapping"
        return f"key '{key}' must be {wanted} (got {problem.get('input')!r})"
    return f"key '{key}': {problem['msg']} (got {problem.get('input')!r})"


def _place(target: Any, location: list[str]) -> tuple[list[str], list[str], list[Any]]:
    """The keys that lead to a problem, the keys that stand beside the last of them, and the dataclasses it may hold.

    Where a key allows several dataclasses, the location also holds the `name` of the one that was chosen: no key.
    """
    keys: list[str] = []
    kinds, allowed = [target], _field_names(target)
    for part in location:
        chosen = [kind for kind in kinds if getattr(kind, "name", None) == part and part not in _field_names(kind)]
        if chosen:
            kinds, allowed = chosen, _field_names(chosen[0])
            continue
        owner = next((kind for kind in kinds if part in _field_names(kind)), None)
        allowed = _field_names(owner or kinds[0]) if kinds else []
        kinds = _dataclasses_in(get_type_hints(owner, include_extras=True)[part]) if owner else []
        keys.append(part)
    return keys, allowed, kinds


def _dataclasses_in(annotation: Any) -> list[Any]:
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return [annotation]
    return [found for part in get_args(annotation) for found in _dataclasses_in(part)]


def _field_names(target: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(target)] if dataclasses.is_dataclass(target) else []


def _check_lag(config: RunConfig, schedules: Sequence[str], where: str) -> None:
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


def _check_topology(config: RunConfig, where: str) -> None:
    """Combinations that would never move, or whose keys nobody would read."""
    topology = config.topology
    if (topology.schedule == "bounded_lag") != (topology.max_policy_lag is not None):
        raise UserError(
            f"{where}: key 'topology.max_policy_lag' goes with 'topology.schedule: bounded_lag' and only with it "
            f"(got {topology.max_policy_lag} with {topology.schedule})"
        )
    if moves_gradients(config):
        _check_gradients(topology, config.algorithm, where)
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
    smallest = _smallest_lag(columns, fresh, config.hyperparameters.first_update)
    if topology.max_policy_lag is not None and topology.max_policy_lag < smallest:
        raise UserError(
            f"{where}: key 'topology.max_policy_lag' must be at least {smallest}, since one round of {columns} columns "
            f"must be under way before the batch of {fresh} that its last column belongs to is first learned from"
        )


def replays(config: RunConfig) -> bool:
    """Whether the learner draws from a prioritized replay, and never waits for a fresh batch."""
    return hasattr(config.hyperparameters, "replay")


def moves_gradients(config: RunConfig) -> bool:
    """Whether actors compute gradients and apply them to parameters that they share."""
    return bool(algorithms.load(config.algorithm).SYSTEM["moves"] == "gradients")


def _check_gradients(topology: Topology, algorithm: str, where: str) -> None:
    """Keys of a learner that computes gradients, and of actors that have no network."""
    only = {"inference": "local", "num_learners": 1, "learner_threads": 1, "prefetch": False, "parameter_delay": 0}
    for key, value in only.items():
        if (given := getattr(topology, key)) != value:
            raise UserError(
                f"{where}: key 'topology.{key}' must be {json.dumps(value)} with algorithm {algorithm}, whose actors "
                f"compute the gradients (got {json.dumps(given)})"
            )


def _check_replay(config: RunConfig, where: str) -> None:
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


def _check_learners(config: RunConfig, where: str) -> None:
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


def _smallest_lag(columns: int, fresh: int, first_update: Callable[[int], int]) -> int:
    """The smallest bound on the lag with which no actor waits for ever, by the rule of `ddrl.coordinator.gate`.

    What a round needs is the version that first uses the batch of its last column; what is there before it is every
    update up to the first one that lacks a batch. A resumed run may begin at any batch.
    """
    further = max(((k + 1) * columns - 1) // fresh - k * columns // fresh for k in range(_CHECKED))
    return max(first_update(batch + further) - first_update(batch) for batch in range(_CHECKED))


_CHECKED = 1000
"""Rounds, and batches, for which a bounded lag is checked to move; the pattern repeats much sooner."""


def load_run_config(path: Path) -> RunConfig:
    """Reads a YAML or JSON file. Raises `UserError` where it cannot be read or says something not allowed."""
    try:
        mapping = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not valid YAML or JSON: {' '.join(str(error).split())}") from None
    if not isinstance(mapping, Mapping):
        raise UserError(f"{path}: must hold a mapping of keys, such as 'algorithm: impala'")
    return parse_run_config(mapping, where=str(path))


def to_json(config: RunConfig) -> dict[str, Any]:
    """Plain data that `parse_run_config` reads back to an equal configuration."""
    return dataclasses.asdict(config)


def fingerprint(config: RunConfig) -> str:
    """Names the configuration (see `fingerprint_of`)."""
    return fingerprint_of(to_json(config))


def fingerprint_of(values: Mapping[str, Any]) -> str:
    """The first 16 hex digits of the SHA-256 of a configuration's canonical JSON, as it was when it was written down.

    Keys that have come since then are no part of it, so the name of a finished run stays true.
    """
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
