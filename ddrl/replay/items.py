"""The items that are drawn from a prioritized replay: transitions of several steps, or sequences with a burn-in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, Self, TypeVar

import torch
from torch import Tensor

from ddrl.replay.step_storage import History
from ddrl.types import Array, RecurrentState


@dataclass(frozen=True)
class Drawn:
    """Importance weights and places of B drawn items."""

    weight: Tensor  # [B] float32: importance weight
    slot: Tensor  # [B] int64: with `step` it identifies the item, for new priorities
    step: Tensor  # [B] int64
    inserted_steps: int
    """Agent steps that the replay has been given so far, without dead ones."""


@dataclass(frozen=True)
class Transitions:
    """B transitions of up to n steps; an episode that ends sooner makes them shorter."""

    observation: Tensor  # [B, ...]
    action: Tensor  # [B] int64
    reward: Tensor  # [n, B] float32, raw; 0 after the last step
    steps: Tensor  # [B] int64: 1 to n
    terminated: Tensor  # [B] bool: nothing follows
    ended: Tensor  # [B] bool: the episode ends with the last step: terminated, or cut
    next_observation: Tensor  # [B, ...]: after the last step
    version: Tensor  # [1, B] int64: of the parameters that acted
    td_error: Tensor  # [B] float32: filled in by the loss
    drawn: Drawn

    @property
    def batch_size(self) -> int:
        return len(self.action)

    @property
    def tensors(self) -> list[Tensor]:
        return _tensors(self)

    def columns(self, start: int, stop: int) -> Self:
        """Return items start..stop-1 as views."""
        return _map(self, lambda tensor, axis: tensor.narrow(axis, start, stop - start))

    def to(self, device: torch.device) -> Self:
        return _map(self, lambda tensor, axis: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Self:
        """Return a copy in pinned memory, which a GPU can copy from directly."""
        return _map(self, lambda tensor, axis: tensor.pin_memory())


@dataclass(frozen=True)
class Sequences:
    """B sequences of one episode each: up to `burn_in` (l) steps, and then m trained ones.

    Where the episode began later the prefix is filled up with its first step, where it ended sooner the rest with its
    last observation. `start` is True where recurrent state must be zeroed: also throughout such a prefix. A prefix that
    was lost is never filled up: its sequence is no item (`PrioritizedReplay`).
    """

    observation: Tensor  # [l + m + 1, B, ...]
    last_action: Tensor  # [l + m + 1, B] int64
    last_reward: Tensor  # [l + m + 1, B] float32, raw
    start: Tensor  # [l + m + 1, B] bool
    action: Tensor  # [m, B] int64
    reward: Tensor  # [m, B] float32, raw
    terminated: Tensor  # [m, B] bool
    ended: Tensor  # [m, B] bool: terminated or truncated; the episode's last step, unless a lost life rolls on
    valid: Tensor  # [m, B] bool: steps of the episode
    version: Tensor  # [m, B] int64: of the parameters that acted
    state: RecurrentState  # each [B, ...]: before the prefix; empty where it begins with zeros
    first_state: RecurrentState  # each [B, ...]: the actor's, before the first trained step; empty unless measured
    last_state: RecurrentState  # likewise, before the episode's last step among the trained ones
    td_error: Tensor  # [m, B] float32: filled in by the loss
    drawn: Drawn

    @property
    def batch_size(self) -> int:
        return int(self.action.shape[1])

    @property
    def burn_in(self) -> int:
        return len(self.observation) - len(self.action) - 1

    @property
    def tensors(self) -> list[Tensor]:
        return _tensors(self)

    def columns(self, start: int, stop: int) -> Self:
        """Return sequences start..stop-1 as views."""
        return _map(self, lambda tensor, axis: tensor.narrow(axis, start, stop - start))

    def to(self, device: torch.device) -> Self:
        return _map(self, lambda tensor, axis: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Self:
        """Return a copy in pinned memory, which a GPU can copy from directly."""
        return _map(self, lambda tensor, axis: tensor.pin_memory())


Drawing = Transitions | Sequences
Kind = TypeVar("Kind", bound=Drawing)


def _map(batch: Kind, function: Callable[[Tensor, int], Tensor]) -> Kind:
    """Return a batch of `function(tensor, axis of the items)` for every tensor."""
    changed: dict[str, Any] = {}
    for field in fields(batch):
        value = getattr(batch, field.name)
        if isinstance(value, Tensor):
            time_major = isinstance(batch, Sequences) or field.name in ("reward", "version")
            changed[field.name] = function(value, int(time_major))
        elif isinstance(value, tuple):
            changed[field.name] = tuple(function(part, 0) for part in value)
        else:
            drawn = {name: function(getattr(value, name), 0) for name in ("weight", "slot", "step")}
            changed["drawn"] = replace(value, **drawn)
    return replace(batch, **changed)


def _tensors(batch: Drawing) -> list[Tensor]:
    found: list[Tensor] = []

    def keep(tensor: Tensor, axis: int) -> Tensor:
        found.append(tensor)
        return tensor

    _map(batch, keep)
    return found


class Cut(Protocol):
    """How items are cut from a history."""

    @property
    def before(self) -> int:
        """Largest number of steps that an item needs before its first trained step."""

    @property
    def reach(self) -> int:
        """Largest number of steps from there to the observation that an item bootstraps from."""

    def gather(self, history: History, streams: Array, steps: Array, drawn: Drawn) -> Drawing:
        """Copy the items whose first trained steps are `steps` [B] of `streams` [B]."""


@dataclass(frozen=True)
class TransitionCut:
    """Transitions of up to `n` steps."""

    n: int
    before: int = 0

    @property
    def reach(self) -> int:
        return self.n

    def gather(self, history: History, streams: Array, steps: Array, drawn: Drawn) -> Transitions:
        slots = _slots(history, streams, steps, range(self.n))
        ended = history.field("terminated", slots) | history.field("truncated", slots)
        lengths = _lengths(ended)
        here = torch.arange(self.n).unsqueeze(-1) < lengths
        columns = torch.arange(len(streams))
        after = torch.from_numpy(history.slots(streams, steps + lengths.numpy()))
        last = (lengths - 1, columns)
        return Transitions(
            observation=history.observations(slots[0]),
            action=history.field("action", slots[0]),
            reward=history.field("reward", slots).masked_fill(~here, 0.0),
            steps=lengths,
            terminated=history.field("terminated", slots)[last],
            ended=ended[last],
            next_observation=history.observations(after),
            version=history.field("version", slots[:1]),
            td_error=torch.zeros(len(streams)),
            drawn=drawn,
        )


@dataclass(frozen=True)
class SequenceCut:
    """Sequences of up to `length` trained steps after up to `before` steps of burn-in."""

    length: int
    before: int
    from_states: bool = True
    """True: the burn-in begins with the actor's recurrent state, where one was kept; else with zeros."""
    measured: bool = False
    """True: also return the actor's states within the trained steps."""

    @property
    def reach(self) -> int:
        return self.length

    def gather(self, history: History, streams: Array, steps: Array, drawn: Drawn) -> Sequences:
        trained = _slots(history, streams, steps, range(self.length))
        after = _slots(history, streams, steps, range(1, self.length + 1))
        terminated = history.field("terminated", trained)
        ended = terminated | history.field("truncated", trained)
        lengths = _lengths(~history.field("valid", after) | history.field("start", after))
        valid = torch.arange(self.length).unsqueeze(-1) < lengths
        first = history.first(trained[0])
        times = torch.from_numpy(steps) + torch.arange(-self.before, self.length + 1).unsqueeze(-1)
        times = torch.minimum(torch.maximum(times, first), torch.from_numpy(steps) + lengths)
        slots = torch.from_numpy(streams) * history.length + times % history.length
        return Sequences(
            observation=history.observations(slots),
            last_action=history.field("last_action", slots),
            last_reward=history.field("last_reward", slots),
            start=history.field("start", slots),
            action=history.field("action", trained),
            reward=history.field("reward", trained).masked_fill(~valid, 0.0),
            terminated=terminated & valid,
            ended=ended & valid,
            valid=valid,
            version=history.field("version", slots[self.before : -1]),
            state=history.states(slots[0]) if self.from_states else (),
            first_state=history.states(trained[0]) if self.measured else (),
            last_state=history.states(trained[lengths - 1, torch.arange(len(streams))]) if self.measured else (),
            td_error=torch.zeros(self.length, len(streams)),
            drawn=drawn,
        )


def _slots(history: History, streams: Array, steps: Array, offsets: range) -> Tensor:
    """Return the slots of the steps `offsets` after `steps`, [len(offsets), B]."""
    return torch.from_numpy(history.slots(streams, steps + torch.tensor(offsets).unsqueeze(-1).numpy()))


def _lengths(ended: Tensor) -> Tensor:
    """Return the steps up to and with the first that ended, [B]; all where none did. `ended` is [T, B]."""
    first = ended.int().argmax(dim=0)
    return torch.where(ended.any(dim=0), first + 1, ended.shape[0])
