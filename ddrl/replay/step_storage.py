"""The last steps of every environment, each stored once; a prioritized replay cuts transitions and sequences from them.

A stream is one environment of one actor; its steps are counted from 0 and lie in a ring. An image is stored as its
newest frame, in a ring of frames: a stack of them is put together when it is asked for, also where an episode has just
begun, since an observation that does not continue the one before it is stored whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ddrl.types import Array, EnvSpec, Experience, RecurrentState, Unroll

EPISODE_STARTS = 16
"""A ring of frames has room for one whole stack in so many steps, besides a frame for each step."""

_FIELDS = {
    "reward": torch.float32,
    "terminated": torch.bool,
    "truncated": torch.bool,
    "valid": torch.bool,
    "start": torch.bool,
    "last_reward": torch.float32,
    "version": torch.int64,
}


class Reservation(NamedTuple):
    """Where an unroll is going to be written."""

    streams: Array  # [B]
    new_frames: Array  # [T, B]: how many frames each observation adds


class History:
    """`num_streams` rings of `length` steps. A stream has one writer; readers check twice that a step is there.

    A writer first calls `reserve`, then `write`. Between the two, and before, a reader may copy any step that is not
    older than `oldest`; if it is still not older afterwards, nothing has written there in between.
    """

    def __init__(
        self,
        spec: EnvSpec,
        num_streams: int,
        length: int,
        state_shapes: Sequence[tuple[int, ...]] = (),
        state_period: int = 1,
    ) -> None:
        """`state_shapes`: those of a recurrent state's parts. Kept states are at least `state_period` steps apart."""
        self.num_streams, self.length = num_streams, length
        self._stack = spec.frame_stack
        frame_shape = spec.observation_shape[1:] if self._stack > 1 else spec.observation_shape
        self._num_frames = length if self._stack == 1 else length + self._stack * (2 + length // EPISODE_STARTS)
        action = ((spec.action_size,), torch.float32) if spec.action_size else ((), torch.int64)
        steps = num_streams * length
        self._frames = torch.empty(
            (num_streams * self._num_frames, *frame_shape), dtype=getattr(torch, spec.observation_dtype)
        )
        self._fields = {name: torch.zeros(steps, dtype=dtype) for name, dtype in _FIELDS.items()}
        self._fields |= {name: torch.zeros((steps, *action[0]), dtype=action[1]) for name in ("action", "last_action")}
        self._frame = torch.zeros(steps, dtype=torch.int64)
        self._first = torch.zeros(steps, dtype=torch.int64)
        self._state_row = torch.full((steps if state_shapes else 0,), -1, dtype=torch.int32)
        self._state_rows = length // state_period + 2 if state_shapes else 0
        self._states = [torch.zeros((num_streams * self._state_rows, *shape)) for shape in state_shapes]
        self.written = np.zeros(num_streams, dtype=np.int64)
        """Steps of each stream so far, [S]."""
        self.oldest = np.zeros(num_streams, dtype=np.int64)
        """The oldest step of each stream that can be read, [S]."""
        self._frames_written = np.zeros(num_streams, dtype=np.int64)
        self._states_written = np.zeros(num_streams, dtype=np.int64)
        self._counters = (self.written, self.oldest, self._frames_written, self._states_written)
        self._last_stack = torch.zeros((num_streams, *spec.observation_shape), dtype=self._frames.dtype)

    @property
    def nbytes(self) -> int:
        """Memory when it is full."""
        tensors = [self._frames, self._frame, self._first, self._state_row, *self._fields.values(), *self._states]
        return sum(tensor.nbytes for tensor in tensors)

    def streams(self, unroll: Unroll) -> Array:
        """Return the streams of an unroll's columns, [B]; the columns of an actor are one after the other."""
        columns = unroll.batch_size
        streams: Array = int(unroll.actor[0]) * columns + np.arange(columns)
        return streams

    def slots(self, streams: Array, steps: Array) -> Array:
        """Return where steps of streams lie, in [0, num_streams x length)."""
        slots: Array = streams * self.length + steps % self.length
        return slots

    # Writing --------------------------------------------------------------------------------------------------------

    def reserve(self, unroll: Unroll) -> Reservation:
        """Give up the steps that `write` will overwrite. Raise ValueError for an unroll that does not fit a ring."""
        streams, steps = self.streams(unroll), unroll.length
        if steps > self.length:
            raise ValueError(f"an unroll of {steps} steps does not fit a ring of {self.length}")
        added = np.ones((steps, len(streams)), dtype=np.int64)
        if self._stack > 1:
            added = np.where(self._continues(unroll, streams), 1, self._stack)
            frames = added.sum(axis=0)
            if frames.max() > self._num_frames:
                raise ValueError(f"an unroll of {frames.max()} frames does not fit a ring of {self._num_frames}")
            self._give_up_frames(streams, frames)
        self.oldest[streams] = np.maximum(self.oldest[streams], self.written[streams] + steps - self.length)
        return Reservation(streams, added)

    def _give_up_frames(self, streams: Array, added: Array) -> None:
        """Give up the steps whose stacks need frames that will be overwritten."""
        kept_from = self._frames_written[streams] + added - self._num_frames
        for stream, frame in zip(streams, kept_from, strict=True):
            while self.oldest[stream] < self.written[stream]:
                slot = stream * self.length + self.oldest[stream] % self.length
                if int(self._frame[slot]) - (self._stack - 1) >= frame:
                    break
                self.oldest[stream] += 1

    def _continues(self, unroll: Unroll, streams: Array) -> Array:
        """Return whether each observation has the one before it among its older frames, [T, B]."""
        continues = np.empty((unroll.length, len(streams)), dtype=np.bool_)
        before = self._last_stack[torch.from_numpy(streams)].numpy()
        for t, now in enumerate(unroll.observation[:-1].numpy()):
            continues[t] = (now[:, :-1] == before[:, 1:]).all(axis=tuple(range(1, now.ndim)))
            before = now
        continues[0] &= self.written[streams] > 0
        return continues

    def write(self, place: Reservation, experience: Experience) -> None:
        """Write the first T observations and the T transitions of an unroll, and recurrent states; `commit` is next."""
        unroll, streams, length = experience.unroll, place.streams, experience.unroll.length
        steps = self.written[streams] + np.arange(length)[:, None]
        slots = torch.from_numpy(self.slots(streams, steps)).flatten()
        self._end_abandoned(unroll, streams)
        for name, field in self._fields.items():
            field[slots] = getattr(unroll, name)[:length].flatten(0, 1)
        self._write_observations(unroll, place, slots)
        self._first[slots] = torch.from_numpy(self._episode_starts(unroll, streams, steps)).flatten()
        if self._states:
            self._state_row[slots] = -1
            self._write_states(experience, streams)

    def _write_observations(self, unroll: Unroll, place: Reservation, slots: Tensor) -> None:
        observation, (streams, added) = unroll.observation[:-1], place
        if self._stack == 1:
            self._frames[slots] = observation.flatten(0, 1)
            return
        newest = self._frames_written[streams] + np.cumsum(added, axis=0) - 1
        self._frame[slots] = torch.from_numpy(newest).flatten()
        places = self._frame_places(streams, newest)
        self._frames[places.flatten()] = observation[:, :, -1].flatten(0, 1)
        for t, column in zip(*np.nonzero(added > 1), strict=True):
            whole = newest[t, column] - np.arange(self._stack - 1, -1, -1)
            self._frames[self._frame_places(streams[column], whole)] = observation[t, column]
        self._frames_written[streams] += added.sum(axis=0)
        self._last_stack[torch.from_numpy(streams)] = observation[-1]

    def _frame_places(self, streams: Array, frames: Array) -> Tensor:
        return torch.from_numpy(streams * self._num_frames + frames % self._num_frames)

    def _end_abandoned(self, unroll: Unroll, streams: Array) -> None:
        """Mark the last step before an unroll as truncated where the unroll begins dead without an end before it."""
        steps = self.written[streams] - 1
        slots = torch.from_numpy(self.slots(streams, np.maximum(steps, 0)))
        fields = self._fields
        ended = fields["terminated"][slots] | fields["truncated"][slots]
        cut = ~unroll.valid[0] & fields["valid"][slots] & ~ended & torch.from_numpy(steps >= 0)
        fields["truncated"][slots[cut]] = True

    def _episode_starts(self, unroll: Unroll, streams: Array, steps: Array) -> Array:
        """Return for each step the one with which its episode (or life) began, [T, B].

        That is step 0 where it began before the stream: a refilled replay excludes items that would need more.
        """
        before = self.slots(streams, np.maximum(self.written[streams] - 1, 0))
        running = np.where(self.written[streams] > 0, self._first.numpy()[before], 0)
        began = np.where(unroll.start[:-1].numpy(), steps, -1)
        starts: Array = np.maximum.accumulate(np.concatenate([running[None], began]), axis=0)[1:]
        return starts

    def _write_states(self, experience: Experience, streams: Array) -> None:
        columns, steps = experience.state_column.numpy(), experience.state_step.numpy()
        for column in np.unique(columns):
            chosen = np.flatnonzero(columns == column)
            chosen = chosen[np.argsort(steps[chosen], kind="stable")]
            stream = streams[column]
            numbers = self._states_written[stream] + np.arange(len(chosen))
            rows = torch.from_numpy(stream * self._state_rows + numbers % self._state_rows)
            slots = self.slots(stream, self.written[stream] + steps[chosen])
            self._state_row[torch.from_numpy(slots)] = rows.to(torch.int32)
            for kept, new in zip(self._states, experience.state, strict=True):
                kept[rows] = new[torch.from_numpy(chosen)]
            self._states_written[stream] += len(chosen)

    def commit(self, place: Reservation) -> None:
        """Let readers read the steps just written."""
        self.written[place.streams] += len(place.new_frames)

    # Reading --------------------------------------------------------------------------------------------------------

    def observations(self, slots: Tensor) -> Tensor:
        """Return the observations at slots [...]: [..., *observation_shape]."""
        flat = slots.flatten()
        if self._stack == 1:
            found = self._frames.index_select(0, flat)
        else:
            streams = flat.div(self.length, rounding_mode="floor")
            frames = self._frame[flat].unsqueeze(-1) + torch.arange(1 - self._stack, 1)
            places = streams.unsqueeze(-1) * self._num_frames + frames % self._num_frames
            found = self._frames.index_select(0, places.flatten())
            found = found.view(len(flat), self._stack, *found.shape[1:])
        return found.view(*slots.shape, *found.shape[1:])

    def field(self, name: str, slots: Tensor) -> Tensor:
        """Return a field of transitions, or `start`, `last_action` or `last_reward`, at slots [...]."""
        return self._fields[name][slots]

    def first(self, slots: Tensor) -> Tensor:
        """Return the step with which the episode of each slot's step began."""
        return self._first[slots]

    def states(self, slots: Tensor) -> RecurrentState:
        """Return recurrent states before the steps at slots [B], each [B, ...]: zeros where none was kept."""
        if not self._states:
            return ()
        rows = self._state_row[slots].long()
        none = (rows < 0).unsqueeze(-1)
        return tuple(part[rows.clamp(min=0)].masked_fill(none, 0.0) for part in self._states)

    # State ----------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return all contents, by reference where the rings are full: nothing may be written before they are saved."""
        return {
            "counters": [torch.from_numpy(counter.copy()) for counter in self._counters],
            "tensors": {name: self._used(tensor, count) for name, (tensor, count) in self._tensors().items()},
            "last_stack": self._last_stack,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken, in a history of the same shape."""
        for own, saved in zip(self._counters, state["counters"], strict=True):
            own[:] = saved.numpy()
        for name, (tensor, count) in self._tensors().items():
            self._rings(tensor)[:, :count] = state["tensors"][name]
        self._last_stack.copy_(state["last_stack"])

    def _tensors(self) -> dict[str, tuple[Tensor, int]]:
        """Return name -> tensor [streams x ring, ...], and how many places of each stream's ring have been used."""
        steps = int(min(self.length, self.written.max()))
        frames = steps if self._stack == 1 else int(min(self._num_frames, self._frames_written.max()))
        states = int(min(self._state_rows, self._states_written.max()))
        tensors = {"frames": (self._frames, frames), "frame": (self._frame, steps), "first": (self._first, steps)}
        tensors |= {name: (field, steps) for name, field in self._fields.items()}
        if self._states:
            tensors["state_row"] = (self._state_row, steps)
            tensors |= {f"state_{i}": (part, states) for i, part in enumerate(self._states)}
        return tensors

    def _rings(self, tensor: Tensor) -> Tensor:
        return tensor.view(self.num_streams, -1, *tensor.shape[1:])

    def _used(self, tensor: Tensor, count: int) -> Tensor:
        """Return the first `count` places of each stream; a view where that is all, since it may be large."""
        rings = self._rings(tensor)
        return rings if count == rings.shape[1] else rings[:, :count].clone()
