"""Adders: make items for a replay from an actor's unrolls, with initial priorities from temporal-difference errors.

An n-step error needs the values n steps later, which the actor computes when it acts there. So items are made n steps
after the unrolls, and sequences when they are complete.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from ddrl.types import Array, Experience, RecurrentState, Unroll

ErrorFunction = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""(values [T+1, B, A], actions [T, B], rewards [T, B], terminated [T, B], ended [T, B]) -> errors [T, B]."""


class StepErrors(NamedTuple):
    """Errors of T steps of B columns, `n` steps before those of an unroll; arrays [T, B]."""

    error: Array
    """float32, absolute."""
    valid: Array
    start: Array
    over: Array
    """True at the last step of an episode (see `ddrl.types`)."""


class StepErrorTracker:
    """Computes the errors of an actor's steps once the values n steps later are known."""

    def __init__(self, n: int, errors: ErrorFunction) -> None:
        self._n = n
        self._errors = errors
        self._tail: dict[str, Tensor] = {}

    def add(self, unroll: Unroll) -> StepErrors:
        """Add an unroll; return the errors of its steps -n .. T - n - 1. Steps before the first unroll are invalid."""
        new = {
            name: getattr(unroll, name)[: unroll.length]
            for name in ("distribution", "action", "reward", "terminated", "truncated", "valid", "start")
        }
        if not self._tail:
            self._tail = {
                name: torch.zeros_like(part[:1]).expand(self._n, *part.shape[1:]) for name, part in new.items()
            }
        steps = {name: torch.cat([self._tail[name], part]) for name, part in new.items()}
        self._tail = {name: part[-self._n :].clone() for name, part in steps.items()}
        q, valid = steps["distribution"], steps["valid"]
        # An episode is also over before a dead step without an end: its environment was lost (`ddrl.types`).
        over = torch.cat([valid[:-1] & (~valid[1:] | steps["start"][1:]), torch.zeros_like(valid[:1])])
        ended = steps["terminated"] | steps["truncated"] | over
        inputs = (part[:-1] for part in (steps["action"], steps["reward"], steps["terminated"], ended))
        parts = (self._errors(q, *inputs).abs(), valid, steps["start"], over)
        return StepErrors(*(part[: unroll.length].numpy() for part in parts))

    def state_dict(self) -> dict[str, Any]:
        """Return the last n steps, which wait for later values."""
        return dict(self._tail)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`."""
        self._tail = dict(state)


class Items(Protocol):
    """An adder: makes items from an actor's unrolls."""

    @property
    def keeps_states(self) -> bool:
        """True if `make` needs the recurrent state before each step."""

    def make(self, unroll: Unroll, states: list[RecurrentState]) -> Experience:
        """Return the unroll with the completed items; `states` are those before each of its steps, if they are kept."""

    def state_dict(self) -> dict[str, Any]:
        """Return all that `load_state_dict` needs to continue with the same bits."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`."""


class TransitionItems:
    """Makes an item of every step, whose priority is its absolute error (Horgan et al. 2018, section 3)."""

    keeps_states = False

    def __init__(self, n: int, errors: ErrorFunction) -> None:
        self._n = n
        self._tracker = StepErrorTracker(n, errors)
        self.state_dict = self._tracker.state_dict
        self.load_state_dict = self._tracker.load_state_dict

    def make(self, unroll: Unroll, states: list[RecurrentState]) -> Experience:
        """Return the unroll with an item of each step whose error is now known."""
        errors = self._tracker.add(unroll)
        steps, columns = np.nonzero(errors.valid)
        return _experience(unroll, columns, steps - self._n, errors.error[steps, columns])


class SequenceItems:
    """Makes a sequence of `length` steps every `period` steps of an episode (Kapturowski et al. 2019, section 2.3).

    The last one ends with the episode and may be shorter; one that lies within another is left out. Recurrent states
    are kept `burn_in` steps before a sequence starts (if the episode is that old), or before every step; an episode
    starts with a state of zeros.
    """

    def __init__(
        self,
        n: int,
        errors: ErrorFunction,
        *,
        length: int,
        period: int,
        burn_in: int,
        priority: Callable[[Tensor, Tensor], Tensor],
        keeps_states: bool,
        every_state: bool = False,
    ) -> None:
        """`priority` maps (errors [T, B], valid [T, B]) to [B]; with `every_state`, all recurrent states are kept."""
        self._n, self._length, self._period, self._burn_in = n, length, period, burn_in
        self._tracker = StepErrorTracker(n, errors)
        self._priority = priority
        self.keeps_states = keeps_states
        self._state_period = 1 if every_state else period
        self._errors: Array = np.zeros((length, 0), dtype=np.float32)
        self._age: Array = np.zeros(0, dtype=np.int64)
        self._begun: Array = np.zeros(0, dtype=np.int64)
        self._state_age: Array = np.zeros(0, dtype=np.int64)

    def make(self, unroll: Unroll, states: list[RecurrentState]) -> Experience:
        """Return the unroll with the sequences that are now complete, and the states that are kept."""
        if not len(self._age):
            self._errors = np.zeros((self._length, unroll.batch_size), dtype=np.float32)
            self._age, self._begun, self._state_age = (np.zeros(unroll.batch_size, dtype=np.int64) for _ in range(3))
        complete = self._complete_sequences(self._tracker.add(unroll))
        columns, steps, lengths = (np.array([item[part] for item in complete], dtype=np.int64) for part in range(3))
        errors = np.array([item[3] for item in complete], dtype=np.float32).reshape(-1, self._length)
        valid = torch.arange(self._length).unsqueeze(-1) < torch.from_numpy(lengths)
        priorities: Array = self._priority(torch.from_numpy(errors).T, valid).numpy()
        places = self._state_places(unroll) if self.keeps_states else None
        return _experience(unroll, columns, steps - self._n, priorities, places, states)

    def state_dict(self) -> dict[str, Any]:
        """Return the errors of unfinished sequences, and the ages of the episodes."""
        arrays = (self._errors, self._age, self._begun, self._state_age)
        return {"judge": self._tracker.state_dict(), "arrays": [torch.from_numpy(array.copy()) for array in arrays]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`."""
        self._tracker.load_state_dict(state["judge"])
        self._errors, self._age, self._begun, self._state_age = (array.numpy().copy() for array in state["arrays"])

    def _complete_sequences(self, errors: StepErrors) -> list[tuple[int, int, int, Array]]:
        """Return (column, first step, length, errors [m]) of each sequence that ends at one of these steps."""
        length, period, found = self._length, self._period, []
        everywhere = np.arange(len(self._age))
        for t, (error, valid, start, over) in enumerate(zip(*errors, strict=True)):
            self._age = np.where(start, 0, self._age)
            self._begun = np.where(start, 0, self._begun)
            self._errors[self._age % length, everywhere] = np.where(valid, error, 0.0)
            self._age = self._age + valid  # steps of the episode so far, including this one
            complete = valid & (over | (self._age - self._begun == length))
            for column in np.flatnonzero(complete):
                begun, steps = int(self._begun[column]), int(self._age[column] - self._begun[column])
                order = np.arange(begun, begun + length) % length
                found.append((int(column), t - steps + 1, steps, self._errors[order, column]))
            self._begun = np.where(complete, self._begun + period, self._begun)
        return found

    def _state_places(self, unroll: Unroll) -> tuple[Array, Array]:
        """Return columns and steps of the unroll before which states are kept."""
        valid, start = unroll.valid.numpy(), unroll.start.numpy()
        wanted = np.zeros(valid.shape, dtype=np.bool_)
        for t in range(unroll.length):
            self._state_age = np.where(start[t], 0, self._state_age)
            age = self._state_age
            wanted[t] = valid[t] & (age > 0) & ((age + self._burn_in) % self._state_period == 0)
            self._state_age = age + valid[t]
        steps, columns = np.nonzero(wanted)
        return columns, steps


def _experience(
    unroll: Unroll,
    columns: Array,
    steps: Array,
    priorities: Array,
    places: tuple[Array, Array] | None = None,
    states: list[RecurrentState] | None = None,
) -> Experience:
    state: RecurrentState = ()
    none: Array = np.zeros(0, dtype=np.int64)
    state_columns, state_steps = places or (none, none)
    if places and states:
        kinds = zip(*states, strict=True)  # for each kind of recurrent state, one tensor per step
        state = tuple(_picked(kind, state_steps, state_columns) for kind in kinds)
    return Experience(
        unroll=unroll,
        item_column=torch.from_numpy(columns),
        item_step=torch.from_numpy(steps),
        priority=torch.from_numpy(priorities.astype(np.float32)),
        state_column=torch.from_numpy(state_columns),
        state_step=torch.from_numpy(state_steps),
        state=state,
    )


def _picked(parts: tuple[Tensor, ...], steps: Array, columns: Array) -> Tensor:
    rows = [parts[step][column].cpu() for step, column in zip(steps, columns, strict=True)]
    return torch.stack(rows) if rows else parts[0][:0].cpu().clone()
