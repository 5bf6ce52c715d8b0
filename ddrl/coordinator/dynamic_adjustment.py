"""How many actors, predictors and trainers work, and who tries out whether others would be faster.

Babaeizadeh et al. 2017, section 4.3: at times one of the three numbers is changed by one; the change stays if there are
more updates a second with it. All roles exist from the beginning; those that are one too many wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ddrl.errors import Closed
from ddrl.types import Metrics


class Limit:
    """Of one kind of role: the first so many work, the others wait between two steps."""

    def __init__(self, working: int, all_: int) -> None:
        self.all = all_
        self._working = working
        self._changed = threading.Condition()
        self._closed = False

    @property
    def working(self) -> int:
        """How many do, 1 to `all`."""
        return self._working

    def set(self, working: int) -> None:
        """From the next step of each on."""
        with self._changed:
            self._working = working
            self._changed.notify_all()

    def admit(self, index: int) -> None:
        """Waits until number `index` is among those that work. Raises `Closed` once the run is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or index < self._working)
            if self._closed:
                raise Closed

    def close(self) -> None:
        """Ends every wait with `Closed`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class Limited:
    """A role that waits while it is one too many."""

    def __init__(self, role: Any, limit: Limit, index: int) -> None:
        self._role, self._limit, self._index = role, limit, index
        self.ready = role.ready
        self.state_dict = getattr(role, "state_dict", dict)
        self.load_state_dict = getattr(role, "load_state_dict", lambda state: None)

    def step(self) -> Any:
        """The role's own."""
        self._limit.admit(self._index)
        return self._role.step()


class Adjustment:
    """A role: one call of `step` = one trial."""

    def __init__(
        self,
        limits: Mapping[str, Limit],
        updates: Callable[[], int],
        generator: np.random.Generator,
        *,
        initial_wait: float,
        step_wait: float,
        clock: Callable[[], float] = time.perf_counter,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        """`limits`: of each kind of role. `updates`: so far. Seconds: before the first measurement, and of each.

        `wait` returns whether the run was over before the seconds were.
        """
        self._limits = limits
        self._updates = updates
        self._generator = generator
        self._initial_wait = initial_wait
        self._step_wait = step_wait
        self._over = threading.Event()
        self._clock, self._wait = clock, wait or self._over.wait
        self._speed: float | None = None
        """Updates a second with the numbers that are kept."""

    def ready(self) -> bool:
        """Nobody asks: it waits for the clock."""
        return True

    def step(self) -> None:
        """Changes one number by one, and back where that is slower. Raises `Closed` once the run is over."""
        if self._speed is None:
            self._pause(self._initial_wait)
            self._speed = self._measure()
        possible = [
            (limit, limit.working + change)
            for limit in self._limits.values()
            for change in (-1, 1)
            if 1 <= limit.working + change <= limit.all
        ]
        if not possible:
            self._pause(self._step_wait)
            return
        limit, number = possible[int(self._generator.integers(len(possible)))]
        before = limit.working
        limit.set(number)
        speed = self._measure()
        if speed < self._speed:
            limit.set(before)
        else:
            self._speed = speed

    def _measure(self) -> float:
        began, updates = self._clock(), self._updates()
        self._pause(self._step_wait)
        return (self._updates() - updates) / (self._clock() - began)

    def _pause(self, seconds: float) -> None:
        if self._wait(seconds):
            raise Closed

    def gauge(self) -> Metrics:
        """How many work."""
        return {f"working_{kind}": float(limit.working) for kind, limit in self._limits.items()}

    def close(self) -> None:
        """Ends every wait with `Closed`."""
        self._over.set()
        for limit in self._limits.values():
            limit.close()

    def state_dict(self) -> dict[str, int]:
        """The numbers."""
        return {kind: limit.working for kind, limit in self._limits.items()}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Goes on from these; speed is measured anew."""
        for kind, working in state.items():
            self._limits[kind].set(working)
