"""Machines of the simulated system: cores that are shared, links, and the learner's message handling.

Discrete events by simpy; time is in seconds. How busy a part was is kept as an `Integral`, read at the beginning and at
the end of the measured period.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator
from typing import Any, NamedTuple

from simpy import Environment, Event, Resource, Timeout

from replications.seed_rl_2020.inputs import ServiceTimes

Steps = Generator[Event, Any, None]
"""What a simpy process yields: events that it waits for."""
ROUNDING = 1e-12
"""Relative difference below which two moments are one."""


class Integral:
    """A level over time, such as the number of busy devices, and its integral."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._level = 0.0
        self._sum = 0.0
        self._since = 0.0

    def add(self, change: float) -> None:
        """The level changes now."""
        now = self._env.now
        self._sum += self._level * (now - self._since)
        self._since = now
        self._level += change

    def until_now(self) -> float:
        """Level times seconds, from the beginning."""
        return self._sum + self._level * (self._env.now - self._since)


class _Job(NamedTuple):
    """Work on cores; in a heap, by the moment of the cores' own clock at which it is done."""

    ends: float
    order: int
    width: float
    done: Event


class Cores:
    """A host's cores, shared equally by all that runs there (processor sharing).

    A job of width w keeps w cores busy. While jobs of total width W run on C cores, each goes at min(1, C / W) of the
    speed that it has alone. All jobs have the same speed, so a clock that runs at this speed says when each ends.
    """

    def __init__(self, env: Environment, cores: float) -> None:
        self.cores = cores
        self.busy = Integral(env)
        self._env = env
        self._jobs: list[_Job] = []
        self._width = 0.0
        self._clock = 0.0
        self._since = 0.0
        self._speed = 1.0
        self._order = 0
        self._timer: Timeout | None = None
        self._timer_of: _Job | None = None

    def run(self, seconds: float, width: float = 1.0) -> Event:
        """An event: `seconds` of work, as measured on an idle host, are done."""
        done = self._env.event()
        if seconds <= 0.0:
            return done.succeed()
        self._clock += (self._env.now - self._since) * self._speed
        self._since = self._env.now
        self._order += 1
        heapq.heappush(self._jobs, _Job(self._clock + seconds, self._order, width, done))
        self._change(width)
        return done

    def _change(self, width: float) -> None:
        """The width changed: sets speed and timer anew, the latter only if it would ring at another moment."""
        before = min(self._width, self.cores)
        self._width += width
        self.busy.add(min(self._width, self.cores) - before)
        speed = self.cores / self._width if self._width > self.cores else 1.0
        first = self._jobs[0] if self._jobs else None
        if first is self._timer_of and speed == self._speed and self._timer is not None:
            return
        self._speed, self._timer_of, self._timer = speed, first, None
        if first is not None:
            self._timer = self._env.timeout(max(0.0, first.ends - self._clock) / speed)
            self._timer.callbacks.append(self._ring)

    def _ring(self, timer: Event) -> None:
        if timer is not self._timer:
            return  # set before the speed or the first job changed
        self._timer = None
        self._since = self._env.now
        self._clock = self._jobs[0].ends
        width = 0.0
        while self._jobs and self._jobs[0].ends <= self._clock * (1.0 + ROUNDING):
            job = heapq.heappop(self._jobs)
            width += job.width
            job.done.succeed()
        if not self._jobs:
            width, self._clock = self._width, 0.0  # exactly idle, whatever the sum of widths was rounded to
        self._change(-width)


class Link:
    """Between the learner and workers: each message has a stream of its own; the learner's card, if given, is shared.

    A message of b bytes takes latency + b / bytes_per_s. At a card it also waits for those before it in its direction.
    """

    def __init__(
        self, env: Environment, latency_s: float, bytes_per_s: float, card_bytes_per_s: float | None = None
    ) -> None:
        self.sent = {"in": 0.0, "out": 0.0}
        """Bytes so far, in a direction as the learner sees it."""
        self.card_bytes_per_s = card_bytes_per_s
        self._env = env
        self._latency_s = latency_s
        self._bytes_per_s = bytes_per_s
        self._card_free = {"in": 0.0, "out": 0.0}

    def send(self, size: float, direction: str) -> Timeout:
        """An event: a message of `size` bytes has arrived. `direction`: in or out."""
        now = self._env.now
        arrives = now + size / self._bytes_per_s
        if self.card_bytes_per_s is not None:
            self._card_free[direction] = max(now, self._card_free[direction]) + size / self.card_bytes_per_s
            arrives = max(arrives, self._card_free[direction])
        self.sent[direction] += size
        return self._env.timeout(arrives - now + self._latency_s)


class Server:
    """Where messages are handled on the learner's host; at most `threads` of them at once (None: as many as come)."""

    def __init__(self, env: Environment, times: ServiceTimes, cores: Cores, threads: int | None) -> None:
        self.threads = threads
        self.busy = Integral(env)
        """Messages that are being handled."""
        self._times = times
        self._cores = cores
        self._turns = Resource(env, threads) if threads else None

    def handle(self, size: float) -> Steps:
        """Receives or sends a message of `size` bytes."""
        seconds = self._times.server_message_s + size * self._times.server_byte_s
        if not seconds:
            return
        turn = self._turns.request() if self._turns else None
        if turn:
            yield turn
        self.busy.add(1)
        yield self._cores.run(seconds)
        self.busy.add(-1)
        if self._turns and turn:
            self._turns.release(turn)
