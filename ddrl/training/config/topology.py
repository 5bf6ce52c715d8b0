"""The topology of a run: who acts, who infers, who learns, and how far they may drift apart."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from ddrl.system.config_types import STRICT


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
class Adjustment:
    """Who works at the beginning, and how long each trial of other numbers takes (Babaeizadeh et al. 2017, 4.3)."""

    actors: PositiveInt = 1
    predictors: PositiveInt = 1
    trainers: PositiveInt = 1
    initial_wait_s: NonNegativeFloat = 10.0
    """Its authors' code; the paper does not say."""
    step_wait_s: PositiveFloat = 60.0
    """"Every minute"; its authors' code: 20."""


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
    num_trainers: PositiveInt = 1
    """Threads that each take batches and update one network beside each other, without locks (GA3C)."""
    parameter_shards: PositiveInt = 1
    """Shards of a parameter server (GORILA): each holds a part of the parameters and applies one gradient at a time.
    Runtime ray: several are processes of their own, on the CPU, and actors send each its part of a gradient."""
    adjustment: Adjustment | None = None
    """How many of the actors, inference threads and trainers work is found out while the run trains; the numbers above
    are the most that may. null: all of them work."""
    num_learners: PositiveInt = 1
    """Learners (runtime ray) that each take their share of every batch and add up gradients; each has a queue of its
    own, filled by its share of the actors. With a GPU each (device cuda) they use NCCL, else gloo."""
