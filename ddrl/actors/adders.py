"""What an actor makes of its unrolls for a replay: items with first priorities, from temporal-difference errors.

An error of n steps needs the values n steps later, which the actor computes anyway when it acts there. So items follow
n steps behind the unrolls, and sequences until they are whole.
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


class Judged(NamedTuple):
    """Errors of T steps of B columns, `n` steps behind an unroll; arrays [T, B]."""

    error: Array
    """float32, absolute."""
    valid: Array
    start: Array
    over: Array
    """The episode's last steps (see `ddrl.types`)."""


class Judge:
    """Computes the errors of an actor's steps as soon as the values n steps later are known."""

    def __init__(self, n: int, errors: ErrorFunction) -> None:
        self._n = n
        self._errors = errors
        self._tail: dict[str, Tensor] = {}

    def judge(self, unroll: Unroll) -> Judged:
        """The errors of the steps -n .. T - n - 1 of an unroll; before the first one there are no valid steps."""
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
        # Also before a dead step without an end: the environment was lost there (`ddrl.types`, abandoned episodes).
        over = torch.cat([valid[:-1] & (~valid[1:] | steps["start"][1:]), torch.zeros_like(valid[:1])])
        ended = steps["terminated"] | steps["truncated"] | over
        last = slice(None, -1)
        error = self._errors(q, steps["action"][last], steps["reward"][last], steps["terminated"][last], ended[last])
        judged = slice(None, unroll.length)
        parts = (error.abs()[judged], valid[judged], steps["start"][judged], over[judged])
        return Judged(*(part.numpy() for part in parts))

    def state_dict(self) -> dict[str, Any]:
        """The steps that wait for values."""
        return dict(self._tail)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues where `state` was taken."""
        self._tail = dict(state)


class Items(Protocol):
    """Makes items of an actor's unrolls."""

    @property
    def keeps_states(self) -> bool:
        """Whether it wants the recurrent state before each step."""

    def make(self, unroll: Unroll, states: list[RecurrentState]) -> Experience:
        """The unroll with the items that became whole; `states` are those before each of its steps, if wanted."""

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs to continue with the same bits."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues where `state` was taken."""


class TransitionItems:
    """Every step is an item; its priority is its absolute error (Horgan et al. 2018, section 3)."""

    keeps_states = False

    def __init__(self, n: int, errors: ErrorFunction) -> None:
        self._n = n
        self._judge = Judge(n, errors)
        self.state_dict = self._judge.state_dict
        self.load_state_dict = self._judge.load_state_dict

    def make(self, unroll: Unroll, states: list[RecurrentState]) -> Experience:
        """See `Items`."""
        judged = self._judge.judge(unroll)
        steps, columns = np.nonzero(judged.valid)
        return _experience(unroll, columns, steps - self._n, judged.error[steps, columns])


class SequenceItems:
    """Sequences of `length` steps, one every `period` steps of an episode; the last one ends with it and may be short.

    Kapturowski et al. 2019, section 2.3. A sequence that lies within another is left out. Recurrent states are kept
    `burn_in` steps before a sequence begins, where the episode is that old, or before every step; where an episode
    begins the state is zero.
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
        """`priority`: (errors [T, B], valid [T, B]) -> [B]; `every_state`: not only where a burn-in begins."""
        self._n, self._length, self._period, self._burn_in = n, length, period, burn_in
        self._judge = Judge(n, errors)
        self._priority = priority
        self.keeps_states = keeps_states
        self._state_period = 1 if every_state else period
        self._errors: Array = np.zeros((length, 0), dtype=np.float32)
        self._age: Array = np.zeros(0, dtype=np.int64)
        self._begun: Array = np.zeros(0, dtype=np.int64)
        self._state_age: Array = np.zeros(0, dtype=np.int64)

    def make(self, unroll: Unroll, states: list[RecurrentState]) -> Experience:
        """See `Items`."""
        if not len(self._age):
            self._errors = np.zeros((self._length, unroll.batch_size), dtype=np.float32)
            self._age, self._begun, self._state_age = (np.zeros(unroll.batch_size, dtype=np.int64) for _ in range(3))
        whole = self._whole_sequences(self._judge.judge(unroll))
        columns, steps, lengths = (np.array([item[part] for item in whole], dtype=np.int64) for part in range(3))
        errors = np.array([item[3] for item in whole], dtype=np.float32).reshape(-1, self._length)
        valid = torch.arange(self._length).unsqueeze(-1) < torch.from_numpy(lengths)
        priorities: Array = self._priority(torch.from_numpy(errors).T, valid).numpy()
        places = self._state_places(unroll) if self.keeps_states else None
        return _experience(unroll, columns, steps - self._n, priorities, places, states)

    def state_dict(self) -> dict[str, Any]:
        """Errors of the sequences under way, and how old the episodes are."""
        arrays = (self._errors, self._age, self._begun, self._state_age)
        return {"judge": self._judge.state_dict(), "arrays": [torch.from_numpy(array.copy()) for array in arrays]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues where `state` was taken."""
        self._judge.load_state_dict(state["judge"])
        self._errors, self._age, self._begun, self._state_age = (array.numpy().copy() for array in state["arrays"])

    def _whole_sequences(self, judged: Judged) -> list[tuple[int, int, int, Array]]:
        """(column, step of the errors, length, errors [m]) of each sequence that ends there."""
        length, period, found = self._length, self._period, []
        everywhere = np.arange(len(self._age))
        for t, (error, valid, start, over) in enumerate(zip(*judged, strict=True)):
            self._age = np.where(start, 0, self._age)
            self._begun = np.where(start, 0, self._begun)
            self._errors[self._age % length, everywhere] = np.where(valid, error, 0.0)
            self._age = self._age + valid  # steps of the episode so far, this one with it
            whole = valid & (over | (self._age - self._begun == length))
            for column in np.flatnonzero(whole):
                begun, steps = int(self._begun[column]), int(self._age[column] - self._begun[column])
                order = np.arange(begun, begun + length) % length
                found.append((int(column), t - steps + 1, steps, self._errors[order, column]))
            self._begun = np.where(whole, self._begun + period, self._begun)
        return found

    def _state_places(self, unroll: Unroll) -> tuple[Array, Array]:
        """Columns and steps of the unroll, before which states are kept."""
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
        kinds = zip(*states, strict=True)  # of recurrent state: each a tensor a step
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
