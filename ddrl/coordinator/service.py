"""The inference service of a learner: environment workers connect by a gRPC stream each, and get an actor's place.

    worker -> hello {protocol, place (-1: any), generation}    in metadata: the token, where the service wants one
    worker <- welcome {place, num_envs, environment, seed}     what to build
    worker -> step                                             first observations, then one after each actions
    worker <- actions, or over {reason}                        and so on, until the stream ends

Bounded: as many streams as there are places and a few more, messages no larger than a step, one message under way per
worker. A worker that breaks the rules gets one line back and leaves one line in the log; others notice nothing.
"""

from __future__ import annotations

import hmac
import math
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from ddrl.coordinator import wire
from ddrl.coordinator.remote import RemoteEnv, Session
from ddrl.coordinator.wire import WireError
from ddrl.errors import Closed, UserError

NAME, METHOD = "ddrl.Inference", "Act"
SPARE_STREAMS = 16
"""Besides one for each place: of workers that are being refused, or take another's place."""
HELLO_SECONDS = 10.0
"""For a new connection to say hello."""
BUILD_SECONDS = 300.0
"""For a worker to build its environments and reset them."""
STEP_SECONDS = 60.0
"""For a step of them: a process that is stopped keeps its connection, which is all that gRPC looks at."""
WATCH_SECONDS = 1.0
ENDING_SECONDS = 2.0
"""For workers to hear that the run is over."""
LOG_SECONDS = 10.0
"""A reason to refuse is logged once in so long, with how often it came."""
LOG_TEXTS = 100
OPTIONS = (
    ("grpc.keepalive_time_ms", 20_000),  # a host that is gone is noticed
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.so_reuseport", 0),
)


@dataclass(frozen=True)
class Door:
    """Where a service listens, and who may come in."""

    address: str
    """unix:/path/of/a/socket, or HOST:PORT (port 0: any free one)."""
    token: str | None = None
    certificate: Path | None = None
    """With `key`, PEM: connections are encrypted (TLS)."""
    key: Path | None = None

    def check(self) -> None:
        """Raises UserError where anybody could come in, or files are missing."""
        if (self.certificate is None) != (self.key is None):
            raise UserError("--certificate and --key go together")
        if not (self.address.startswith("unix:") or is_loopback(self.address)) and not self.token:
            raise UserError(
                f"--listen {self.address}: other machines could send anything; give a token (--token-file) or listen "
                "on 127.0.0.1:PORT or unix:/PATH"
            )


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach HOST:PORT."""
    host = address.rpartition(":")[0]
    return host in ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True)
class Place:
    """An actor's environments, and what a worker is told to build for them."""

    env: RemoteEnv
    offer: Callable[[int], dict[str, Any]]
    """How many workers had the place before -> fields of the welcome: name, seed and options of the environments."""


class Refused(Exception):
    """A worker may not come in: one line for it and for the log."""

    def __init__(self, code: grpc.StatusCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class InferenceService:
    """Serves the places of one learner's actors."""

    def __init__(self, door: Door, places: Sequence[Place], note: Callable[[str], None]) -> None:
        """Starts to listen. Raises UserError where it cannot."""
        door.check()
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # of received ones: only read
        self._door = door
        self._places = places
        self._log = _Log(note)
        self._lock = threading.Lock()
        self._guests = [0] * len(places)
        self._streams: dict[Session, grpc.ServicerContext] = {}
        self._over = threading.Event()
        limit = wire.MAX_HEADER + max(place.env.step_bytes for place in places)
        streams = len(places) + SPARE_STREAMS
        self._server = grpc.server(
            ThreadPoolExecutor(streams, thread_name_prefix="worker-stream"),
            options=[*OPTIONS, ("grpc.max_receive_message_length", limit)],
            maximum_concurrent_rpcs=streams,
        )
        # No serialiser: messages are bytes.
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(self._serve)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(NAME, {METHOD: handler}),))
        self.address = self._listen()
        self._server.start()
        threading.Thread(target=self._watch, name="inference-service", daemon=True).start()

    def _listen(self) -> str:
        door = self._door
        try:
            if door.address.startswith("unix:") and _answers(door.address.removeprefix("unix:")):
                raise UserError(f"--listen {door.address}: another process listens there")
            if door.certificate and door.key:
                pair = (door.key.read_bytes(), door.certificate.read_bytes())
                port = self._server.add_secure_port(door.address, grpc.ssl_server_credentials([pair]))
            else:
                port = self._server.add_insecure_port(door.address)
        except (RuntimeError, OSError) as error:
            raise UserError(f"--listen {door.address}: {' '.join(str(error).split())}") from None
        return door.address if door.address.startswith("unix:") else f"{door.address.rpartition(':')[0]}:{port}"

    def close(self, reason: str) -> None:
        """Ends all streams. `reason`: finished, or interrupted (workers started by hand then come back)."""
        self._over.set()
        for place in self._places:
            place.env.close(reason)
        self._server.stop(grace=ENDING_SECONDS).wait()

    # Streams ----------------------------------------------------------------------------------------------------------

    def _serve(self, requests: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
        """One worker's stream, in a thread of its own; what the worker says is read by the actor's thread."""
        session = Session(f"worker at {context.peer() or 'this machine'}", requests, time.monotonic)
        with self._lock:
            self._streams[session] = context
        context.add_callback(session.end)
        what = "has left"  # also where the stream broke: gRPC then drops this generator
        try:
            self._check_token(context)
            yield self._welcome(session)
            yield from session.replies()
        except Closed:
            what = "has left before it said hello"
        except Refused as refused:
            what = f"was refused: {refused}"
            context.abort(refused.code, str(refused))
        except WireError as error:
            what = f"was dropped: {error}"
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        finally:
            with self._lock:
                self._streams.pop(session, None)
            if not self._over.is_set():
                self._log.write(session.name, what)

    def _check_token(self, context: grpc.ServicerContext) -> None:
        if self._door.token is None:
            return
        given = dict(context.invocation_metadata()).get("authorization", "")
        if not hmac.compare_digest(str(given).encode(), f"Bearer {self._door.token}".encode()):
            raise Refused(grpc.StatusCode.UNAUTHENTICATED, "its token is not the learner's")

    def _welcome(self, session: Session) -> bytes:
        """Answers a hello with a place. Raises Refused, WireError, or Closed where nothing was said."""
        message = session.receive()
        if message is None:
            raise Closed
        hello = wire.decode(message).expect("hello")
        hello.arrays({})
        if (version := hello.value("protocol", int)) != wire.VERSION:
            raise Refused(
                grpc.StatusCode.FAILED_PRECONDITION, f"it speaks protocol {version}, the learner {wire.VERSION}"
            )
        session.generation = hello.value("generation", int)
        index = self._seat(session, hello.value("place", int))
        session.name = f"{session.name}, in place {index}"
        place = self._places[index]
        with self._lock:
            guests = self._guests[index]
            self._guests[index] += 1
        return wire.encode("welcome", {"place": index, "num_envs": place.env.num_envs, **place.offer(guests)})

    def _seat(self, session: Session, wanted: int) -> int:
        """Attaches a session to the place that it wants, or (-1) to one that is free."""
        if not -1 <= wanted < len(self._places):
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, f"place {wanted} is none of {len(self._places)}")
        for index in range(len(self._places)) if wanted < 0 else [wanted]:
            if self._places[index].env.attach(session):
                return index
        what = "every place is" if wanted < 0 else f"place {wanted} is"
        raise Refused(grpc.StatusCode.ALREADY_EXISTS, f"{what} taken by another worker")

    def _watch(self) -> None:
        """Ends streams whose worker says nothing for too long."""
        while not self._over.wait(WATCH_SECONDS):
            now = time.monotonic()
            with self._lock:
                streams = list(self._streams.items())
            for session, context in streams:
                since, limit = session.awaited_since, _patience(session)
                if since is not None and now - since > limit:
                    self._log.write(session.name, f"was silent for {limit:.0f} s: its stream is ended")
                    context.cancel()


def _patience(session: Session) -> float:
    """Seconds that a worker has for what it is to say next: hello, its first observations, a step."""
    return (HELLO_SECONDS, BUILD_SECONDS, STEP_SECONDS)[min(session.received, 2)]


def _answers(path: str) -> bool:
    """Whether somebody listens on a Unix socket; a file that a dead process has left may be replaced."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(path) == 0


class _Log:
    """Writes one line; what comes again and again, once in a while and with its number."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._lock = threading.Lock()
        self._written: dict[str, tuple[float, int]] = {}

    def write(self, who: str, what: str) -> None:
        """Unless the same happened a moment ago, to whomever."""
        with self._lock:
            now = time.monotonic()
            last, held = self._written.get(what, (-math.inf, 0))
            if now - last < LOG_SECONDS:
                self._written[what] = last, held + 1
                return
            self._written[what] = now, 0
            while len(self._written) > LOG_TEXTS:
                self._written.pop(next(iter(self._written)))
        more = f" ({held} more before)" if held else ""
        self._note(f"inference service: a {who} {what}{more}")
