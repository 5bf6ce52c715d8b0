"""A worker's side of the inference service (`ddrl.inference.service`): one stream to a learner."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, get_origin, get_type_hints

import grpc

from ddrl.errors import Closed, UserError, printable
from ddrl.inference import proof, wire
from ddrl.inference.endpoint import Endpoint, target
from ddrl.inference.service import METHOD, NAME, OPTIONS
from ddrl.inference.wire import TensorSpec, WireError
from ddrl.system.wording import shortened
from ddrl.types import Array, EnvSpec, EnvStep

FATAL = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.UNIMPLEMENTED,
)
"""Answers that another try would get again."""
BEAT_SECONDS = 15.0
"""The period at which a worker whose environments take long says that it is alive; a quarter of `STEP_SECONDS` of the
service."""
LONGEST_DETAILS = 300
"""The characters of the other side's explanation that are shown."""


class LearnerLost(Exception):
    """The stream broke, or no place is free now: another try may succeed."""

    was_interrupted = False
    """True: the learner said that it stops early; it may come back."""


@dataclass(frozen=True)
class Offer:
    """The environments that a learner wants this worker to step."""

    place: int
    environment: dict[str, Any]
    num_envs: int
    first_env: int
    """Number of the first environment among all of the run's."""
    env_threads: int
    seed: int
    """Of the first group's environments."""
    other_seeds: list[int]
    """Of those of other groups, which have as many environments each (`ddrl.actors.env_groups`)."""
    name: str
    """The name of the environments in messages."""


class Connection:
    """A stream to the learner at an endpoint, for one thread."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Raise UserError as `Endpoint.check_way` does."""
        endpoint.check_way()
        self._address = endpoint.address
        self._token = endpoint.token or ""
        options = [*OPTIONS, ("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", 64 * 2**20)]
        if endpoint.tls.authority:
            self._channel = grpc.secure_channel(target(self._address), endpoint.tls.of_channel(), options=options)
        else:
            self._channel = grpc.insecure_channel(target(self._address), options=options)
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._replies: Iterator[bytes] = iter(())
        self._cancel: Callable[[], object] = lambda: None
        self._specs: dict[str, TensorSpec] = {}
        self._encoders = [wire.StepEncoder()]
        self._must_send = False
        """True: the learner waits for a message of this side."""
        self._closed = threading.Event()
        self._is_learner = False
        """True: the other side has proven that it knows the token."""

    def join(self, place: int = -1, generation: int = 0) -> Offer:
        """Take a place of the learner: `place`, or any that is free (-1).

        Of two workers that want the same place the later `generation` gets it. Raise LearnerLost, Closed if the run is
        over, or UserError if the learner refuses this worker.
        """
        stream: grpc.StreamStreamMultiCallable[bytes, bytes] = self._channel.stream_stream(f"/{NAME}/{METHOD}")
        call = stream(iter(self._requests.get, None))
        self._replies, self._cancel = call, call.cancel
        nonce = proof.nonce()
        self._requests.put(wire.encode("hello", {"protocol": wire.VERSION, "nonce": nonce}))
        with self._checking_replies():
            challenge = self._receive().expect("challenge").value("nonce", str)
        transcript = (wire.VERSION, nonce, challenge, place, generation)
        own = proof.proof(self._token, proof.CLIENT, *transcript)
        self._requests.put(wire.encode("claim", {"place": place, "generation": generation, "proof": own}))
        message = self._receive()
        with self._checking_replies():
            message.expect("welcome")
            if not proof.holds(message.value("proof", str), self._token, proof.SERVER, *transcript):
                raise UserError(f"what answers at {self._address} does not know this worker's token")
            self._must_send = self._is_learner = True
            threading.Thread(target=self._beat, name="worker-alive", daemon=True).start()
            kinds = {name: get_origin(hint) or hint for name, hint in get_type_hints(Offer).items()}
            return Offer(**{name: message.value(name, kind) for name, kind in kinds.items()})

    def begin(self, spec: EnvSpec, num_envs: int, groups: int = 1) -> None:
        """Expect actions for groups of `num_envs` environments of `spec`."""
        self._specs = wire.action_specs(spec, num_envs)
        self._encoders = [wire.StepEncoder() for _ in range(groups)]

    def exchange(self, step: EnvStep, waited: float) -> Array:
        """Send the step of a single group; return the actions to take next. Raise as `join` does.

        `waited`: seconds that the last exchange took.
        """
        self.send(step, waited)
        return self.receive()[1]

    def send(self, step: EnvStep, waited: float, group: int = 0) -> None:
        """Send a group's step; `waited`: seconds of waiting for the actions before it."""
        self._must_send = False
        encoder = self._encoders[group]
        self._requests.put(encoder.encode(step, waited=waited, cpu_seconds=time.process_time(), group=group))

    def receive(self) -> tuple[int, Array]:
        """Return the next group that may step, and its actions. Raise as `join` does."""
        message = self._receive()
        self._must_send = True
        with self._checking_replies():
            actions = message.expect("actions")
            return actions.group(len(self._encoders)), actions.arrays(self._specs)["action"]

    def _beat(self) -> None:
        while not self._closed.wait(BEAT_SECONDS):
            if self._must_send:
                self._requests.put(wire.ALIVE)

    @contextmanager
    def _checking_replies(self) -> Iterator[None]:
        """Raise UserError for a reply that is not the expected one."""
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
            code, details = error.code(), shortened(printable(str(error.details())), LONGEST_DETAILS)
            too_large = code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details
            if code in FATAL or too_large:
                raise UserError(f"the learner at {self._address} refuses this worker: {details}") from None
            if code is grpc.StatusCode.UNAVAILABLE:
                raise LearnerLost(f"no connection: {details.rpartition(': ')[2]}") from None
            raise LearnerLost(f"{code.name.lower()}: {details}") from None
        with self._checking_replies():
            message = wire.decode(received)
        if message.kind == "over" and self._is_learner:  # nobody else may send a worker away
            if message.fields.get("reason") == "finished":
                raise Closed
            lost = LearnerLost("the learner was interrupted")
            lost.was_interrupted = True
            raise lost
        return message

    def close(self) -> None:
        """End the stream."""
        self._closed.set()
        self._requests.put(None)
        self._cancel()
        self._channel.close()
