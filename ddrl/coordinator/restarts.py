"""The restart policy: a process that dies is replaced until it has died several times in a row without progress."""

from __future__ import annotations

from collections.abc import Hashable

MAX_DEATHS = 3
"""So many deaths in a row without progress end the run."""


class RestartPolicy:
    """The deaths of a run's processes, counted for each role."""

    def __init__(self) -> None:
        self._deaths: dict[Hashable, tuple[int, object]] = {}

    def died(self, who: Hashable, progress: object) -> int:
        """Count a death of `who`; return how many there were in a row without progress, this one included.

        Args:
            who: the role and its number, whichever process has it.
            progress: what the role has done so far, such as its number of unrolls; another value is progress.
        """
        deaths, before = self._deaths.get(who, (0, progress))
        deaths = deaths + 1 if progress == before else 1
        self._deaths[who] = (deaths, progress)
        return deaths


def gives_up(deaths: int) -> bool:
    """Return whether a role with so many deaths in a row without progress is not replaced any more."""
    return deaths >= MAX_DEATHS
