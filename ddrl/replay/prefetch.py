"""A queue whose next batch is made ready by a thread of its own, while the learner trains with the one before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from ddrl.replay.items import Drawing
from ddrl.system.closable_condition import ClosableCondition
from ddrl.system.cuda_streams import SideStream, StreamEvent
from ddrl.system.wait_clock import WaitClock
from ddrl.types import Unroll

Batch = Unroll | Drawing


class Store(Protocol):
    """A queue or a replay."""

    @property
    def insert_waited(self) -> float:
        """Seconds that actors waited for room, over all of them."""

    def can_insert(self) -> bool:
        """Return whether `insert` would return at once."""

    def insert(self, experience: Any, /) -> None:
        """Add what actors send; wait while there is no room."""

    def sample(self, columns: int, /) -> Batch:
        """Take or draw a batch; wait until there is one."""

    def close(self) -> None:
        """End every wait with Closed."""


class Prefetch:
    """A queue that wraps another, and a role: one call of `step` makes one batch ready.

    At most one batch waits here, besides what waits in the queue, so the policy lag grows by up to one update. Batches
    are the queue's own, in its order. For a GPU they are in pinned memory, which it can copy from directly; with
    `upload` they are on the GPU already, copied in a stream beside that of the training.
    """

    def __init__(
        self,
        queue: Store,
        columns: int,
        device: torch.device,
        *,
        upload: bool,
        update: Callable[[Any, torch.Tensor], None] | None = None,
    ) -> None:
        """`queue`: a queue or a replay, with its `update`. `columns`: of a batch. `device`: the learner's."""
        self._queue = queue
        self._columns = columns
        self._device = device
        self._upload = upload
        self._stream = SideStream(device)
        self._batch: tuple[Batch, StreamEvent] | None = None
        self._changed = ClosableCondition()
        self._sample_clock = WaitClock()
        self.can_insert, self.insert, self.update = queue.can_insert, queue.insert, update

    @property
    def insert_waited(self) -> float:
        """Seconds that actors waited for room, over all of them."""
        return self._queue.insert_waited

    @property
    def sample_waited(self) -> float:
        """Seconds that the learner waited for batches."""
        return self._sample_clock.seconds

    def can_sample(self, columns: int) -> bool:
        """Return whether `sample` would return at once."""
        return self._batch is not None

    def sample(self, columns: int) -> Any:
        """Take the batch that is ready; wait for it. Raise Closed once the run is over."""
        assert columns == self._columns
        with self._changed:
            self._changed.wait_until(lambda: self._batch is not None, self._sample_clock)
            assert self._batch is not None
            (batch, made), self._batch = self._batch, None
            self._changed.notify_all()
        made.wait(batch.tensors)
        return batch

    def step(self) -> None:
        """Make the next batch ready, then wait until the one before is taken. Raise Closed once the run is over."""
        ready = self._prepared(self._queue.sample(self._columns))
        with self._changed:
            self._changed.wait_until(lambda: self._batch is None)
            self._batch = ready
            self._changed.notify_all()

    def _prepared(self, batch: Batch) -> tuple[Batch, StreamEvent]:
        if self._device.type == "cuda":
            batch = batch.pin_memory()
        with self._stream.running():
            return batch.to(self._device) if self._upload else batch, StreamEvent(self._device)

    def close(self) -> None:
        """End every wait with Closed."""
        self._queue.close()
        self._changed.close()

    def state_dict(self) -> dict[str, Any]:
        """Raise RuntimeError: only runtime serial saves waiting batches, and it prefetches none."""
        raise RuntimeError("what is prefetched cannot be saved")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raise RuntimeError, as `state_dict`."""
        raise RuntimeError("what is prefetched cannot be saved")
