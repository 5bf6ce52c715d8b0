"""Environments in another process, as an actor on the learner sees them: a `VectorEnv` fed by a worker's stream.

Each actor of central inference has a `RemoteEnv`. At most one worker's `Session` is attached to it. When that worker is
lost the actor waits for another one, whose first observations begin new episodes (`ddrl.types`, abandoned episodes).
"""

from __future__ import annotations

import itertools
import queue
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ddrl.coordinator.traffic import Traffic
from ddrl.environments.base import finite
from ddrl.errors import Closed, NonFiniteError
from ddrl.inference import wire
from ddrl.inference.wire import WireError
from ddrl.system.closable_condition import ClosableCondition
from ddrl.types import Array, EnvSpec, EnvStep

_NUMBERS = itertools.count()


class Session:
    """One worker's stream. Times are those of `time.monotonic`."""

    def __init__(self, name: str, requests: Iterator[bytes]) -> None:
        self.name = name
        self.number = next(_NUMBERS)
        """Unique among the sessions of this process."""
        self.generation = 0
        self.began = self.heard_at = time.monotonic()
        """`heard_at`: when the worker was last heard, or asked for a message."""
        self.lost_since: float | None = None
        """The time at which the worker was found to have left, or was sent away."""
        self.awaited_since: float | None = None
        """The time at which the worker was asked for the message that is awaited now."""
        self.received = 0
        """Messages so far."""
        self._requests = requests
        self._replies: queue.SimpleQueue[bytes | Exception | None] = queue.SimpleQueue()

    def receive(self) -> bytes | None:
        """Return the next message; None if the worker will send none, in which case the stream is ended."""
        self.awaited_since = self.heard_at = time.monotonic()
        try:
            while (message := next(self._requests)) == wire.ALIVE:
                self.heard_at = time.monotonic()
            self.received += 1
            return message
        except Exception:  # gRPC's own, of a stream that broke, or StopIteration
            self.end()
            return None
        finally:
            self.awaited_since = None

    def send(self, message: bytes) -> None:
        """Queue a message for the worker."""
        self._replies.put(message)

    def end(self, error: Exception | None = None) -> None:
        """End the stream after the queued messages, with an error if the worker has broken the rules."""
        if self.lost_since is None:
            self.lost_since = time.monotonic()
        self._replies.put(error)

    def replies(self) -> Iterator[bytes]:
        """Yield the messages to the worker until the end. Raise the error that ended the stream."""
        while (reply := self._replies.get()) is not None:
            if isinstance(reply, Exception):
                raise reply
            yield reply


class RemoteEnv:
    """The environments of one actor, stepped by whichever worker is attached."""

    def __init__(
        self, spec: EnvSpec, num_envs: int, traffic: Traffic, describe: Callable[[int], dict[str, Any]]
    ) -> None:
        """`describe` returns their name, seed and options, from the number of workers that were offered them before."""
        self.spec = spec
        self.num_envs = num_envs
        self.step_bytes = sum(tensor.nbytes for tensor in wire.step_specs(spec, num_envs).values())
        """Size of the tensors of one step."""
        self._decoder = wire.StepDecoder(spec, num_envs)
        self._traffic = traffic
        self._describe = describe
        self._offers = itertools.count()
        self._changed = ClosableCondition()
        self._session: Session | None = None

    @property
    def session(self) -> Session | None:
        """The attached session, unless it is known to be lost."""
        return None if self._session is None or self._session.lost_since is not None else self._session

    def offer(self) -> dict[str, Any]:
        """Return what the next worker needs to build the environments."""
        return {"num_envs": self.num_envs, **self._describe(next(self._offers))}

    def attach(self, session: Session) -> bool:
        """Attach a session; return False if a live one of the same or a later generation is attached already."""
        with self._changed:
            if self._changed.closed:
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
        """Wait for a worker; return its first observations. Raise `Closed` once the run is over."""
        while True:
            with self._changed:
                self._changed.wait_until(lambda: self.session is not None)
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
        """Return the worker's step; if the worker is lost, the beginning of episodes at another one.

        Raise `Closed` once the run is over, and `NonFiniteError` for actions that would end one worker after another.
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
        """Return the next step; None if the worker is lost: its stream broke, or it sent something forbidden."""
        message = session.receive()
        if message is None:
            if self._changed.closed:
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
        """End every wait with `Closed`, and the worker's stream; `reason` tells the worker whether it may come back."""
        with self._changed:
            if self._changed.closed:
                return
            self._changed.close()
            session = self._session
        if session is not None:
            session.send(wire.encode("over", {"reason": reason}))
            session.end()

    def state_dict(self) -> dict[str, Any]:
        """Raise RuntimeError: remote environments are never saved, their episodes begin anew."""
        raise RuntimeError("remote environments cannot be saved")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raise RuntimeError, as `state_dict` does."""
        raise RuntimeError("remote environments cannot be continued")
