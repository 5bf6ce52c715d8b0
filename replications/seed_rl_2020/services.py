"""What the simulated learner does: the queue of unrolls, training, and inference with dynamic batching."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from simpy import Environment, Event, Resource

from replications.seed_rl_2020.inputs import Layout, ServiceTimes
from replications.seed_rl_2020.machines import ROUNDING, Cores, Integral, Steps


class Unroll(NamedTuple):
    """A worker's T steps: columns that are left, and the version of the parameters at its first and its last step."""

    columns: int
    first: int
    last: int


class UnrollQueue:
    """First in, first out, by columns; bounded in unrolls. What is left of a partly used unroll takes no room."""

    def __init__(self, env: Environment, capacity: int) -> None:
        self.blocked = Integral(env)
        """Workers that wait for room."""
        self._env = env
        self._capacity = capacity
        self._unrolls: deque[Unroll] = deque()
        self._head_is_partial = False
        self._columns = 0
        self._outside: deque[tuple[Unroll, Event]] = deque()
        self._wanted: tuple[int, Event] | None = None

    def put(self, unroll: Unroll) -> Event | None:
        """None: it is in. Otherwise an event: there was room, in order of arrival."""
        event = self._env.event()
        self._outside.append((unroll, event))
        self.blocked.add(1)
        self._move()
        return None if event.triggered else event

    def take(self, columns: int) -> Event:
        """An event whose value is the oldest `columns` columns, as unrolls and parts of such. One caller at a time."""
        event = self._env.event()
        self._wanted = (columns, event)
        self._move()
        return event

    def _move(self) -> None:
        """Lets in what has room, serves the learner, and again."""
        while True:
            while self._outside and len(self._unrolls) - self._head_is_partial < self._capacity:
                unroll, entered = self._outside.popleft()
                self.blocked.add(-1)
                self._unrolls.append(unroll)
                self._columns += unroll.columns
                entered.succeed()
            if self._wanted is None or self._columns < self._wanted[0]:
                return
            (columns, taken), self._wanted = self._wanted, None
            taken.succeed(self._pop(columns))

    def _pop(self, columns: int) -> list[Unroll]:
        parts: list[Unroll] = []
        self._columns -= columns
        while columns:
            unroll = self._unrolls.popleft()
            used = min(columns, unroll.columns)
            self._head_is_partial = used < unroll.columns
            if self._head_is_partial:
                self._unrolls.appendleft(unroll._replace(columns=unroll.columns - used))
            parts.append(unroll._replace(columns=used))
            columns -= used
        return parts


@dataclass(frozen=True)
class LearnerHost:
    """Where training and inference run. `accelerator`: what they share, one at a time; None: they share no more than
    the cores."""

    env: Environment
    times: ServiceTimes
    layout: Layout
    cores: Cores
    accelerator: Resource | None

    def work(self, seconds: float, width: float) -> Event:
        """An event: a service of `seconds` that keeps `width` cores busy is done."""
        return self.cores.run(seconds, width) if width else self.env.timeout(seconds)


class Learner:
    """Takes B / uses_per_column fresh columns of the queue, trains on a batch of B, publishes, and again."""

    def __init__(self, host: LearnerHost) -> None:
        self.version = 0
        """Updates so far."""
        self.busy = Integral(host.env)
        self.queue = UnrollQueue(host.env, host.layout.queue_unrolls)
        self.lags: list[tuple[float, float]] = []
        """Of each batch: updates inside of an unroll, and from its first step to its use; means over columns."""
        self._host = host

    def run(self) -> Steps:
        """The learner's loop."""
        layout, accelerator = self._host.layout, self._host.accelerator
        seconds = layout.training_seconds(self._host.times)
        owed = 0.0
        while True:
            owed += layout.batch_columns / layout.uses_per_column
            columns = math.floor(owed * (1.0 + ROUNDING))
            owed -= columns
            if columns:
                self._note((yield self.queue.take(columns)), columns)
            turn = accelerator.request() if accelerator else None
            if turn:
                yield turn
            self.busy.add(1)
            yield self._host.work(seconds, self._host.times.train_cores)
            self.busy.add(-1)
            self.version += 1
            if accelerator and turn:
                accelerator.release(turn)

    def _note(self, parts: list[Unroll], columns: int) -> None:
        inside = sum(part.columns * (part.last - part.first) for part in parts) / columns
        until = sum(part.columns * (self.version - part.first) for part in parts) / columns
        self.lags.append((inside, until))


class _Request(NamedTuple):
    """A worker's E columns, which are not split."""

    number: int
    columns: int
    came: float
    answer: Event


class Inference:
    """Dynamic batching. Whole requests wait in order of arrival.

    A batch begins when a device is free and at least `min_columns` columns wait or the oldest request has waited
    `max_wait_s`. It takes whole requests, the oldest first, as long as they are `max_columns` columns together. Where
    training shares the accelerator, it is made up of what waits once the accelerator is free.
    """

    def __init__(self, host: LearnerHost, learner: Learner) -> None:
        self.busy = Integral(host.env)
        """Devices that infer."""
        self.batches: list[int] = []
        """Columns of each batch."""
        self.waits: list[float] = []
        """Of each request: seconds from its arrival to its answer."""
        self._host = host
        self._learner = learner
        self._idle = host.layout.inference_devices
        self._requests: deque[_Request] = deque()
        self._columns = 0
        self._number = 0
        self._timed = 0
        self._overdue = 0

    def request(self, columns: int) -> Event:
        """An event: the answer is there. Its value is the version of the parameters."""
        self._number += 1
        answer = self._host.env.event()
        self._requests.append(_Request(self._number, columns, self._host.env.now, answer))
        self._columns += columns
        self._dispatch()
        return answer

    def _ready(self) -> bool:
        if not self._requests:
            return False
        return self._columns >= self._host.layout.min_columns or self._requests[0].number <= self._overdue

    def _dispatch(self) -> None:
        while self._idle and self._ready():
            self._idle -= 1
            self._host.env.process(self._serve(None if self._host.accelerator else self._take()))
        if self._requests and not self._ready() and self._requests[0].number > self._timed:
            oldest = self._requests[0]
            self._timed = oldest.number
            due = oldest.came + self._host.layout.max_wait_s
            timer = self._host.env.timeout(max(0.0, due - self._host.env.now))
            timer.callbacks.append(partial(self._ring, oldest.number))

    def _ring(self, number: int, _: Event) -> None:
        """Request `number` has waited long enough; it may have been answered since the timer was set."""
        self._overdue = max(self._overdue, number)
        self._dispatch()

    def _take(self) -> list[_Request]:
        largest = self._host.layout.largest_batch
        batch = [self._requests.popleft()]
        columns = batch[0].columns
        while self._requests and columns + self._requests[0].columns <= largest:
            batch.append(self._requests.popleft())
            columns += batch[-1].columns
        self._columns -= columns
        return batch

    def _serve(self, batch: list[_Request] | None) -> Steps:
        times, accelerator = self._host.times, self._host.accelerator
        turn = accelerator.request() if accelerator else None
        if turn:
            yield turn
        batch = batch or self._take()
        columns = sum(request.columns for request in batch)
        version = self._learner.version
        self.busy.add(1)
        seconds = times.inference_fixed_s + times.inference_per_column_s * columns
        yield self._host.work(seconds, times.inference_cores)
        self.busy.add(-1)
        if accelerator and turn:
            accelerator.release(turn)
        self._idle += 1
        self.batches.append(columns)
        for request in batch:
            self.waits.append(self._host.env.now - request.came)
            request.answer.succeed(version)
        self._dispatch()
