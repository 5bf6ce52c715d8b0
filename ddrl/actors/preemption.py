"""Preemption of stragglers (Wijmans et al. 2020, section 3): once enough actors are done, the others end their unrolls.

Synchronous learners wait for the slowest actor. So an actor adds one to a counter when it has collected an unroll, and
the one with which the counter reaches a share of all actors raises a flag. Those that see it stop where they are, if
they have at least some share of the unroll. Counter and flag are in the store of the learners' process group, where
facebookresearch/habitat-lab has its counter (`ppo_trainer.py`); there rank 0 sets it back, here each unroll index has
its own.
"""

from __future__ import annotations

from ddrl.interfaces import SharedStore


class Preemption:
    """Ends the unrolls of one actor, which shares `store` with all other actors of the run."""

    def __init__(self, store: SharedStore, num_actors: int, *, threshold: float, least_fraction: float) -> None:
        """`threshold`: share of the actors with which an unroll is over; `least_fraction`: of it that is collected."""
        self._store = store
        self._needed = threshold * num_actors
        self._least_fraction = least_fraction

    def ends(self, unroll_index: int, steps: int, length: int) -> bool:
        """Return whether the unroll is to end early, after `steps` of its `length` steps.

        A lost store ends none: the learner that had it is gone, and others notice that.
        """
        if steps < self._least_fraction * length:
            return False
        try:
            return self._store.check([_flag(unroll_index)])
        except RuntimeError:
            return False

    def finish(self, unroll_index: int) -> None:
        """Say that this actor's unroll is collected."""
        try:
            if self._store.add(f"preemption/{unroll_index}/done", 1) >= self._needed:
                self._store.set(_flag(unroll_index), "")
        except RuntimeError:
            pass


def _flag(unroll_index: int) -> str:
    return f"preemption/{unroll_index}/over"
