"""What the processes of runtime `ray` say to each other. No torch here: who steps environments alone needs none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ddrl.types import Episode

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


class Elsewhere(NamedTuple):
    """What an actor had of shards in other processes since its last message to the learner."""

    sent: int = 0
    """Bytes."""
    received: int = 0
    cpu_seconds: float = 0.0
    """Of all shards, since their beginning."""


NOTHING_ELSEWHERE = Elsewhere()
