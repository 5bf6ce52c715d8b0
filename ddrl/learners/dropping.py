"""Dropped gradients (Heess et al. 2017): a step takes the first of the learners' gradients.

The paper's chief waits for all but some of its workers. Here there is no chief: every learner takes part in every sum,
and one that comes too late adds nothing to it. A learner that is late before it begins does not compute its gradient,
so the others wait for the end of one gradient at most, and all make the same steps with the same bits.
"""

from __future__ import annotations

from ddrl.interfaces import SharedStore
from ddrl.learners.all_reduce import connection_errors

_KEY = "gradients"


class Dropping:
    """Says of one learner's gradients which are in time: among the first `required` of the `size` of a step.

    All learners count in one key of `store`, each once a step. Raises ConnectionError if the store is gone.
    """

    def __init__(self, store: SharedStore, required: int, size: int) -> None:
        self._store = store
        self._required = required
        self._size = size
        self._before = 0
        with connection_errors():
            store.add(_KEY, 0)

    def is_over(self) -> bool:
        """Return whether the present step has all the gradients that it takes."""
        with connection_errors():
            return int(self._store.get(_KEY)) - self._before >= self._required

    def arrive(self) -> bool:
        """Count this learner's gradient of the present step; return whether it is in time. The next step begins."""
        with connection_errors():
            place = self._store.add(_KEY, 1) - self._before
        self._before += self._size
        return place <= self._required
