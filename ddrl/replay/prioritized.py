"""Prioritized replay: a history of steps, a sum tree of its items' priorities, and a limiter of samples per insert.

Schaul et al. 2016: an item is drawn with probability p^alpha / sum p^alpha and weighs (N P)^-beta, scaled by the
largest weight of its batch. The oldest steps make room, stream by stream (Horgan et al. 2018: first in, first out).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ddrl.errors import UserError
from ddrl.replay.items import Drawing, Drawn
from ddrl.replay.rate_limiter import Limiter
from ddrl.replay.replay_config import ReplayRule
from ddrl.replay.step_storage import History
from ddrl.replay.sum_tree import SumTree
from ddrl.system.closable_condition import ClosableCondition
from ddrl.system.seeding import generator_state, set_generator_state
from ddrl.system.wait_clock import WaitClock
from ddrl.types import Array, Experience, Metrics

LEAST_PRIORITY = 1e-6
"""Smallest priority, so that every item can be drawn (Schaul et al. 2016, section 3.3: epsilon, without a value)."""

ITEM_BYTES = 3 * 8
"""Bytes of an item in a checkpoint: its place, its step and its weight in the tree."""


class PrioritizedReplay:
    """The store of Ape-X and R2D2. Actors insert, one thread draws; they block each other for moments only."""

    def __init__(self, rule: ReplayRule, history: History, generator: np.random.Generator) -> None:
        self._rule = rule
        self._history = history
        self._generator = generator
        self._tree = SumTree(history.num_streams * history.length)
        self._item_step = np.full(self._tree.capacity, -1, dtype=np.int64)
        self._evicted = np.zeros(history.num_streams, dtype=np.int64)
        self.limiter = Limiter(rule.min_size, rule.samples_per_insert, rule.error_buffer, rule.batch_size)
        self.capacity = self._tree.capacity
        """Steps that it holds when it is full."""
        self.size = 0
        """Items that can be drawn."""
        self.inserted_steps = 0
        """Agent steps so far, without dead ones."""
        self._largest = 1.0
        """The largest priority so far, at least 1; only kept where new items get it."""
        self._writers: set[int] = set()
        self._frozen = False
        self._changed = ClosableCondition()
        self._insert_clock, self._sample_clock = WaitClock(), WaitClock()

    @property
    def nbytes(self) -> int:
        """Memory when it is full."""
        return self._history.nbytes + self._tree.nbytes + self._item_step.nbytes

    @property
    def insert_waited(self) -> float:
        """Seconds that actors waited for the learner, over all of them."""
        return self._insert_clock.seconds

    @property
    def sample_waited(self) -> float:
        """Seconds that the learner waited for actors."""
        return self._sample_clock.seconds

    def take_gauges(self) -> Metrics:
        """Return the metrics that are recorded: items, steps, samples per insert, bytes per step."""
        with self._changed:
            return {
                "replay_items": float(self.size),
                "replay_steps": float((self._history.written - self._history.oldest).sum()),
                "replay_samples_per_insert": self.limiter.samples_per_insert,
                "replay_bytes_per_step": self.nbytes / self.capacity,
            }

    def __str__(self) -> str:
        size = self.nbytes
        return f"replay: {self.capacity:,} steps of {size / self.capacity:,.0f} bytes, {size / 1e9:.3g} GB when full"

    # Inserting ------------------------------------------------------------------------------------------------------

    def can_insert(self) -> bool:
        """Return whether `insert` would return at once."""
        return self.limiter.can_insert() and not self._frozen

    def insert(self, experience: Experience) -> None:
        """Add an unroll and the items that became complete with it; wait while the learner is behind.

        Raise Closed once the run is over. Raise UserError for a priority that is negative or no number, and where the
        replay is full and will never hold the minimum number of items.
        """
        priorities = _checked(experience.priority, "an actor")
        history, unroll = self._history, experience.unroll
        writer = int(unroll.actor[0])  # a replacement of a lost actor may insert before the lost one is through
        with self._changed:
            self._changed.wait_until(lambda: self.can_insert() and writer not in self._writers, self._insert_clock)
            place = history.reserve(unroll)
            self._writers.add(writer)
            self._evict(place.streams)
            self._exclude(place.streams, ~unroll.start[0].numpy())
        history.write(place, experience)
        with self._changed:
            begun = history.written[place.streams]
            history.commit(place)
            columns = experience.item_column.numpy()
            if self._rule.first_priority == "largest":
                priorities = np.full_like(priorities, self._largest)
            added = self._add(place.streams[columns], begun[columns] + experience.item_step.numpy(), priorities)
            self.inserted_steps += int(unroll.valid.sum())
            self.limiter.insert(added, self.size)
            self._writers.remove(writer)
            self._changed.notify_all()
            self._check_minimum()

    def _evict(self, streams: Array) -> None:
        """Remove the items that need steps which the history has given up."""
        history, gone = self._history, []
        for stream in streams:
            first = min(history.oldest[stream] + self._rule.cut.before, history.written[stream])
            if first > self._evicted[stream] and history.oldest[stream] > 0:
                gone.append(history.slots(stream, np.arange(self._evicted[stream], first)))
                self._evicted[stream] = first
        if gone:
            slots = np.concatenate(gone)
            self.size -= int((self._tree[slots] > 0).sum())
            self._tree.set(slots, np.zeros(len(slots)))

    def _exclude(self, streams: Array, amid_episode: Array) -> None:
        """Exclude items that would need steps from before a new stream's first one, where that is amid an episode.

        This happens where an actor goes on and the replay is refilled. A prefix is filled up with an episode's first
        step, but a stream's first step cannot stand for lost ones: recurrent state is not zero before it.
        """
        new = streams[amid_episode & (self._history.written[streams] == 0)]
        self._evicted[new] = self._rule.cut.before

    def _add(self, streams: Array, steps: Array, priorities: Array) -> int:
        """Add items with their priorities; return how many were added."""
        kept = steps >= self._evicted[streams]  # the others lost a step before they were complete, or are excluded
        slots, steps = self._history.slots(streams[kept], steps[kept]), steps[kept]
        self._item_step[slots] = steps
        self.size += int((self._tree[slots] == 0).sum())
        self._tree.set(slots, self._weights(priorities[kept]))
        return len(slots)

    def _weights(self, priorities: Array) -> Array:
        weights: Array = np.maximum(priorities, LEAST_PRIORITY).astype(np.float64) ** self._rule.priority_exponent
        return weights

    def _check_minimum(self) -> None:
        """Raise UserError where the replay is full and too small for the minimum number of items."""
        history = self._history
        if self.limiter.offset is None and (history.written >= 2 * history.length).all():
            if self.size >= self._rule.min_size:  # a refill: there is no room for as many items as before
                self.limiter.begin()
                return
            raise UserError(
                f"the replay is full with {self.size:,} items in {self.capacity:,} steps, and {self._rule.min_size:,} "
                "must be there before any is drawn: raise hyperparameters.replay_capacity, or lower "
                "hyperparameters.min_replay_size"
            )

    # Drawing --------------------------------------------------------------------------------------------------------

    def can_sample(self, count: int) -> bool:
        """Return whether `sample(count)` would return at once."""
        return self.limiter.can_sample(count) and self.size > 0 and not self._frozen

    def sample(self, count: int) -> Drawing:
        """Draw `count` items, independently and with replacement; wait while actors are behind.

        Raise Closed once the run is over.
        """
        history = self._history
        with self._changed:
            self._changed.wait_until(lambda: self.can_sample(count), self._sample_clock)
            self.limiter.sample(count)
            slots, steps, probabilities = self._draw(count)
            size, inserted = self.size, self.inserted_steps
            self._changed.notify_all()
        while True:
            weights = (size * probabilities) ** -self._rule.importance_exponent
            drawn = Drawn(
                weight=torch.from_numpy(weights / weights.max()).float(),
                slot=torch.from_numpy(slots),
                step=torch.from_numpy(steps),
                inserted_steps=inserted,
            )
            streams = slots // history.length
            drawing = self._rule.cut.gather(history, streams, steps, drawn)
            with self._changed:
                lost = np.flatnonzero(steps < self._evicted[streams])
                if not len(lost):
                    return drawing
                # Overwritten while they were copied: rare, since the ring is long.
                self._changed.wait_until(lambda: self.size > 0 and not self._frozen, self._sample_clock)
                slots, steps, probabilities = slots.copy(), steps.copy(), probabilities.copy()
                slots[lost], steps[lost], probabilities[lost] = self._draw(len(lost))

    def _draw(self, count: int) -> tuple[Array, Array, Array]:
        slots = self._tree.sample(count, self._generator)
        return slots, self._item_step[slots], self._tree[slots] / self._tree.total

    def update(self, drawn: Drawn, priorities: Tensor) -> None:
        """Give items new priorities [B]; skip those that are no longer in the replay.

        Raise UserError for a priority that is negative or no number.
        """
        new, slots, steps = _checked(priorities, "the learner"), drawn.slot.cpu().numpy(), drawn.step.cpu().numpy()
        with self._changed:
            present = (self._item_step[slots] == steps) & (self._tree[slots] > 0)
            self._tree.set(slots[present], self._weights(new[present]))
            if self._rule.first_priority == "largest":
                self._largest = max(self._largest, float(new.max(initial=0.0)))

    def probabilities(self) -> tuple[Array, Array, Array]:
        """Return streams [N], first steps [N] and probabilities [N] of all items."""
        with self._changed:
            weights = self._tree[np.arange(self._tree.capacity)]
            slots = np.flatnonzero(weights)
            return slots // self._history.length, self._item_step[slots], weights[slots] / self._tree.total

    # Ends and state -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End every wait with Closed."""
        self._changed.close()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Block inserts and draws within the block, so that what `state_dict` refers to can be saved."""
        with self._changed:
            self._frozen = True
            self._changed.wait_for(lambda: not self._writers)
        try:
            yield
        finally:
            with self._changed:
                self._frozen = False
                self._changed.notify_all()

    def state_dict(self, *, contents: bool = True) -> dict[str, Any]:
        """Return counters and generator; with `contents` also steps and priorities, by reference (see `frozen`)."""
        state: dict[str, Any] = {
            "steps": self.inserted_steps,
            "size": self.size,
            "limiter": self.limiter.state_dict(),
            "generator": generator_state(self._generator),
        }
        if self._rule.first_priority == "largest":
            state["largest"] = self._largest
        if contents:
            slots = np.flatnonzero(self._item_step >= 0)
            state["history"] = self._history.state_dict()
            state["items"] = [torch.from_numpy(part) for part in (slots, self._item_step[slots], self._tree[slots])]
            state["evicted"] = torch.from_numpy(self._evicted.copy())
        return state

    def load_state_dict(self, state: dict[str, Any]) -> int | None:
        """Continue where `state` was taken.

        Where it has no contents, allow no draws until as many items are there again as before, and return how many.
        """
        self.inserted_steps = state["steps"]
        set_generator_state(self._generator, state["generator"])
        self._largest = float(state.get("largest", 1.0))
        if "history" not in state:
            wanted = max(self._rule.min_size, int(state["size"]))
            self.limiter.refill(self.size, wanted)
            return wanted
        self.limiter.load_state_dict(state["limiter"])
        self._history.load_state_dict(state["history"])
        slots, steps, weights = (part.numpy() for part in state["items"])
        self._item_step[:] = -1
        self._item_step[slots] = steps
        self._tree.set(np.arange(self._tree.capacity), np.zeros(self._tree.capacity))
        self._tree.set(slots, weights)
        self._evicted[:] = state["evicted"].numpy()
        self.size = int(state["size"])
        return None


def _checked(priorities: Tensor, source: str) -> Array:
    """Return priorities as an array. Raise UserError where one is negative, infinite or no number."""
    values: Array = priorities.detach().cpu().numpy()
    wrong = ~(np.isfinite(values) & (values >= 0))
    if wrong.any():
        raise UserError(f"replay: {source} gave the priority {values[wrong][0]}; allowed: 0 and above, and finite")
    return values
