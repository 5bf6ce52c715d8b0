"""The inference service of a learner: environment workers connect by a gRPC stream each, and get an actor's place.

    worker -> hello {protocol, nonce}
    worker <- challenge {nonce}
    worker -> claim {place (-1: any), generation, proof}       that it knows the token (`ddrl.inference.proof`)
    worker <- welcome {proof, place, num_envs, environment, seed}    the learner does too; what to build
    worker -> step                                             first observations, then one after each actions
    worker <- actions, or over {reason}                        and so on, until the stream ends

A worker whose environments take long says `alive` meanwhile, as often as it likes.

Bounded: as many streams as there are places and a few more, and connections likewise, messages no larger than a step,
one message under way per worker. A connection without a stream, and a stream whose worker has nothing more to say, end
within seconds. A worker that breaks the rules gets one line back and leaves one line in the log; others notice nothing.
"""

from __future__ import annotations

import math
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc

from ddrl.errors import Closed, UserError
from ddrl.inference import proof, wire
from ddrl.inference.endpoint import UNIX, Endpoint, target
from ddrl.inference.remote_env import RemoteEnv, Session
from ddrl.inference.wire import WireError
from ddrl.system.descriptors import make_room

NAME, METHOD = "ddrl.Inference", "Act"
SPARE_STREAMS = 16
"""Besides one for each place: of workers that are being refused, or take another's place."""
SPARE_CONNECTIONS = 64
"""Likewise, of anybody who can reach the address."""
HANDSHAKE_SECONDS = 5.0
"""For a new connection to speak HTTP/2 (and TLS), and then to begin a stream."""
HELLO_SECONDS = 10.0
"""For a new stream's worker to prove that it knows the token."""
BUILD_SECONDS = 300.0
"""For a worker to build its environments and reset them, and for a step of slow ones while it says that it is there."""
STEP_SECONDS = 60.0
"""For a step, or a sign: a process that is stopped keeps its connection, which is all that gRPC looks at."""
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
    ("grpc.enable_http_proxy", 0),  # no web proxy leads to a learner
)


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

    def __init__(self, endpoint: Endpoint, places: Sequence[Place], note: Callable[[str], None]) -> None:
        """Starts to listen. Raises UserError where it cannot."""
        endpoint.check()
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # of received ones: only read
        self._endpoint = endpoint
        self._places = places
        self._log = _Log(note)
        self._lock = threading.Lock()
        self._guests = [0] * len(places)
        self._streams: dict[Session, grpc.ServicerContext] = {}
        self._over = threading.Event()
        limit = wire.MAX_HEADER + max(place.env.step_bytes for place in places)
        streams, connections = len(places) + SPARE_STREAMS, len(places) + SPARE_CONNECTIONS
        make_room(connections)
        self._server = grpc.server(
            ThreadPoolExecutor(streams, thread_name_prefix="worker-stream"),
            options=[
                *OPTIONS,
                ("grpc.max_receive_message_length", limit),
                ("grpc.max_allowed_incoming_connections", connections),
                ("grpc.server_handshake_timeout_ms", int(1000 * HANDSHAKE_SECONDS)),
                ("grpc.max_connection_idle_ms", int(1000 * HANDSHAKE_SECONDS)),
            ],
            maximum_concurrent_rpcs=streams,
        )
        # No serialiser: messages are bytes.
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(self._serve)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(NAME, {METHOD: handler}),))
        self.address = self._listen()
        self._server.start()
        threading.Thread(target=self._watch, name="inference-service", daemon=True).start()

    def _listen(self) -> str:
        address, tls = self._endpoint.address, self._endpoint.tls
        try:
            if address.startswith(UNIX) and _answers(address.removeprefix(UNIX)):
                raise UserError(f"--listen {address}: another process listens there")
            if tls.certificate:
                port = self._server.add_secure_port(target(address), tls.of_server())
            else:
                port = self._server.add_insecure_port(target(address))
        except (RuntimeError, OSError) as error:
            raise UserError(f"--listen {address}: {' '.join(str(error).split())}") from None
        return address if address.startswith(UNIX) else f"{address.rpartition(':')[0]}:{port}"

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
        if not context.add_callback(lambda: self._gone(session)):
            self._gone(session)
        what = "has left"  # also where the stream broke: gRPC then drops this generator
        try:
            said: list[str | int] = [wire.VERSION, self._hello(session), proof.nonce()]
            yield wire.encode("challenge", {"nonce": said[-1]})
            yield self._welcome(session, said)
            yield from session.replies()
        except Closed:
            what = "has left before it said who it is"
        except Refused as refused:
            what = f"was refused: {refused}"
            context.abort(refused.code, str(refused))
        except WireError as error:
            what = f"was dropped: {error}"
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        finally:
            if not self._over.is_set():
                self._log.write(session.name, what)

    def _gone(self, session: Session) -> None:
        """The stream is over for gRPC too."""
        session.end()
        with self._lock:
            self._streams.pop(session, None)

    def _hello(self, session: Session) -> str:
        """The worker's nonce. Raises Refused, WireError, or Closed where nothing was said."""
        hello = _said(session, "hello")
        if (version := hello.value("protocol", int)) != wire.VERSION:
            raise Refused(
                grpc.StatusCode.FAILED_PRECONDITION, f"it speaks protocol {version}, the learner {wire.VERSION}"
            )
        return str(hello.value("nonce", str))

    def _welcome(self, session: Session, said: list[str | int]) -> bytes:
        """Answers a claim with a place, once it is proven. `said`: the protocol and both nonces. Raises as `_hello`."""
        claim, token = _said(session, "claim"), self._endpoint.token or ""
        place, session.generation = claim.value("place", int), claim.value("generation", int)
        said = [*said, place, session.generation]
        if not proof.holds(claim.value("proof", str), token, proof.VISITOR, *said):
            raise Refused(grpc.StatusCode.UNAUTHENTICATED, "its token is not the learner's")
        index = self._seat(session, place)
        session.name = f"{session.name}, in place {index}"
        with self._lock:
            guests = self._guests[index]
            self._guests[index] += 1
        offer = {"place": index, "num_envs": self._places[index].env.num_envs, **self._places[index].offer(guests)}
        return wire.encode("welcome", {"proof": proof.proof(token, proof.HOST, *said), **offer})

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
        """Ends streams whose worker says nothing for too long, or that go on though all is said."""
        while not self._over.wait(WATCH_SECONDS):
            now = time.monotonic()
            with self._lock:
                streams = list(self._streams.items())
            for session, context in streams:
                since, limit = _patience(session, now)
                if since is None or now - since <= limit:
                    continue
                if not session.is_lost:
                    what = "has not answered" if session.heard_at > (session.awaited_since or now) else "was silent"
                    self._log.write(session.name, f"{what} for {limit:.0f} s: its stream is ended")
                context.cancel()


def _patience(session: Session, now: float) -> tuple[float | None, float]:
    """Since when a worker is awaited (None: it is not), and for how many seconds it may be.

    For who it is, its first observations, a step; or, where it is lost, the end of its stream.
    """
    if session.lost_since is not None:
        return session.lost_since, ENDING_SECONDS
    if session.received < 2:
        return session.began, HELLO_SECONDS
    since = session.awaited_since
    if since is None or session.received == 2 or now - since > BUILD_SECONDS:
        return since, BUILD_SECONDS
    return session.heard_at, STEP_SECONDS


def _said(session: Session, kind: str) -> wire.Message:
    """The next message, which must be of a kind without tensors. Raises WireError, or Closed where nothing was said."""
    message = session.receive()
    if message is None:
        raise Closed
    with wire.refusing():
        said = wire.decode(message).expect(kind)
        said.arrays({})
        return said


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
