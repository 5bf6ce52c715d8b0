"""The circular store of IMPACT (Luo et al. 2020, section 3.2): N slots, each batch is traversed K times, then replaced.

Order: a cursor goes round the slots. Where it stands on a batch, that batch is traversed; where it stands on an empty
slot, a fresh batch must be inserted first. A batch leaves its slot with its K-th traversal. This is the ring of the
authors' code (ray-project/ray, rllib/execution/minibatch_buffer.py: `MinibatchBuffer.get`). With N = K = 1 the store is
a queue.
"""

from __future__ import annotations

from typing import Any

from ddrl.types import Unroll


def first_use(batch: int, num_slots: int, num_traversals: int) -> int:
    """Return the number (from 0) of the sample that first traverses fresh batch number `batch` (from 0).

    Fresh batches come N at a time: N samples insert one each, then N (K - 1) samples insert none.
    """
    lap, slot = divmod(batch, num_slots)
    return lap * num_slots * num_traversals + slot


class CircularStore:
    """A ring of `num_slots` (N) batches, each sampled `num_traversals` (K) times; both at least 1.

    Batches are held by reference: what is stored must not be written to afterwards. One thread uses it.
    """

    def __init__(self, num_slots: int, num_traversals: int) -> None:
        self._slots: list[Unroll | None] = [None] * num_slots
        self._used = [0] * num_slots
        self._num_traversals = num_traversals
        self._cursor = 0
        self.inserted = 0
        """Batches inserted so far."""
        self.expired = 0
        """Batches that left after their last traversal."""
        self.sampled = 0
        """Traversals so far, over all batches."""

    def __len__(self) -> int:
        """Return the number of live batches: inserted and not yet expired."""
        return self.inserted - self.expired

    @property
    def needs_batch(self) -> bool:
        """True if `insert` must come before the next `sample`."""
        return self._slots[self._cursor] is None

    def insert(self, batch: Unroll) -> None:
        """Put a fresh batch into the slot at the cursor. Raise RuntimeError when a live batch is there."""
        if not self.needs_batch:
            raise RuntimeError(f"slot {self._cursor} holds a live batch: sample before the next insert")
        self._slots[self._cursor] = batch
        self.inserted += 1

    def sample(self) -> Unroll:
        """Return the batch at the cursor and move on. Raise RuntimeError when the slot is empty."""
        batch = self._slots[self._cursor]
        if batch is None:
            raise RuntimeError(f"slot {self._cursor} is empty: insert a fresh batch before the next sample")
        self._used[self._cursor] += 1
        if self._used[self._cursor] == self._num_traversals:
            self._slots[self._cursor] = None
            self._used[self._cursor] = 0
            self.expired += 1
        self._cursor = (self._cursor + 1) % len(self._slots)
        self.sampled += 1
        return batch

    def traversals(self) -> list[int]:
        """Return how often each live batch was traversed, in the order of the slots."""
        return [used for batch, used in zip(self._slots, self._used, strict=True) if batch is not None]

    def state_dict(self) -> dict[str, Any]:
        """Return the batches (copied), their traversals, the cursor and the counters."""
        return {
            "slots": [None if batch is None else batch.clone().as_dict() for batch in self._slots],
            "used": list(self._used),
            "cursor": self._cursor,
            "counters": [self.inserted, self.expired, self.sampled],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken, in a store of the same N and K. Raise ValueError on another N."""
        if len(state["slots"]) != len(self._slots):
            raise ValueError(f"the saved store has {len(state['slots'])} slots, this one {len(self._slots)}")
        self._slots = [None if batch is None else Unroll(**batch).clone() for batch in state["slots"]]
        self._used = list(state["used"])
        self._cursor = state["cursor"]
        self.inserted, self.expired, self.sampled = state["counters"]
