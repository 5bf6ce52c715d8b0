"""What the processes of runtime `ray` say to each other. No torch here: who steps environments alone needs none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ddrl.types import Episode, Metrics

if TYPE_CHECKING:
    from ddrl.training.records.recorder import Counts

Episodes = list[Episode]
Reply = tuple[int, Any] | None
"""Version, and a reference to its parameters (None: those the actor has); None alone: the run is over."""


class Place(NamedTuple):
    """A shard, and which of the network's parameters it holds."""

    part: slice
    host: Any


class Beside(NamedTuple):
    """Hosts of what has processes of its own beside learners and actors."""

    replay: Any = None
    shards: Sequence[Place] = ()
    """Of a parameter server."""


NOTHING_BESIDE = Beside()


class Status(NamedTuple):
    """How far a learner is, for the supervisor."""

    counts: Counts
    latest: Metrics
    """The newest value of every metric; of rank 0."""
    notes: list[str]
    """Lines for the user since the last status; of rank 0."""
    insert_waited: float
    """Seconds that actors waited to insert, over those of this learner."""
    pull_waited: float
    """Seconds that they waited for parameters."""
    sample_waited: float
    """Seconds that the learner waited for batches."""
    delivered: list[int]
    """Unrolls of each actor of this learner."""


class Elsewhere(NamedTuple):
    """What an actor had of shards in other processes since its last message to the learner."""

    sent: int = 0
    """Bytes."""
    received: int = 0
    cpu_seconds: float = 0.0
    """Of all shards, since their beginning."""


NOTHING_ELSEWHERE = Elsewhere()
