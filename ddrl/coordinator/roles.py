"""What a runtime runs: roles with `ready()` and `step()`, and the questions it asks between steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class Role(Protocol):
    """An actor, a learner or an evaluator."""

    def ready(self) -> bool:
        """Whether `step` would not wait."""

    def step(self) -> Any:
        """One unit of work; may wait. Raises `Closed` once the run is over."""


@dataclass(frozen=True)
class Program:
    """One training run, ready to be carried out by any runtime."""

    actors: Sequence[Role]
    learner: Role
    """Its `step` includes what follows an update: recording, checkpoints."""
    evaluator: Role
    finished: Callable[[], bool]
    """The budget is reached."""
    interrupted: Callable[[], bool]
    """The process was asked to stop."""
    close: Callable[[], None]
    """Ends every wait of every role with `Closed`."""
    services: Sequence[Role] = ()
    """Roles that answer others' calls, where roles run side by side; where they take turns nobody calls them."""
