"""A program of roles, as a runtime carries it out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from ddrl.errors import Closed, UserError
from ddrl.interfaces import Actor, Role, Service

STOPPING_SECONDS = 180.0
"""The time for learners in other processes to save and stop. Several of them first finish the batch that they wait
for; one in a single thread finishes the step of its environments. Large checkpoints need time."""


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

    @property
    def generator(self) -> np.random.Generator | None:
        """It draws the order of roles that take turns; None: they run side by side.

        With it, a checkpoint holds the state of every role, so that a run that is continued repeats the same bits.
        """

    def run(self, program: Program) -> None:
        """Run the program until it is finished or interrupted. Raise what a role raised."""


@dataclass(frozen=True)
class Steps:
    """A role made of two functions."""

    ready: Callable[[], bool]
    step: Callable[[], object]


class NamedActor:
    """An actor whose errors carry a note with its name, except those that are one line for the user."""

    def __init__(self, actor: Actor, name: str) -> None:
        self.ready = actor.ready
        self.state_dict = actor.state_dict
        self.load_state_dict = actor.load_state_dict
        self._step = actor.step
        self._name = name

    def step(self) -> None:
        """Do the actor's own step."""
        try:
            self._step()
        except (Closed, UserError):
            raise
        except BaseException as error:
            error.add_note(f"in {self._name}")
            raise
