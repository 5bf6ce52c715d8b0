"""What an actor and a learner may ask of the parameters and of the store between them.

Every runtime offers these, in one process or over a network; algorithms know nothing else of the coordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from ddrl.types import (
    Begun,
    Experience,
    Gradients,
    Metrics,
    NetworkOutput,
    PolicyInput,
    PolicyOutput,
    RecurrentState,
    Unroll,
)

if TYPE_CHECKING:  # a configuration, of which every report reads some, needs no torch
    from torch import Tensor, nn

Schedule = Literal["asynchronous", "synchronous", "bounded_lag"]
TaskKind = Literal["images", "vectors", "continuous actions", "memory"]
"""What an algorithm's settings depend on: observations that are images, others, and others with continuous actions.

Those of `memory` come first on every task, for a network that is to have one.
"""


@dataclass(frozen=True)
class System:
    """The kind of system that an algorithm is: what other parts must know of it, stated in the algorithm's own file.

    Every value is plain, so that reports, which import no torch, can read it from the source.
    """

    name: str
    """The name that its paper uses."""
    moves: Literal["unrolls", "transitions", "overlapping sequences", "gradients"]
    """What actors send. Gradients are applied by the actors themselves, to parameters that they share."""
    store: Literal["queue", "circular", "prioritized", "local replay", "none"]
    """What experience waits in. A learner that draws from a prioritized replay never waits for a fresh batch."""
    schedules: tuple[Schedule, ...]
    """Schedules under which it can learn; benchmarks use the first one."""
    parameters: Literal["versions", "shared", "sharded"] = "versions"
    """versions: the learner publishes them; shared: several threads update the same ones, without locks; sharded: a
    server holds them, in shards that apply one gradient at a time."""
    central_name: str = ""
    """The system's name with central inference, where it has another one then."""
    store_sizes: tuple[tuple[str, str], ...] = ()
    """(Symbol, hyperparameter) of the sizes that tables print with the store."""
    replay_share: str = ""
    """The hyperparameter that says which share of a batch is replayed, where a queue's unrolls may be."""
    learned: tuple[str, ...] = ("network", "optimizer")
    """Keys of the learner's state that hold what it has learned: another member of a population copies them. Counters,
    random streams and experience stay a member's own."""


@runtime_checkable
class Hyperparameters(Protocol):
    """What the parts around an algorithm ask of its own `Config`."""

    @property
    def unroll_length(self) -> int:
        """Agent steps that an actor collects at once."""

    @property
    def batch_size(self) -> int:
        """Unrolls or items of an update, over all learners; 0: an actor learns from its own unroll."""

    @property
    def fresh_columns(self) -> int:
        """Columns of a batch that come from the queue, over all learners; 0: no batch is fresh."""

    @property
    def stored_columns(self) -> int:
        """Columns of unrolls that stay in main memory to be learned from again."""

    def first_update(self, batch: int) -> int:
        """Return the update that first uses fresh batch number `batch`; 0 where no update waits for one."""

    def __hash__(self) -> int:
        """Return a hash of the keys and values."""


class Parameters(Protocol):
    """The versioned parameters (and buffers) of the network."""

    @property
    def version(self) -> int:
        """The newest version."""

    def can_pull(self, unroll_index: int) -> bool:
        """Return whether the schedule lets an actor begin its unroll `unroll_index` now."""

    def pull(self, network: nn.Module, unroll_index: int) -> int:
        """Copy the version to act with into `network` and return it; wait until the schedule allows it."""

    def publish(self, network: nn.Module) -> int:
        """Make the network's present parameters the next version; return it."""


class SharedParameters(Protocol):
    """`Parameters` that actors change themselves, by their gradients; a version is the number of updates so far."""

    @property
    def version(self) -> int:
        """The newest version."""

    def can_pull(self, unroll_index: int) -> bool:
        """Return whether `pull` would return at once: always."""

    def pull(self, network: nn.Module, unroll_index: int) -> int:
        """Copy the parameters as they are into `network`; return their version."""

    def publish(self, network: nn.Module) -> int:
        """Count an update of the network's parameters; return the version."""

    def apply(self, gradients: Gradients) -> None:
        """Apply a gradient to the parameters, beside what other actors do."""

    def lend(self, network: nn.Module) -> None:
        """Let `network` have the shared tensors themselves."""

    def serve(self, update: Callable[..., Metrics], begin: Callable[[], Begun] | None = None) -> None:
        """Have gradients applied by the learner's `update`, in whatever thread brings one.

        `begin` is called before shards in processes of their own apply one; `update` then gets its result too.
        """

    def can_take(self) -> bool:
        """Return whether `take` would return at once."""

    def take(self) -> Metrics:
        """Return metrics of the gradients applied since the last call; wait for one."""


class Shards(Protocol):
    """The learner's side of a parameter server whose shards are in processes of their own."""

    def pull(self, network: nn.Module) -> None:
        """Copy the parameters as they are into `network`."""

    def collect(self, network: nn.Module) -> list[dict[str, Any]]:
        """Copy the parameters into `network`; return the state of each shard's optimizer."""

    def restore(self, network: nn.Module, optimizers: list[dict[str, Any]]) -> None:
        """Give the shards these parameters and states."""


class Inference(Protocol):
    """A policy's network: with the actor (local), or with the learner and shared by all actors (central)."""

    @property
    def network(self) -> nn.Module:
        """The network, or one like it."""

    def pull(self, params: Parameters, unroll_index: int) -> None:
        """Make ready for the actor's unroll `unroll_index`; wait until the schedule allows it."""

    def leave_out_values(self) -> None:
        """Allow that answers hold no values: NaN may stand in their place."""

    def infer(self, inputs: PolicyInput) -> PolicyOutput:
        """Return the behaviour policy for B environments, [B, ...]; advance the recurrent state."""

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` needs to continue with the same bits."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken."""


class RunningStatistics(Protocol):
    """Running statistics of samples."""

    def update(self, samples: Tensor, reducer: Reducer) -> None:
        """Add samples [N, ...] of this learner and, by `reducer`, those of all others."""


class KeepsStatistics(Protocol):
    """A network that may keep running statistics of observations and returns."""

    @property
    def observation_normaliser(self) -> RunningStatistics | None:
        """The statistics of observations; None: they are seen as they are."""

    @property
    def reward_normaliser(self) -> RunningStatistics | None:
        """The statistics of returns; None: rewards are seen as they are."""


class ActingNetwork(Protocol):
    """A network that a policy acts with."""

    @property
    def sees_steps_alone(self) -> bool:
        """Return whether an output depends on the observation of its own step alone, and there is `of_steps`.

        It maps observations [B, ...] to distributions [B, P] and values [B], in fewer operations.
        """

    def initial_state(self, batch_size: int) -> RecurrentState:
        """Return the state before an episode."""

    def no_action(self, batch_size: int) -> Tensor:
        """Return the last action before an episode, [B] or [B, A]."""


class BatchNetwork(Protocol):
    """A network that a learner evaluates on a whole batch."""

    @property
    def piece_steps(self) -> int:
        """Steps whose activations are held at once."""

    def __call__(self, *inputs: Any) -> NetworkOutput:
        """Evaluate observation, last action, last reward, start, each [T, B, ...], from the state before them."""


class Service(Protocol):
    """A role that works beside the others in a thread of its own, such as an inference thread."""

    def step(self) -> object:
        """Do one unit of work; wait if need be. Raise `Closed` once the run is over."""


class Role(Protocol):
    """A role that can take turns with others."""

    def ready(self) -> bool:
        """Return whether `step` would run without waiting."""

    def step(self) -> object:
        """Do one unit of work, as the `step` of a service."""


class Actor(Protocol):
    """An algorithm's actor: one call of `step` is one pass of its pseudo-code."""

    def ready(self) -> bool:
        """Return whether `step` would run without waiting."""

    def step(self) -> object:
        """Act, and send what was collected; wait where the schedule or the store asks for it."""

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` needs to continue with the same bits."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken."""


class LearnerState(Protocol):
    """What every algorithm's learner counts, and what belongs to it."""

    env_frames: int
    """Environment frames learned from, over all learners."""
    agent_steps: int
    updates: int

    @property
    def helpers(self) -> Sequence[Service]:
        """Services that learn beside the learner's own steps."""

    @property
    def close(self) -> Callable[[], None]:
        """End its threads."""


class Learner(Protocol):
    """An algorithm's learner: one call of `step` makes one update."""

    @property
    def core(self) -> LearnerState:
        """The part that it shares with others."""

    def ready(self) -> bool:
        """Return whether `step` would run without waiting."""

    def step(self) -> Metrics:
        """Make one update. Raise `NonFiniteError` if a loss or the gradient is NaN or infinite."""

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` needs to continue with the same bits."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken."""


class Queue(Protocol):
    """A queue in which unrolls wait for the learner: each column is handed out once."""

    def can_insert(self) -> bool:
        """Return whether `insert` would return at once."""

    def insert(self, unroll: Unroll) -> None:
        """Add an unroll; wait while the queue is full."""

    def can_sample(self, columns: int) -> bool:
        """Return whether `sample(columns)` would return at once."""

    def sample(self, columns: int) -> Unroll:
        """Take the oldest `columns` columns; wait until there are so many."""


class Replay(Protocol):
    """A store of experience that is drawn from again and again (`ddrl.replay.prioritized`)."""

    def can_insert(self) -> bool:
        """Return whether `insert` would return at once."""

    def insert(self, experience: Experience) -> None:
        """Add an unroll and the items that became whole with it; wait while the learner is behind."""

    def can_sample(self, count: int) -> bool:
        """Return whether `sample(count)` would return at once."""

    def sample(self, count: int) -> Any:
        """Draw `count` items (`ddrl.replay.items.Drawing`); wait while actors are behind."""

    def update(self, drawn: Any, priorities: Tensor) -> None:
        """Give the items of a `ddrl.replay.items.Drawn` new priorities [B]."""


class SharedStore(Protocol):
    """What is used of the stores of `torch.distributed`; they raise RuntimeError where their server is gone."""

    def add(self, key: str, amount: int) -> int:
        """Add to a number, which begins at 0; return the sum."""

    def get(self, key: str) -> bytes:
        """Return the value of a key; wait until it is set."""

    def set(self, key: str, value: str) -> None:
        """Set a key."""

    def check(self, keys: list[str]) -> bool:
        """Return whether all keys are set."""


class Reducer(Protocol):
    """One of `size` learners, each with its share of the columns."""

    @property
    def rank(self) -> int:
        """0 to size - 1."""

    @property
    def size(self) -> int:
        """How many learners there are."""

    def sum_(self, tensors: list[Tensor]) -> None:
        """Replace each tensor, in place, by its sum over all learners; every learner calls it in the same order."""
