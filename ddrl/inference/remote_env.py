"""Environments in another process, as an actor on the learner sees them: a `VectorEnv` fed by a worker's stream.

Each actor of central inference has a `RemoteEnv`. At most one worker's `Session` is attached to it. When that worker is
lost the actor waits for another one, whose first observations begin new episodes (`ddrl.types`, abandoned episodes).
"""

from __future__ import annotations

import itertools
import queue
import threading
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
        self._gone = threading.Event()

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

    def gone(self) -> None:
        """Note that the connection has ended the stream."""
        self.end()
        self._gone.set()

    def wait_until_gone(self, seconds: float) -> None:
        """Wait until the connection has ended the stream, but no longer than `seconds`."""
        self._gone.wait(seconds)

    def replies(self) -> Iterator[bytes]:
        """Yield the messages to the worker until the end. Raise the error that ended the stream."""
        while (reply := self._replies.get()) is not None:
            if isinstance(reply, Exception):
                raise reply
            yield reply


class RemoteGroup:
    """One group of a `RemoteEnv` (`ddrl.actors.env_groups.EnvGroup`)."""

    def __init__(self, env: RemoteEnv, group: int) -> None:
        self.num_envs = env.group_envs
        self._env = env
        self._group = group

    def reset(self) -> EnvStep:
        """Wait for a worker; return the group's first observations. Raise as `RemoteEnv.reset`."""
        return self._env.reset(self._group)

    def begin(self, actions: Array) -> None:
        """Send actions. Raise as `RemoteEnv.step`."""
        self._env.begin(actions, self._group)

    def finish(self) -> EnvStep:
        """Return the group's step. Raise as `RemoteEnv.step`."""
        return self._env.finish(self._group)


class RemoteEnv:
    """The environments of one actor, in groups of the same size, stepped by whichever worker is attached."""

    def __init__(
        self,
        spec: EnvSpec,
        num_envs: int,
        traffic: Traffic,
        describe: Callable[[int], dict[str, Any]],
        groups: int = 1,
    ) -> None:
        """`describe` returns their name, seeds and options, from how many workers were offered them before."""
        self.spec = spec
        self.num_envs = num_envs
        self.group_envs = num_envs // groups
        self.groups = [RemoteGroup(self, group) for group in range(groups)]
        self.step_bytes = sum(tensor.nbytes for tensor in wire.step_specs(spec, self.group_envs).values())
        """Size of the tensors of one group's step."""
        self._decoders = [wire.StepDecoder(spec, self.group_envs) for _ in range(groups)]
        self._traffic = traffic
        self._describe = describe
        self._offers = itertools.count()
        self._changed = ClosableCondition()
        self._session: Session | None = None
        self._read: Session | None = None
        """The session whose messages are read."""
        self._came: dict[int, EnvStep] = {}
        """Steps of groups that came before they were asked for."""
        self._at: list[Session | None] = [None] * groups
        """The session in which each group's newest episode goes on."""

    @property
    def session(self) -> Session | None:
        """The attached session, unless it is known to be lost."""
        return None if self._session is None or self._session.lost_since is not None else self._session

    def offer(self) -> dict[str, Any]:
        """Return what the next worker needs to build the environments."""
        return {"num_envs": self.num_envs, "other_seeds": [], **self._describe(next(self._offers))}

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

    def reset(self, group: int = 0) -> EnvStep:
        """Wait for a worker; return a group's first observations there. Raise `Closed` once the run is over."""
        while True:
            with self._changed:
                self._changed.wait_until(lambda: self.session is not None)
                session = self._session
            assert session is not None
            if session is not self._read:
                self._read, self._came = session, {}
                for decoder in self._decoders:
                    decoder.forget()
            step = self._next(session, group)
            if step is None:
                continue
            if step.start.all() and step.valid.all() and not (step.terminated | step.truncated | step.ended).any():
                self._at[group] = session
                return step
            session.end(WireError("the first step must begin episodes"))

    def step(self, actions: Array) -> EnvStep:
        """Return the worker's step; if the worker is lost, the beginning of episodes at another one.

        Raise `Closed` once the run is over, and `NonFiniteError` for actions that would end one worker after another.
        """
        self.begin(actions)
        return self.finish()

    def begin(self, actions: Array, group: int = 0) -> None:
        """Send a group's actions. Raise as `step`."""
        session = self._at[group]
        assert session is not None
        if wrong := finite.diverged(actions):
            raise NonFiniteError(f"training diverged: {wrong}")
        reply = wire.encode("actions", {"group": group}, tensors={"action": actions})
        self._traffic.sent(len(reply))
        session.send(reply)

    def finish(self, group: int = 0) -> EnvStep:
        """Return what a group's actions led to. Raise as `step`."""
        session = self._at[group]
        assert session is not None
        step = self._next(session, group) if session is self._read else None  # else another group has lost it
        if step is not None:
            return step
        first = self.reset(group)
        return first._replace(reward=np.zeros_like(first.reward), valid=np.zeros_like(first.valid))

    def _next(self, session: Session, group: int) -> EnvStep | None:
        """Return a group's next step; None if the worker is lost. Keep what comes of other groups meanwhile."""
        while group not in self._came:
            if not self._receive(session):
                return None
        return self._came.pop(group)

    def _receive(self, session: Session) -> bool:
        """Keep the next step; return False if the worker is lost: its stream broke, or it sent something forbidden."""
        message = session.receive()
        if message is None:
            if self._changed.closed:
                raise Closed
            return False
        try:
            with wire.refusing():
                decoded = wire.decode(message)
                group = decoded.group(len(self.groups))
                step = self._decoders[group].decode(decoded)
                waited, cpu = decoded.seconds("waited"), decoded.seconds("cpu_seconds")
            if found := finite.fault(step):
                raise WireError(f"column {found.column}: the {found.what}")
            if group in self._came:
                raise WireError(f"two steps of group {group} came, and actions for one")
        except WireError as error:
            session.end(error)
            return False
        self._traffic.received(session.number, len(message), self.group_envs, cpu, waited=waited)
        self._came[group] = step
        return True

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
