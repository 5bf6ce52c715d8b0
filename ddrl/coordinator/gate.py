"""When may an actor begin its next unroll? The schedule, as one rule on versions.

Under the synchronous and bounded-lag schedules the store hands out columns in rounds (unroll index, then actor), so the
k-th unrolls of all actors are columns k*C .. (k+1)*C-1 of the stream (C columns a round), and the last of them is
learned from in update ((k+1)*C - 1) // B. Acting with at least that version minus L therefore bounds the lag by L.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Gate:
    """`max_lag` None: asynchronous; 0: synchronous; L: bounded lag."""

    max_lag: int | None
    columns_per_round: int
    """Actors x environments per actor."""
    columns_per_update: int
    """Fresh columns that one update consumes."""

    def needed_version(self, unroll_index: int) -> int:
        """The parameters' version that must be published before an actor begins its unroll `unroll_index`."""
        if self.max_lag is None:
            return 0
        learned_in = ((unroll_index + 1) * self.columns_per_round - 1) // self.columns_per_update
        return max(0, learned_in - self.max_lag)
