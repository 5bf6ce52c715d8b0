"""When may an actor begin its next unroll? The schedule, as one rule on versions.

Under the synchronous and bounded-lag schedules the store hands out columns in rounds (unroll index, then actor), so the
k-th unrolls of all actors are columns k*C .. (k+1)*C-1 of the stream (C columns a round), and the last of them is
in fresh batch j = ((k+1)*C - 1) // F (F columns a fresh batch). The algorithm says which update uses that batch first:
update j where every batch is used once, a later one where batches are used several times. Acting with at least that
version minus L therefore bounds the lag of the first use by L.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Gate:
    """`max_lag` None: asynchronous; 0: synchronous; L: bounded lag."""

    max_lag: int | None
    columns_per_round: int
    """Actors x environments per actor."""
    columns_per_batch: int
    """Columns of one fresh batch."""
    first_update: Callable[[int], int]
    """Index of the update that first uses a fresh batch, by the index of the batch."""

    def needed_version(self, unroll_index: int, since: int = 0) -> int:
        """The parameters' version that must be published before an actor begins its unroll `unroll_index`.

        Unrolls are counted from the version `since`, at which the rounds began (anew, when a run was resumed).
        """
        if self.max_lag is None:
            return 0
        batch = ((unroll_index + 1) * self.columns_per_round - 1) // self.columns_per_batch
        return max(0, self.first_update(self._batches_before(since) + batch) - self.max_lag)

    def _batches_before(self, version: int) -> int:
        """How many fresh batches the first `version` updates have used; batch b is used no sooner than in update b."""
        return bisect_left(range(version + 1), version, key=self.first_update) if version else 0
