"""The inference service of a learner: each environment worker connects by a gRPC stream and takes an actor's slot.

    worker -> hello {protocol, nonce}
    worker <- challenge {nonce}
    worker -> claim {place (-1: any), generation, proof}       proof of the token (`ddrl.inference.proof`)
    worker <- welcome {proof, place, num_envs, environment, seed, ...}    the learner's proof; what to build
    worker -> step                                             first observations, then one after each actions
    worker <- actions, or over {reason}                        and so on, until the stream ends

A worker whose environments take long sends `alive` meanwhile, as often as it likes. Messages call a slot `place`.

The numbers of streams and of connections (a few more than slots), the size of a message and the messages under way of a
worker (one) are bounded. A connection without a stream, and a stream whose worker has nothing more to send, end within
seconds. A worker that breaks the rules gets one line back and leaves one line in the log; others are not affected.
"""

from __future__ import annotations

import math
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import grpc

from ddrl.errors import Closed, UserError
from ddrl.inference import proof, wire
from ddrl.inference.endpoint import UNIX, Endpoint, target
from ddrl.inference.remote_env import RemoteEnv, Session
from ddrl.inference.wire import WireError
from ddrl.system.descriptors import make_room

NAME, METHOD = "ddrl.Inference", "Act"
SPARE_STREAMS = 16
"""Streams beside one for each slot: of workers that are being refused, or replace another one."""
SPARE_CONNECTIONS = 64
"""Connections beside one for each slot, of anybody who can reach the address."""
HANDSHAKE_SECONDS = 5.0
"""Time limit for a new connection to speak HTTP/2 (and TLS), and then to begin a stream."""
HELLO_SECONDS = 10.0
"""Time limit for a new stream's worker to prove that it knows the token."""
BUILD_SECONDS = 300.0
"""Time limit for a worker to build its environments and reset them, and for a step during which it sends `alive`."""
STEP_SECONDS = 60.0
"""Time limit for a step or an `alive`: a stopped process keeps its connection, and gRPC notices nothing."""
WATCH_SECONDS = 1.0
ENDING_SECONDS = 2.0
"""Time for workers to hear that the run is over, and to leave."""
LOG_SECONDS = 10.0
"""The same reason is logged once in so many seconds, with its number."""
LOG_TEXTS = 100
OPTIONS = (
    ("grpc.keepalive_time_ms", 20_000),  # a machine that is gone is noticed
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.so_reuseport", 0),
    ("grpc.enable_http_proxy", 0),  # no web proxy leads to a learner
)


class Refused(Exception):
    """The reason why a worker is refused: one line for it and for the log."""

    def __init__(self, code: grpc.StatusCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class InferenceService:
    """The service of one learner's actors, each with a slot: its environments, which one worker at a time steps."""

    def __init__(self, endpoint: Endpoint, slots: Sequence[RemoteEnv], note: Callable[[str], None]) -> None:
        """Listen at the endpoint. Raise UserError if that is not possible. `note` gets lines for the log."""
        endpoint.check()
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # of received ones: only read
        self._endpoint = endpoint
        self._slots = slots
        self._log = _Log(note)
        self._lock = threading.Lock()
        self._streams: dict[Session, grpc.ServicerContext] = {}
        self._over = threading.Event()
        limit = wire.MAX_HEADER + max(slot.step_bytes for slot in slots)
        streams, connections = len(slots) + SPARE_STREAMS, len(slots) + SPARE_CONNECTIONS
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
            if address.startswith(UNIX):
                with socket.socket(socket.AF_UNIX) as probe:  # a file that a dead process has left may be replaced
                    if probe.connect_ex(address.removeprefix(UNIX)) == 0:
                        raise UserError(f"--listen {address}: another process listens there")
            if tls.certificate:
                port = self._server.add_secure_port(target(address), tls.of_server())
            else:
                port = self._server.add_insecure_port(target(address))
        except (RuntimeError, OSError) as error:
            raise UserError(f"--listen {address}: {' '.join(str(error).split())}") from None
        return address if address.startswith(UNIX) else f"{address.rpartition(':')[0]}:{port}"

    def close(self, reason: str) -> None:
        """End all streams, once workers have heard why.

        `reason`: finished, or interrupted (workers started by hand then come back).
        """
        self._over.set()
        for slot in self._slots:
            slot.close(reason)
        self._server.stop(grace=ENDING_SECONDS).wait()

    # Streams ----------------------------------------------------------------------------------------------------------

    def _serve(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """Yield the messages to one worker, in a thread of its own; the actor's thread reads those from the worker."""
        session = Session(f"worker at {context.peer() or 'this machine'}", requests)
        with self._lock:
            self._streams[session] = context
        if not context.add_callback(lambda: self._gone(session)):
            self._gone(session)
        what = "has left"  # also where the stream broke: gRPC then drops this generator
        try:
            yield from self._handshake(session)
            yield from session.replies()
            if self._over.is_set():  # unread messages of this side are lost once this process is gone
                session.wait_until_gone(ENDING_SECONDS)
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
        """Forget a stream that is over for gRPC, too."""
        session.gone()
        with self._lock:
            self._streams.pop(session, None)

    def _handshake(self, session: Session) -> Iterator[bytes]:
        """Yield the challenge, then the welcome. Raise Refused, WireError, or Closed if a message does not come."""
        hello, token = _receive(session, "hello"), self._endpoint.token or ""
        if (version := hello.value("protocol", int)) != wire.VERSION:
            raise Refused(
                grpc.StatusCode.FAILED_PRECONDITION, f"it speaks protocol {version}, the learner {wire.VERSION}"
            )
        nonces = hello.value("nonce", str), proof.nonce()
        yield wire.encode("challenge", {"nonce": nonces[1]})
        claim = _receive(session, "claim")
        wanted, session.generation = claim.value("place", int), claim.value("generation", int)
        transcript = (wire.VERSION, *nonces, wanted, session.generation)
        if not proof.holds(claim.value("proof", str), token, proof.CLIENT, *transcript):
            raise Refused(grpc.StatusCode.UNAUTHENTICATED, "its token is not the learner's")
        index = self._attach(session, wanted)
        session.name = f"{session.name}, in place {index}"
        offer = {"place": index, **self._slots[index].offer()}
        yield wire.encode("welcome", {"proof": proof.proof(token, proof.SERVER, *transcript), **offer})

    def _attach(self, session: Session, wanted: int) -> int:
        """Attach a session to the slot `wanted`, or to any that is free (-1); return the slot's index."""
        if not -1 <= wanted < len(self._slots):
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, f"place {wanted} is none of {len(self._slots)}")
        for index in range(len(self._slots)) if wanted < 0 else [wanted]:
            if self._slots[index].attach(session):
                return index
        what = "every place is" if wanted < 0 else f"place {wanted} is"
        raise Refused(grpc.StatusCode.ALREADY_EXISTS, f"{what} taken by another worker")

    def _watch(self) -> None:
        """Cancel streams whose worker is silent for too long, or that stay open after their end."""
        while not self._over.wait(WATCH_SECONDS):
            now = time.monotonic()
            with self._lock:
                streams = list(self._streams.items())
            for session, context in streams:
                since, limit = _time_limit(session, now)
                if since is None or now - since <= limit:
                    continue
                if session.lost_since is None:
                    what = "has not answered" if session.heard_at > (session.awaited_since or now) else "was silent"
                    self._log.write(session.name, f"{what} for {limit:.0f} s: its stream is ended")
                context.cancel()


def _time_limit(session: Session, now: float) -> tuple[float | None, float]:
    """Return since when something is awaited of a worker (None: nothing is), and for how many seconds it may be.

    That is the handshake, the first observations, a step, or, if the worker is lost, the end of its stream.
    """
    if session.lost_since is not None:
        return session.lost_since, ENDING_SECONDS
    if session.received < 2:
        return session.began, HELLO_SECONDS
    since = session.awaited_since
    if since is None or session.received == 2 or now - since > BUILD_SECONDS:
        return since, BUILD_SECONDS
    return session.heard_at, STEP_SECONDS


def _receive(session: Session, kind: str) -> wire.Message:
    """Return the next message: of this kind, without tensors. Raise WireError, or Closed if there is none."""
    data = session.receive()
    if data is None:
        raise Closed
    with wire.refusing():
        message = wire.decode(data).expect(kind)
        message.arrays({})
        return message


class _Log:
    """Writes lines, but the same one only once in `LOG_SECONDS`, with the number of those left out."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._lock = threading.Lock()
        self._written: dict[str, tuple[float, int]] = {}

    def write(self, who: str, what: str) -> None:
        """Write that `what` happened to `who`, unless the same was written of anybody a moment ago."""
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
