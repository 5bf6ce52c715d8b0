"""A program of roles, as a runtime carries it out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ddrl.errors import Closed, UserError

STOPPING_SECONDS = 180.0
"""How long learners in other processes may take to save and stop. Several of them first finish the batch that they wait
for; one in a single thread finishes the step of its environments. Large checkpoints need time."""


class Service(Protocol):
    """A role that works beside the others in a thread of its own, such as an inference thread."""

    def step(self) -> Any:
        """Do one unit of work; wait if need be. Raise `Closed` once the run is over."""


class Role(Protocol):
    """An actor, a learner or an evaluator."""

    def ready(self) -> bool:
        """Return whether `step` would not wait."""

    def step(self) -> Any:
        """Do one unit of work, as the `step` of a service."""


@dataclass(frozen=True)
class Program:
    """One training run, ready to be carried out by any runtime."""

    actors: Sequence[Role]
    learner: Role
    """Its `step` includes what follows an update: recording, checkpoints."""
    evaluator: Role
    finished: Callable[[], bool]
    """Returns whether the budget is reached."""
    interrupted: Callable[[], bool]
    """Returns whether the process was asked to stop."""
    close: Callable[[], None]
    """Ends every wait of every role with `Closed`."""
    services: Mapping[str, Service] = field(default_factory=dict)
    """By name; runtime `serial`, where roles take turns, runs none of them."""


class Runtime(Protocol):
    """Carries out a program."""

    saves_roles: bool
    """Whether a checkpoint holds the state of every role, so that a run that is continued repeats the same bits."""

    def run(self, program: Program) -> None:
        """Run the program until it is finished or interrupted. Raise what a role raised."""

    def state_dict(self) -> dict[str, str]:
        """Return what `load_state_dict` needs to continue with the same bits."""

    def load_state_dict(self, state: dict[str, str]) -> None:
        """Continue where `state` was taken."""


@dataclass(frozen=True)
class Steps:
    """A role made of two functions."""

    ready: Callable[[], bool]
    step: Callable[[], Any]


class Named:
    """A role whose errors carry a note with its name, except those that are one line for the user."""

    def __init__(self, role: Any, name: str) -> None:
        self.ready = role.ready
        self.state_dict = role.state_dict
        self.load_state_dict = role.load_state_dict
        self._step = role.step
        self._name = name

    def step(self) -> None:
        """Do the role's own step."""
        try:
            self._step()
        except (Closed, UserError):
            raise
        except BaseException as error:
            error.add_note(f"in {self._name}")
            raise
