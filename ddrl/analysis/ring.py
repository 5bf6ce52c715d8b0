"""Times of a sum of gradients over a ring of workers, from what two workers took."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Ring:
    """A ring of workers, each of which sends to the next one."""

    latency: float
    """Seconds of one message."""
    transfer: float
    """Seconds in which one worker sends a whole gradient."""

    @classmethod
    def of_two(cls, number: float, gradient: float) -> Ring:
        """Return the ring in which two workers sum one number, and a gradient, in so many seconds.

        A sum of two workers has two hops, each with one half of what is summed.
        """
        return cls(latency=number / 2, transfer=gradient - number)

    def seconds(self, workers: int) -> float:
        """Return how long a sum over so many workers takes: 2 (n - 1) hops with a part of 1 / n each."""
        return 2 * (workers - 1) * (self.latency + self.transfer / workers)
