"""A worker's side of the inference service: one stream to a learner (`ddrl.inference.service`)."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc

from ddrl.errors import Closed, UserError, printable
from ddrl.inference import proof, wire
from ddrl.inference.endpoint import PLAIN, Tls, check_way, target
from ddrl.inference.service import METHOD, NAME, OPTIONS
from ddrl.inference.wire import TensorSpec, WireError
from ddrl.types import Array, EnvSpec, EnvStep

FATAL = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.UNIMPLEMENTED,
)
"""Answers that another try would get again."""


BEAT_SECONDS = 15.0
"""So often a worker whose environments take long says that it is there; the service's `STEP_SECONDS` are four of it."""


LONGEST_DETAILS = 300
"""Characters of what the other side says that are shown."""


class LearnerLost(Exception):
    """The stream broke, or there is no place now: it is worth another try."""

    was_interrupted = False
    """The learner said that it stops; it may come back."""


@dataclass(frozen=True)
class Offer:
    """What a learner wants this worker to step."""

    place: int
    environment: dict[str, Any]
    num_envs: int
    first_env: int
    """Number of its first environment among all of the run's."""
    env_threads: int
    seed: int
    name: str
    """For messages."""


class Connection:
    """A stream to the learner at `address`; used by one thread."""

    def __init__(self, address: str, *, token: str | None = None, tls: Tls = PLAIN, insecure: bool = False) -> None:
        """`insecure`: not encrypted, though others may be on the way. Raises UserError as `check_way`."""
        check_way(address, tls, insecure)
        self._address = address
        self._token = token or ""
        options = [*OPTIONS, ("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", 64 * 2**20)]
        if tls.authority:
            self._channel = grpc.secure_channel(target(address), tls.of_channel(), options=options)
        else:
            self._channel = grpc.insecure_channel(target(address), options=options)
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._replies: Any = None
        self._specs: dict[str, TensorSpec] = {}
        self._encoder = wire.StepEncoder()
        self._owes = False
        """Whether it is this side that is to say what is next."""
        self._closed = threading.Event()
        self._is_learner = False
        """Whether the other side has proven that it knows the token."""

    def join(self, place: int = -1, generation: int = 0) -> Offer:
        """Asks for a place: `place`, or any that is free.

        Of two workers that want the same place the later `generation` gets it. Raises LearnerLost, Closed where the run
        is over, UserError where the learner says that this worker is wrong.
        """
        call: grpc.StreamStreamMultiCallable[bytes, bytes] = self._channel.stream_stream(f"/{NAME}/{METHOD}")
        requests: Iterator[bytes] = iter(self._requests.get, None)
        self._replies = call(requests)
        nonce = proof.nonce()
        self._requests.put(wire.encode("hello", {"protocol": wire.VERSION, "nonce": nonce}))
        with self._understood():
            said = [wire.VERSION, nonce, self._receive().expect("challenge").value("nonce", str), place, generation]
        own = proof.proof(self._token, proof.VISITOR, *said)
        self._requests.put(wire.encode("claim", {"place": place, "generation": generation, "proof": own}))
        message = self._receive()
        with self._understood():
            message.expect("welcome")
            if not proof.holds(message.value("proof", str), self._token, proof.HOST, *said):
                raise UserError(f"what answers at {self._address} does not know this worker's token")
            self._owes = self._is_learner = True
            threading.Thread(target=self._beat, name="worker-alive", daemon=True).start()
            return Offer(
                place=message.value("place", int),
                environment=message.value("environment", dict),
                num_envs=message.value("num_envs", int),
                first_env=message.value("first_env", int),
                env_threads=message.value("env_threads", int),
                seed=message.value("seed", int),
                name=message.value("name", str),
            )

    def begin(self, spec: EnvSpec, num_envs: int) -> None:
        """What the environments are like whose steps are exchanged."""
        self._specs = wire.action_specs(spec, num_envs)

    def exchange(self, step: EnvStep, waited: float) -> Array:
        """Sends a step; returns the actions to take next. Raises as `join`.

        `waited`: seconds that the last exchange took.
        """
        self._owes = False
        self._requests.put(self._encoder.encode(step, waited=waited, cpu_seconds=time.process_time()))
        message = self._receive()
        self._owes = True
        with self._understood():
            return message.expect("actions").arrays(self._specs)["action"]

    def _beat(self) -> None:
        while not self._closed.wait(BEAT_SECONDS):
            if self._owes:
                self._requests.put(wire.ALIVE)

    @contextmanager
    def _understood(self) -> Iterator[None]:
        """Raises UserError where what the learner said is not what was expected."""
        try:
            yield
        except WireError as error:
            raise UserError(f"what answers at {self._address} is no learner of ddrl: {error}") from None

    def _receive(self) -> wire.Message:
        try:
            received = next(self._replies)
        except StopIteration:
            raise LearnerLost("the learner ended the stream") from None
        except grpc.RpcError as error:
            code, details = error.code(), " ".join(printable(str(error.details())).split())[:LONGEST_DETAILS]
            too_large = code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details
            if code in FATAL or too_large:
                raise UserError(f"the learner at {self._address} refuses this worker: {details}") from None
            raise LearnerLost(f"{code.name.lower()}: {details}") from None
        with self._understood():
            message = wire.decode(received)
        if message.kind == "over" and self._is_learner:  # before, anybody could send a worker away
            if message.fields.get("reason") == "finished":
                raise Closed
            lost = LearnerLost("the learner was interrupted")
            lost.was_interrupted = True
            raise lost
        return message

    def close(self) -> None:
        """Ends the stream."""
        self._closed.set()
        self._requests.put(None)
        if self._replies is not None:
            self._replies.cancel()
        self._channel.close()
