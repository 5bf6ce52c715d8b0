"""Environments in another process, as an actor on the learner sees them: a `VectorEnv` that a worker's stream feeds.

Each actor of central inference has a `RemoteEnv`. At most one worker's `Session` is attached to it. When that worker is
lost the actor waits for another one, whose first observations begin new episodes (`ddrl.types`, abandoned episodes).
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from ddrl.coordinator.traffic import Traffic
from ddrl.environments.base import finite
from ddrl.errors import Closed, NonFiniteError
from ddrl.inference import wire
from ddrl.inference.wire import WireError
from ddrl.types import Array, EnvSpec, EnvStep

_NUMBERS = itertools.count()


class Requests(Protocol):
    """Messages of a worker; ends, or raises, with its stream."""

    def __next__(self) -> bytes: ...


class Session:
    """One worker's stream."""

    def __init__(self, name: str, requests: Requests, clock: Callable[[], float]) -> None:
        self.name = name
        """For the log."""
        self.number = next(_NUMBERS)
        """No other session of this process has it."""
        self.generation = 0
        self.began = clock()
        self.lost_since: float | None = None
        """When the worker was found to have left, or was sent away."""
        self.awaited_since: float | None = None
        """Since when the worker is expected to say what is next."""
        self.heard_at = self.began
        """When it was last heard to be there, or asked."""
        self.received = 0
        """Messages so far."""
        self._clock = clock
        self._requests = requests
        self._replies: queue.SimpleQueue[bytes | Exception | None] = queue.SimpleQueue()

    @property
    def is_lost(self) -> bool:
        """Whether nothing more is to be had from the worker."""
        return self.lost_since is not None

    def receive(self) -> bytes | None:
        """The next message; None where the worker will send none, and then nothing more is sent to it either."""
        self.awaited_since = self.heard_at = self._clock()
        try:
            while (message := next(self._requests)) == wire.ALIVE:
                self.heard_at = self._clock()
            self.received += 1
            return message
        except Exception:  # gRPC's own, of a stream that broke, or StopIteration
            self.end()
            return None
        finally:
            self.awaited_since = None

    def send(self, message: bytes) -> None:
        """Queues a message."""
        self._replies.put(message)

    def end(self, error: Exception | None = None) -> None:
        """Ends the stream, after what is queued; with an error where the worker has done what is not allowed."""
        if self.lost_since is None:
            self.lost_since = self._clock()
        self._replies.put(error)

    def replies(self) -> Iterator[bytes]:
        """What is sent to the worker, until the end. Raises the error that ended the stream."""
        while (reply := self._replies.get()) is not None:
            if isinstance(reply, Exception):
                raise reply
            yield reply


class RemoteEnv:
    """The environments of one actor, wherever they are."""

    def __init__(self, spec: EnvSpec, num_envs: int, traffic: Traffic) -> None:
        self.spec = spec
        self.num_envs = num_envs
        self._decoder = wire.StepDecoder(spec, num_envs)
        self._traffic = traffic
        self._changed = threading.Condition()
        self._session: Session | None = None
        self._closed = False

    @property
    def step_bytes(self) -> int:
        """Of the tensors of one step."""
        return self._decoder.largest

    @property
    def session(self) -> Session | None:
        """The attached one, if it is not known to be lost."""
        return None if self._session is None or self._session.is_lost else self._session

    def attach(self, session: Session) -> bool:
        """Makes this session the environments' own; refused where a live one of the same or a later generation is."""
        with self._changed:
            if self._closed:
                raise Closed
            before = self.session
            if before is not None and before.generation >= session.generation:
                return False
            self._session = session
            self._changed.notify_all()
        if before is not None:
            before.end(WireError("another process has taken this worker's place"))
        return True

    def reset(self) -> EnvStep:
        """Waits for a worker; its first observations. Raises `Closed` once the run is over."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self.session is not None)
                if self._closed:
                    raise Closed
                session = self._session
            assert session is not None
            self._decoder.forget()
            step = self._receive(session)
            if step is None:
                continue
            if step.start.all() and step.valid.all() and not (step.terminated | step.truncated | step.ended).any():
                return step
            session.end(WireError("the first step must begin episodes"))

    def step(self, actions: Array) -> EnvStep:
        """The worker's answer; where it is lost, the beginning of another one's episodes.

        Raises `Closed`, and `NonFiniteError` for actions that would end one worker after another.
        """
        session = self._session
        assert session is not None
        if wrong := finite.diverged(actions):
            raise NonFiniteError(f"training diverged: {wrong}")
        reply = wire.encode("actions", tensors={"action": actions})
        self._traffic.sent(len(reply))
        session.send(reply)
        step = self._receive(session)
        if step is not None:
            return step
        first = self.reset()
        return first._replace(reward=np.zeros_like(first.reward), valid=np.zeros_like(first.valid))

    def _receive(self, session: Session) -> EnvStep | None:
        """None where the worker is lost: its stream broke, or it sent something that is not allowed."""
        message = session.receive()
        if message is None:
            if self._closed:
                raise Closed
            return None
        try:
            with wire.refusing():
                decoded = wire.decode(message)
                step = self._decoder.decode(decoded)
                waited, cpu = decoded.seconds("waited"), decoded.seconds("cpu_seconds")
            if found := finite.fault(step):
                raise WireError(f"column {found.column}: the {found.what}")
        except WireError as error:
            session.end(error)
            return None
        self._traffic.received(session.number, len(message), self.num_envs, cpu, waited=waited)
        return step

    def close(self, reason: str = "interrupted") -> None:
        """Ends every wait with `Closed`, and the worker's stream; `reason` tells it whether the run may go on."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            session = self._session
            self._changed.notify_all()
        if session is not None:
            session.send(wire.encode("over", {"reason": reason}))
            session.end()

    def state_dict(self) -> dict[str, Any]:
        """Raises RuntimeError: remote environments are never saved, their episodes begin anew."""
        raise RuntimeError("remote environments cannot be saved")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises RuntimeError, as `state_dict`."""
        raise RuntimeError("remote environments cannot be continued")
