"""Dynamic adjustment: the search for the numbers of actors, predictors and trainers that train fastest.

Babaeizadeh et al. 2017 (GA3C), section 4.3: now and then one of the three numbers is changed by one, and the change is
kept if there are more updates a second with it. All roles exist from the beginning; those above the number wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

import numpy as np

from ddrl.errors import Closed
from ddrl.interfaces import Actor, Service
from ddrl.system.closable_condition import ClosableCondition
from ddrl.types import Metrics


class Limit:
    """The number of roles of one kind that work: the first `working` of `all`. The others wait between two steps."""

    def __init__(self, working: int, all_: int) -> None:
        self.all = all_
        self.working = working
        self._changed = ClosableCondition()

    def set(self, working: int) -> None:
        """Let the first `working` roles work, 1 to `all`; each role heeds it at its next step."""
        with self._changed:
            self.working = working
            self._changed.notify_all()

    def admit(self, index: int) -> None:
        """Wait until role number `index` is among those that work. Raise `Closed` once the run is over."""
        with self._changed:
            self._changed.wait_until(lambda: index < self.working)

    def close(self) -> None:
        """End every wait with `Closed`."""
        self._changed.close()


class Limited:
    """A service that waits before a step while its number is above the limit."""

    def __init__(self, service: Service, limit: Limit, index: int) -> None:
        self._service, self._limit, self._index = service, limit, index

    def step(self) -> None:
        """Wait for the limit, then do the service's own step."""
        self._limit.admit(self._index)
        self._service.step()


class LimitedActor:
    """An actor that waits in the same way."""

    def __init__(self, actor: Actor, limit: Limit, index: int) -> None:
        self.step = Limited(actor, limit, index).step
        self.ready, self.state_dict, self.load_state_dict = actor.ready, actor.state_dict, actor.load_state_dict


class DynamicAdjustment:
    """A service that tries out other numbers of roles: one trial a step."""

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
        """Adjust `limits`, by kind of role. `updates` returns the number of updates so far.

        `initial_wait` is before the first measurement and `step_wait` that of each, in seconds. `wait` returns whether
        the run was over before the seconds were.
        """
        self._limits = limits
        self._updates = updates
        self._generator = generator
        self._initial_wait = initial_wait
        self._step_wait = step_wait
        self._over = threading.Event()
        self._clock, self._wait = clock, wait or self._over.wait
        self._speed: float | None = None
        """Updates a second with the present numbers."""

    def step(self) -> None:
        """Change one number by one, and change it back if that is slower. Raise `Closed` once the run is over."""
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
        """Return the updates a second over `step_wait` seconds."""
        began, updates = self._clock(), self._updates()
        self._pause(self._step_wait)
        return (self._updates() - updates) / (self._clock() - began)

    def _pause(self, seconds: float) -> None:
        if self._wait(seconds):
            raise Closed

    def gauge(self) -> Metrics:
        """Return how many roles of each kind work."""
        return {f"working_{kind}": float(limit.working) for kind, limit in self._limits.items()}

    def close(self) -> None:
        """End every wait with `Closed`."""
        self._over.set()
        for limit in self._limits.values():
            limit.close()

    def state_dict(self) -> dict[str, int]:
        """Return how many roles of each kind work."""
        return {kind: limit.working for kind, limit in self._limits.items()}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue with these numbers; the speed is measured anew."""
        for kind, working in state.items():
            self._limits[kind].set(working)
