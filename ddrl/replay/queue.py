"""The queue of algorithms that learn from fresh batches: each column once, in order. It is bounded and blocks."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from ddrl.system.closable_condition import ClosableCondition
from ddrl.system.wait_clock import WaitClock
from ddrl.types import Unroll, concatenate

if TYPE_CHECKING:
    import torch


class UnrollQueue:
    """A queue of unrolls from which batches of columns are taken, first in, first out.

    `ordered_actors` None: in order of arrival; at most `capacity` unrolls wait, then `insert` blocks (asynchronous).
    `ordered_actors` N: in rounds of (unroll index, actor 0..N-1), whatever the order of arrival, so that a synchronous
    batch is the same in every runtime; here the schedule bounds how many unrolls wait, not `capacity`.
    `lent_memory`: the learner may neither keep nor write to the unrolls' memory, so batches are always copies.
    """

    def __init__(self, *, capacity: int, ordered_actors: int | None = None, lent_memory: bool = False) -> None:
        self._capacity = capacity
        self._lent_memory = lent_memory
        self._ordered_actors = ordered_actors
        self._early: dict[tuple[int, int], Unroll] = {}
        self._round = (0, 0)
        self._ready: deque[Unroll] = deque()
        self._columns = 0
        self._head_is_partial = False
        self._changed = ClosableCondition()
        self._insert_clock = WaitClock()
        self._sample_clock = WaitClock()

    def __len__(self) -> int:
        return len(self._ready) + len(self._early)

    @property
    def insert_waited(self) -> float:
        """Seconds that actors waited for room, over all of them."""
        return self._insert_clock.seconds

    @property
    def sample_waited(self) -> float:
        """Seconds that the learner waited for unrolls."""
        return self._sample_clock.seconds

    def can_insert(self) -> bool:
        """Return whether `insert` would return at once."""
        # What is left of a partly used unroll takes no room: it alone may be too little for a batch.
        return self._ordered_actors is not None or len(self._ready) - self._head_is_partial < self._capacity

    def insert(self, unroll: Unroll) -> None:
        """Add an unroll; wait while the queue is full. Raise Closed once the run is over."""
        with self._changed:
            self._changed.wait_until(self.can_insert, self._insert_clock)
            if self._ordered_actors is None:
                self._append(unroll)
            else:
                self._early[int(unroll.index[0]), int(unroll.actor[0])] = unroll
                while self._round in self._early:
                    self._append(self._early.pop(self._round))
                    index, actor = self._round
                    self._round = (index, actor + 1) if actor + 1 < self._ordered_actors else (index + 1, 0)
            self._changed.notify_all()

    def can_sample(self, columns: int) -> bool:
        """Return whether `sample(columns)` would return at once."""
        return self._columns >= columns

    def sample(self, columns: int) -> Unroll:
        """Take the oldest `columns` columns; wait until there are so many. Raise Closed once the run is over."""
        with self._changed:
            self._changed.wait_until(lambda: self.can_sample(columns), self._sample_clock)
            parts: list[Unroll] = []
            missing = columns
            while missing:
                unroll = self._ready.popleft()
                taken = min(missing, unroll.batch_size)
                self._head_is_partial = taken < unroll.batch_size
                if self._head_is_partial:
                    self._ready.appendleft(unroll.columns(taken, unroll.batch_size))
                    unroll = unroll.columns(0, taken)
                parts.append(unroll)
                missing -= taken
            self._columns -= columns
            self._changed.notify_all()
        batch = concatenate(parts)
        return batch.clone() if self._lent_memory and len(parts) == 1 else batch

    def close(self) -> None:
        """End every wait with Closed."""
        self._changed.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the unrolls that wait (copied), and where the next round begins."""
        return {
            "round": list(self._round),
            "head_is_partial": self._head_is_partial,
            "ready": [unroll.clone().as_dict() for unroll in self._ready],
            "early": [unroll.clone().as_dict() for unroll in self._early.values()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the unrolls that waited in `state`."""
        self._round = (state["round"][0], state["round"][1])
        self._head_is_partial = state["head_is_partial"]
        self._ready = deque(Unroll(**fields) for fields in state["ready"])
        self._columns = sum(unroll.batch_size for unroll in self._ready)
        early = [Unroll(**fields) for fields in state["early"]]
        self._early = {(int(unroll.index[0]), int(unroll.actor[0])): unroll for unroll in early}

    def move(self, device: torch.device) -> None:
        """Move the unrolls that wait to `device`, where those that come will be: a batch is on one device."""
        self._ready = deque(unroll.to(device) for unroll in self._ready)
        self._early = {place: unroll.to(device) for place, unroll in self._early.items()}

    def _append(self, unroll: Unroll) -> None:
        self._ready.append(unroll)
        self._columns += unroll.batch_size
