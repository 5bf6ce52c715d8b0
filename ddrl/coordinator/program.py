"""What a runtime runs: roles with `ready()` and `step()`, and the questions it asks between steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ddrl.errors import Closed, UserError

STOPPING_SECONDS = 180.0
"""For learners in other processes to save and stop. Several of them first finish the batch that they wait for, and
one in a single thread the step of its environments: neither ends where an environment hangs. Large checkpoints need
time."""


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
    services: Mapping[str, Role] = field(default_factory=dict)
    """By name: roles beside those, where roles run side by side; where they take turns nobody calls them."""


class Runtime(Protocol):
    """What carries out a program."""

    saves_roles: bool
    """Whether a checkpoint holds where every role stands, so that a run that is continued repeats the same bits."""

    def run(self, program: Program) -> None:
        """Until the program is finished or interrupted. Raises what a role raised."""

    def state_dict(self) -> dict[str, str]:
        """What `load_state_dict` needs to continue with the same bits."""

    def load_state_dict(self, state: dict[str, str]) -> None:
        """Continues where `state` was taken."""


class Steps:
    """A role made of two functions."""

    def __init__(self, ready: Any, step: Any) -> None:
        self.ready = ready
        self.step = step


class Named:
    """A role whose errors say which one it was; a line that is meant for the user does so by itself."""

    def __init__(self, role: Any, name: str) -> None:
        self.ready = role.ready
        self.state_dict = role.state_dict
        self.load_state_dict = role.load_state_dict
        self._step = role.step
        self._name = name

    def step(self) -> None:
        """The role's own."""
        try:
            self._step()
        except (Closed, UserError):
            raise
        except BaseException as error:
            error.add_note(f"in {self._name}")
            raise
