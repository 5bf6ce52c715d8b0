"""The schedule: when an actor may begin its next unroll, as one rule on versions of the parameters.

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
class ScheduleRule:
    """The schedule of one learner's actors."""

    max_lag: int | None
    """None: asynchronous; 0: synchronous; L: bounded lag."""
    columns_per_round: int
    """Actors x environments per actor."""
    columns_per_batch: int
    """Columns of one fresh batch."""
    first_update: Callable[[int], int]
    """Returns the index of the update that first uses a fresh batch, from the index of the batch."""

    def needed_version(self, unroll_index: int, since: int = 0) -> int:
        """Return the version of the parameters that must be published before an actor begins unroll `unroll_index`.

        Unrolls are counted from the version `since`, at which the rounds began (anew, when a run was resumed).
        """
        if self.max_lag is None:
            return 0
        # Fresh batches that the first `since` updates have used: batch b is used no sooner than in update b.
        used = bisect_left(range(since + 1), since, key=self.first_update)
        batch = ((unroll_index + 1) * self.columns_per_round - 1) // self.columns_per_batch
        return max(0, self.first_update(used + batch) - self.max_lag)
