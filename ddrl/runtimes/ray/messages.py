"""The messages between processes of runtime `ray`. No torch is imported here: environment workers do without it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ddrl.runtimes.ray.rendezvous import Rendezvous
from ddrl.types import Episode, Experience, Gradients, Metrics, Unroll

if TYPE_CHECKING:
    from ddrl.training.records.recorder import Counts

Episodes = list[Episode]
Sent = Unroll | Experience | Gradients
"""The content of an actor's message to its learner: experience, or a gradient."""
Reply = tuple[int, Any] | None
"""Version, and a reference to its parameters (None: the actor has them); None alone: the run is over."""


class Shard(NamedTuple):
    """The process of a parameter server's shard."""

    part: slice  # of the network's parameters, which it holds
    process: Any


class Beside(NamedTuple):
    """The processes beside learners and actors."""

    replay: Any = None
    shards: Sequence[Shard] = ()
    meeting: Rendezvous | None = None
    """Where several learners have met: the store there is for actors, too."""


class Status(NamedTuple):
    """The progress of a learner, for the supervisor."""

    counts: Counts
    latest: Metrics  # the newest value of every metric; of rank 0
    notes: list[str]  # lines for the user since the last status; of rank 0
    insert_waited: float  # seconds that this learner's actors waited to insert, summed over them
    pull_waited: float  # seconds that they waited for parameters
    sample_waited: float  # seconds that the learner waited for batches
    environments_waited: float | None  # seconds that their environments waited for actions (`LearnerNode`)
    delivered: list[int]  # unrolls of each actor of this learner


class ShardTraffic(NamedTuple):
    """The traffic of an actor with shards in processes of their own since its last message to the learner."""

    sent: int = 0  # bytes
    received: int = 0  # bytes
    cpu_seconds: float = 0.0  # of all shards, since their start


NO_TRAFFIC = ShardTraffic()
