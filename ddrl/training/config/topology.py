"""The configuration keys of a run's topology: actors, inference, learners, and how far apart they may be."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from ddrl.system.config_types import STRICT


@dataclass(frozen=True, config=STRICT)
class DynamicBatching:
    """Dynamic batching: a free thread takes a batch of whole calls once enough columns wait."""

    min_columns: PositiveInt = 1
    max_columns: PositiveInt | None = None
    """null: all columns of the learner's actors."""
    max_wait_ms: NonNegativeFloat = 10.0
    """The longest time for which a call waits for others (`min_columns`)."""
    num_threads: PositiveInt = 1
    """Inference threads, each with a copy of the network."""
    device: Annotated[str, Field(pattern=r"^(learner|cpu|cuda(:[0-9]+)?)$")] = "learner"
    """learner: the learner's device; with another one, such as cuda:1, inference and training do not share a device."""
    worker_processes: bool = False
    """Runtime threads: each actor's environments are in a process of their own, as they always are in runtime ray."""


@dataclass(frozen=True, config=STRICT)
class Adjustment:
    """Numbers at the beginning, and the time of each trial of other numbers (Babaeizadeh et al. 2017, section 4.3)."""

    actors: PositiveInt = 1
    predictors: PositiveInt = 1
    trainers: PositiveInt = 1
    initial_wait_s: NonNegativeFloat = 10.0
    """Its authors' code; the paper does not say."""
    step_wait_s: PositiveFloat = 60.0
    """"Every minute"; its authors' code: 20."""


@dataclass(frozen=True, config=STRICT)
class Preemption:
    """When actors end their unrolls early, so that none is waited for long (Wijmans et al. 2020, section 3)."""

    threshold: Annotated[float, Field(gt=0.0, le=1.0)] = 0.6
    """Share of all actors that are done at which the others end theirs; 1: none ever does (`sync_frac` in the authors'
    configuration)."""
    least_fraction: Annotated[float, Field(gt=0.0, le=1.0)] = 0.25
    """Share of an unroll that is always collected (`SHORT_ROLLOUT_THRESHOLD` in the authors' code)."""


@dataclass(frozen=True, config=STRICT)
class Topology:
    """The topology of a run."""

    runtime: Literal["serial", "threads", "ray"] = "threads"
    """serial: one thread, which repeats bit for bit; threads: one process; ray: a process for each actor (on the CPU)
    and learner, on this machine or on the cluster that the environment variable RAY_ADDRESS names."""
    schedule: Literal["asynchronous", "synchronous", "bounded_lag"] = "asynchronous"
    """asynchronous: actors never wait for parameters; synchronous: lag 0; bounded_lag: lag <= `max_policy_lag`."""
    num_actors: PositiveInt = 2
    envs_per_actor: PositiveInt = 32
    """Environments (columns of an unroll) that one actor steps together."""
    env_groups: PositiveInt = 1
    """Groups of an actor's environments that take turns with central inference: while one group waits for its actions,
    another one steps (double-buffered acting, Petrenko et al. 2020)."""
    env_threads: PositiveInt = 1
    """Native stepping threads of one actor's environments."""
    max_policy_lag: PositiveInt | None = None
    """In learner updates; required by schedule `bounded_lag`, and allowed only with it."""
    parameter_delay: NonNegativeInt = 0
    """Actors act with parameters this many updates old (controlled lag, IMPALA Figure E.1)."""
    queue_capacity: PositiveInt = 2
    """Unrolls (of `envs_per_actor` columns) that wait for the learner before actors block (asynchronous schedule)."""
    acting: Literal["host", "device"] = "host"
    """host: steps are arrays in main memory, and actions are sampled there; device: environments' steps, the policy and
    unrolls are tensors on the run's `device`, and the learner reads them where they are (runtimes serial and threads,
    schedule synchronous). Environments that know no tensors are copied from and to a GPU in each step."""
    inference: Literal["local", "central"] = "local"
    """local: each actor has a copy of the network; central: the learner infers for all of them (in runtime ray, for
    processes of environments that send observations and get actions)."""
    central: DynamicBatching = DynamicBatching()
    """Read with `inference: central`."""
    replay: Literal["learner", "own"] = "learner"
    """The process of a prioritized replay: the learner's, or (runtime ray, local inference) its own, to which actors
    send and from which the learner draws one batch ahead. A batch is then copied twice more."""
    prefetch: bool = False
    """A thread prepares the next batch while the learner trains (runtimes threads and ray), for a GPU in pinned memory.
    The policy lag may grow by an update."""
    learner_threads: PositiveInt = 1
    """Threads that share the gradient of one batch, column-wise."""
    num_trainers: PositiveInt = 1
    """Threads that take batches and update one network at the same time, without locks (GA3C)."""
    parameter_shards: PositiveInt = 1
    """Shards of a parameter server (GORILA): each holds a part of the parameters and applies one gradient at a time.
    Runtime ray: several are processes of their own, on the CPU, and actors send each its part of a gradient."""
    adjustment: Adjustment | None = None
    """Search, while training, for the numbers of actors, inference threads and trainers that work; the keys above are
    their maxima. null: all of them work."""
    num_learners: PositiveInt = 1
    """Learners (runtime ray) that each take their share of every batch and add up gradients; each has a queue of its
    own, filled by its share of the actors. With a GPU each (device cuda) they use NCCL, else gloo."""
    required_gradients: PositiveInt | None = None
    """Several learners: gradients that a step takes; those that come later are dropped (Heess et al. 2017). Fewer than
    `num_learners`; null: all."""
    preemption: Preemption | None = None
    """Several learners with schedule synchronous: end the unrolls of the slowest actors early. What is left of such an
    unroll is dead (not learned from), and its episodes go on in the next one. null: all unrolls are whole."""
