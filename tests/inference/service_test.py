"""The inference service against workers that are wrong, late, dead or many: others notice nothing, a line is logged."""

from __future__ import annotations

import json
import math
import queue
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest

from ddrl.coordinator.traffic import KEPT, Traffic
from ddrl.environments.base import registry
from ddrl.errors import Closed, NonFiniteError, UserError
from ddrl.inference import client as connection_module
from ddrl.inference import proof, wire
from ddrl.inference import service as service_module
from ddrl.inference.central import Meter
from ddrl.inference.client import Connection, LearnerLost
from ddrl.inference.endpoint import Endpoint
from ddrl.inference.remote_env import RemoteEnv, Session
from ddrl.inference.service import METHOD, NAME, InferenceService
from ddrl.inference.wire import WireError
from ddrl.inference.worker import Worker
from ddrl.types import EnvStep

SPEC = registry.spec_for("toy/catch")
ENVS = 3
TOKEN = "a-token-of-this-test"
NONCE = "0" * proof.LENGTH
NEVER = threading.Event()


class Rig:
    """A service with places whose actors do nothing but step."""

    def __init__(self, endpoint: Endpoint, places: int, actors: int, groups: int = 1) -> None:
        self.log: list[str] = []
        self.steps: list[list[EnvStep]] = [[] for _ in range(places)]
        self.envs = [
            RemoteEnv(SPEC, groups * ENVS, Traffic(1), partial(offer, index), groups) for index in range(places)
        ]
        self.service = InferenceService(endpoint, self.envs, self.log.append)
        self._actors = [threading.Thread(target=self._act, args=(i,), daemon=True) for i in range(actors)]
        for actor in self._actors:
            actor.start()

    def _act(self, index: int) -> None:
        with suppress(Closed):
            self.steps[index].append(self.envs[index].reset())
            while True:
                self.steps[index].append(self.envs[index].step(np.ones(ENVS, dtype=np.int64)))

    def connect(self, **options: Any) -> Connection:
        return Connection(Endpoint(self.service.address, **({"token": TOKEN} | options)))

    def progresses(self, index: int, steps: int = 5) -> bool:
        """Whether an actor's environments are stepped, now."""
        before = len(self.steps[index])
        return until(lambda: len(self.steps[index]) >= before + steps)

    def close(self, reason: str = "finished") -> None:
        self.service.close(reason)
        for actor in self._actors:
            actor.join(10)
            assert not actor.is_alive()


def offer(place: int, guests: int) -> dict[str, Any]:
    name = f"actor {place}, worker {guests}"
    return {
        "environment": {"name": "toy/catch"},
        "env_threads": 1,
        "first_env": place,
        "seed": 7 + guests,
        "name": name,
    }


def until(condition: Callable[[], bool], seconds: float = 20) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    return condition()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(Endpoint(f"unix:{tmp_path}/s", TOKEN), places=2, actors=2)
    yield made
    made.close()


def work_on(worker: Worker, over: threading.Event = NEVER) -> None:
    """Until the worker raises, or `over` is set."""
    while not over.is_set():
        worker.step()


@contextmanager
def working(rig: Rig, **options: Any) -> Iterator[Worker]:
    """A real worker, in a thread, for the block."""
    connection = rig.connect()
    worker, over = Worker(connection, **options), threading.Event()

    def work() -> None:
        with suppress(Closed, LearnerLost, UserError):
            work_on(worker, over)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield worker
    finally:
        over.set()
        worker.close()  # it may be waiting for actions
        thread.join(10)


@contextmanager
def stream(rig: Rig, *messages: bytes, claim: dict[str, Any] | None = None, token: str = TOKEN) -> Iterator[Any]:
    """A bare stream that proves who it is (unless there is no `claim`), sends these messages and then stays open."""
    with open_stream(rig, claim, token) as (call, requests):
        for message in messages:
            requests.put(message)
        yield call


@contextmanager
def open_stream(rig: Rig, claim: dict[str, Any] | None, token: str = TOKEN) -> Iterator[tuple[Any, Any]]:
    """Such a stream, and the queue of what it sends, which None ends: then it is half closed."""
    options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    channel = grpc.insecure_channel(rig.service.address, options=options)
    requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    call = channel.stream_stream(f"/{NAME}/{METHOD}")(iter(requests.get, None), timeout=60)
    try:
        if claim is not None:
            requests.put(hello())
            said = {"place": -1, "generation": 0} | claim
            both = (wire.VERSION, NONCE, wire.decode(next(call)).value("nonce", str), said["place"], said["generation"])
            requests.put(wire.encode("claim", {"proof": proof.proof(token, proof.CLIENT, *both)} | said))
        yield call, requests
    finally:
        requests.put(None)
        call.cancel()
        channel.close()


def hello(**changes: Any) -> bytes:
    return wire.encode("hello", {"protocol": wire.VERSION, "nonce": NONCE} | changes)


def step(*, waited: float = 0.0, cpu_seconds: float = 0.0, **changes: Any) -> bytes:
    """What a worker sends first, but for these clocks and tensors."""
    first = registry.make("toy/catch", num_envs=ENVS, seed=0).reset()
    clocks = {"waited": waited, "cpu_seconds": cpu_seconds, "group": 0}
    return wire.encode("step", clocks, first._replace(**changes)._asdict())


def described(*tensors: tuple[str, str, list[int]]) -> bytes:
    """A step that says what its tensors are, and has none."""
    header = {"kind": "step", "waited": 0.0, "cpu_seconds": 0.0, "group": 0, "tensors": tensors}
    text = json.dumps(header).encode()
    return struct.pack("<I", len(text)) + text


def outcome(call: Any) -> tuple[grpc.StatusCode, str]:
    """How the learner ends a stream."""
    with pytest.raises(grpc.RpcError):
        for _ in call:
            pass
    return call.code(), call.details()


def test_a_worker_gets_a_free_place_and_what_to_build(rig: Rig) -> None:
    with working(rig) as first, working(rig) as second:
        assert {first.offer.place, second.offer.place} == {0, 1}
        assert first.offer.environment == {"name": "toy/catch"}
        assert rig.progresses(0)
        assert rig.progresses(1)


def test_actions_that_are_no_numbers_end_the_run_and_not_its_workers() -> None:
    spec = registry.spec_for("toy/track")
    remote, sent = RemoteEnv(spec, 2, Traffic(1), lambda guests: {}), list[bytes]()
    session: Any = SimpleNamespace(send=sent.append, end=sent.append)
    remote._session = remote._read = remote._at[0] = session
    with pytest.raises(NonFiniteError, match=r"^training diverged: the policy's action in column 1 is nan$"):
        remote.step(np.array([[0.0], [math.nan]], np.float32))
    assert sent == []


def test_steps_arrive_as_the_environments_made_them(rig: Rig) -> None:
    with working(rig):
        assert until(lambda: len(rig.steps[0]) > 40)
    env = registry.make("toy/catch", num_envs=ENVS, seed=7)
    expected = [env.reset()] + [env.step(np.ones(ENVS, dtype=np.int64)) for _ in range(40)]
    for received, made in zip(rig.steps[0], expected, strict=False):
        for one, other in zip(received, made, strict=True):
            np.testing.assert_array_equal(one, other)


def holding(field: str, value: float) -> bytes:
    """A first step whose last column has this value as its reward, or in its observation."""
    array = getattr(registry.make("toy/catch", num_envs=ENVS, seed=0).reset(), field).copy()
    array.reshape(ENVS, -1)[-1, 0] = value
    return step(**{field: array})


NOT_FINITE = {
    f"{field} {value}": ({}, [holding(field, value)], grpc.StatusCode.INVALID_ARGUMENT, f"column 2: the {field}")
    for field in ("reward", "observation")
    for value in (math.nan, -math.inf, 3e38)
}
CLOCKS = {
    f"{name} {value}": ({}, [step(**{name: value})], grpc.StatusCode.INVALID_ARGUMENT, f"field '{name}' is")
    for name in ("waited", "cpu_seconds")
    for value in (math.nan, math.inf, 1e308, -1.0)
}
HUGE = 2**31 - 1
WRONG: dict[str, tuple[dict[str, Any] | None, list[bytes], grpc.StatusCode, str]] = {
    "shape": (
        {},
        [step(observation=np.zeros((ENVS, 2), np.float32))],
        grpc.StatusCode.INVALID_ARGUMENT,
        "tensor 'observation' is float32 [3, 2]; expected",
    ),
    "no elements beside huge dimensions": (
        {},
        [described(("observation", "uint8", [0, HUGE, HUGE, HUGE]))],
        grpc.StatusCode.INVALID_ARGUMENT,
        "tensor 'observation' has no elements",
    ),
    "huge": (
        {},
        [described(("observation", "uint8", [HUGE] * 8))],
        grpc.StatusCode.INVALID_ARGUMENT,
        "tensor 'observation' ends at byte",
    ),
    "dtype": (
        {},
        [step(reward=np.zeros(ENVS, np.int64))],
        grpc.StatusCode.INVALID_ARGUMENT,
        "tensor 'reward' is int64",
    ),
    "no episode begins": (
        {},
        [step(start=np.zeros(ENVS, bool))],
        grpc.StatusCode.INVALID_ARGUMENT,
        "the first step must begin episodes",
    ),
    "seconds": (
        {},
        [wire.encode("step", {"waited": float("nan"), "cpu_seconds": 0.0, "group": 0}, {})],
        grpc.StatusCode.INVALID_ARGUMENT,
        "expected",
    ),
    "no message of ours": (None, [b"GET / HTTP/1.1"], grpc.StatusCode.INVALID_ARGUMENT, "header"),
    "no hello": (None, [step()], grpc.StatusCode.INVALID_ARGUMENT, "'step' came; expected: hello"),
    "no claim": (None, [hello(), step()], grpc.StatusCode.INVALID_ARGUMENT, "'step' came; expected: claim"),
    "protocol": (
        None,
        [hello(protocol=99)],
        grpc.StatusCode.FAILED_PRECONDITION,
        f"it speaks protocol 99, the learner {wire.VERSION}",
    ),
    "protocol of before": (
        None,
        [wire.encode("hello", {"protocol": 2, "place": -1, "generation": 0})],
        grpc.StatusCode.FAILED_PRECONDITION,
        "it speaks protocol 2",
    ),
    "place": ({"place": 7}, [], grpc.StatusCode.FAILED_PRECONDITION, "place 7 is none of 2"),
    "place is no number": ({"place": "0"}, [], grpc.StatusCode.INVALID_ARGUMENT, "field 'place'"),
    "oversized": ({}, [bytes(10**6)], grpc.StatusCode.RESOURCE_EXHAUSTED, "larger than max"),
    "oversized hello": (None, [bytes(10**6)], grpc.StatusCode.RESOURCE_EXHAUSTED, "larger than max"),
    **NOT_FINITE,
    **CLOCKS,
}


@pytest.mark.parametrize("name", WRONG)
def test_a_worker_that_sends_something_wrong_is_sent_away(rig: Rig, name: str) -> None:
    claim, messages, code, details = WRONG[name]
    with working(rig) as good:
        index = good.offer.place
        with stream(rig, *messages, claim=claim) as call:
            ended = outcome(call)
        assert ended[0] is code, ended
        assert details in ended[1]
        assert rig.progresses(index)
        assert until(lambda: len(rig.log) == 1)
        with working(rig, place=1 - index) as another:  # the place can be had again
            assert rig.progresses(another.offer.place)
    metrics = [env._traffic.take() for env in rig.envs]
    assert all(math.isfinite(value) for taken in metrics for value in taken.values())
    assert all("\n" not in line for line in rig.log)


def test_an_error_that_nobody_thought_of_ends_the_stream_that_made_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unthought_of(*_: object) -> EnvStep:
        raise MemoryError

    with working(rig, place=0):
        with monkeypatch.context() as patched:
            patched.setattr(rig.envs[1]._decoders[0], "decode", unthought_of)
            with stream(rig, step(), claim={"place": 1}) as call:
                code, details = outcome(call)
        assert (code, details) == (grpc.StatusCode.INVALID_ARGUMENT, "a message cannot be read: MemoryError: ")
        with working(rig, place=1):
            assert rig.progresses(0)
            assert rig.progresses(1)


# The token ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", ["", "another", TOKEN + "x", "é" * 20])
def test_a_worker_without_the_token_is_refused(rig: Rig, token: str) -> None:
    with stream(rig, claim={}, token=token) as call:
        code, details = outcome(call)
    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert TOKEN not in details
    with pytest.raises(UserError, match="refuses this worker: its token"):
        rig.connect(token=token).join()
    assert all(TOKEN not in line for line in rig.log)


def test_a_proof_of_another_conversation_or_of_the_learner_is_none(rig: Rig) -> None:
    for proofs in (proof.proof(TOKEN, proof.CLIENT, wire.VERSION, NONCE, NONCE, -1, 0), "", "\ud800"):
        with stream(rig, claim={"proof": proofs}) as call:
            assert outcome(call)[0] is grpc.StatusCode.UNAUTHENTICATED
    said = (wire.VERSION, NONCE, "1" * proof.LENGTH, -1, 0)
    assert not proof.holds(proof.proof(TOKEN, proof.SERVER, *said), TOKEN, proof.CLIENT, *said)
    assert proof.holds(proof.proof(TOKEN, proof.CLIENT, *said), TOKEN, proof.CLIENT, *said)


@pytest.mark.parametrize("knows", ["nothing", "the worker's own proof"])
def test_a_worker_steps_nothing_for_a_learner_that_does_not_know_the_token(tmp_path: Path, knows: str) -> None:
    """A server that somebody has put in the learner's place: it gets no token, and no environments are made for it."""
    heard: list[bytes] = []

    def serve(requests: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
        heard.extend([next(requests)])
        yield wire.encode("challenge", {"nonce": "1" * proof.LENGTH})
        heard.extend([next(requests)])
        own = wire.decode(heard[1]).value("proof", str)
        shown = own if knows == "the worker's own proof" else proof.proof("", proof.SERVER)
        yield wire.encode("welcome", {"proof": shown, "place": 0, "num_envs": 10**9, **offer(0, 0)})

    with planted(serve, tmp_path), pytest.raises(UserError, match="does not know this worker's token"):
        Worker(Connection(Endpoint(f"unix:{tmp_path}/s", TOKEN)))
    assert len(heard) == 2
    assert TOKEN.encode() not in b"".join(heard)


@contextmanager
def planted(serve: Callable[[Any, grpc.ServicerContext], Iterator[bytes]], folder: Path) -> Iterator[None]:
    """A server of somebody else's at `folder`/s."""
    server = grpc.server(ThreadPoolExecutor(1))
    handler = grpc.stream_stream_rpc_method_handler(serve)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(NAME, {METHOD: handler}),))
    server.add_insecure_port(f"unix:{folder}/s")
    server.start()
    try:
        yield
    finally:
        server.stop(None).wait()


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("reason", ["finished", "interrupted"])
def test_who_has_not_proven_to_be_the_learner_sends_no_worker_away(tmp_path: Path, reason: str, *, first: bool) -> None:
    def serve(requests: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
        next(requests)
        if not first:
            yield wire.encode("challenge", {"nonce": "1" * proof.LENGTH})
            next(requests)
        yield wire.encode("over", {"reason": reason})

    with planted(serve, tmp_path), pytest.raises(UserError, match="is no learner of ddrl"):
        Worker(Connection(Endpoint(f"unix:{tmp_path}/s", TOKEN)))


def test_what_a_stranger_says_reaches_no_terminal_as_more_than_a_line_of_plain_text(tmp_path: Path) -> None:
    def serve(requests: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
        context.abort(grpc.StatusCode.UNAUTHENTICATED, "\x1b]0;owned\x07\x1b[2J\n" + "a" * 4_000)
        yield b""

    with planted(serve, tmp_path), pytest.raises(UserError, match="refuses this worker") as caught:
        Worker(Connection(Endpoint(f"unix:{tmp_path}/s", TOKEN)))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500 + len(str(tmp_path))


def test_of_two_workers_with_one_id_the_second_is_refused(rig: Rig) -> None:
    with working(rig, place=1):
        assert rig.progresses(1)
        with pytest.raises(LearnerLost, match="place 1 is taken by another worker"):
            rig.connect().join(place=1)
        assert rig.progresses(1)
    assert sum("taken" in line for line in rig.log) == 1


def test_a_later_generation_takes_the_place_of_an_earlier_one(rig: Rig) -> None:
    with working(rig, place=0), working(rig, place=0, generation=1) as later:
        assert later.offer.name == "actor 0, worker 1"
        assert rig.progresses(0)
        with pytest.raises(LearnerLost, match="taken"):
            rig.connect().join(place=0, generation=1)


def test_when_all_places_are_taken_a_worker_is_asked_to_come_again(rig: Rig) -> None:
    with working(rig), working(rig), pytest.raises(LearnerLost, match="every place is taken"):
        rig.connect().join()
    with working(rig):
        assert rig.progresses(0)


def test_a_worker_that_is_killed_is_replaced_and_its_episodes_are_abandoned(rig: Rig) -> None:
    command = [sys.executable, "-c", WORKER, rig.service.address, TOKEN]
    process = subprocess.Popen(command)
    try:
        assert rig.progresses(0, 50)
    finally:
        process.kill()
        process.wait()
    assert until(lambda: rig.envs[0].session is None)
    before = len(rig.steps[0])
    with working(rig, place=0) as another:
        assert another.offer.name == "actor 0, worker 1"
        assert rig.progresses(0)
    first = rig.steps[0][before]
    assert first.start.all()
    assert not first.valid.any()
    assert not first.ended.any()
    assert not first.reward.any()
    assert [line for line in rig.log if "left" in line] != []


def test_a_worker_that_is_stopped_loses_its_place_and_comes_back_as_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "STEP_SECONDS", 0.5)
    rig = Rig(Endpoint(f"unix:{tmp_path}/s", TOKEN), places=1, actors=1)
    process = subprocess.Popen([sys.executable, "-c", WORKER, rig.service.address, TOKEN])
    try:
        assert rig.progresses(0, 50)
        process.send_signal(signal.SIGSTOP)
        assert until(lambda: rig.envs[0].session is None), "it still has its place"
        with working(rig, place=0) as another:
            assert another.offer.name == "actor 0, worker 1"
            assert rig.progresses(0)
            process.send_signal(signal.SIGCONT)
            assert process.wait(20) != 0, "its stream was ended"
            assert rig.progresses(0)
        assert sum("was silent for" in line for line in rig.log) == 1
    finally:
        process.kill()
        process.wait()
        rig.close()


@pytest.mark.parametrize(("longest", "goes_on"), [(300.0, True), (0.8, False)])
def test_a_worker_whose_environments_take_long_says_so_and_keeps_its_place_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, longest: float, goes_on: bool
) -> None:
    monkeypatch.setattr(service_module, "STEP_SECONDS", 0.4)
    monkeypatch.setattr(service_module, "BUILD_SECONDS", longest)
    monkeypatch.setattr(service_module, "WATCH_SECONDS", 0.1)
    monkeypatch.setattr(connection_module, "BEAT_SECONDS", 0.1)
    rig = Rig(Endpoint(f"unix:{tmp_path}/s", TOKEN), places=1, actors=1)
    try:
        worker = Worker(rig.connect())
        worker.step()
        time.sleep(1.2)  # as an environment that loads a level
        if goes_on:
            for _ in range(3):
                worker.step()
            assert rig.log == []
        else:
            with pytest.raises(LearnerLost):
                worker.step()
            assert sum("has not answered for 1 s" in line for line in rig.log) == 1
        worker.close()
    finally:
        rig.close()


WORKER = """
import sys
from ddrl.inference.client import Connection
from ddrl.inference.endpoint import Endpoint
from ddrl.inference.worker import Worker
worker = Worker(Connection(Endpoint(*sys.argv[1:])), place=0)
while True:
    worker.step()
"""


def test_a_silent_connection_is_ended(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "HELLO_SECONDS", 0.3)
    monkeypatch.setattr(service_module, "WATCH_SECONDS", 0.1)
    for said in ([], [hello()]):
        with working(rig) as good, stream(rig, *said) as call:
            with pytest.raises(grpc.RpcError):
                list(call)
            assert call.code() is grpc.StatusCode.CANCELLED
            assert rig.progresses(good.offer.place)
    assert sum("silent" in line for line in rig.log) == 1


def test_half_closed_streams_end_and_their_places_are_free_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than there is room for: each says who it is, sends a first step, and then that it will say nothing more."""
    with working(rig, place=0):
        for _ in range(2 * service_module.SPARE_STREAMS):
            with open_stream(rig, {"place": 1}) as (call, requests):
                next(call)
                requests.put(step())
                requests.put(None)
                assert [wire.decode(answer).kind for answer in call] == ["actions"]  # and the stream ends
                assert call.code() is grpc.StatusCode.OK
        with working(rig, place=1):
            assert rig.progresses(1)
        assert rig.progresses(0)


def test_a_stream_that_its_worker_keeps_open_when_all_is_said_is_cancelled(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "ENDING_SECONDS", 0.2)
    monkeypatch.setattr(service_module, "WATCH_SECONDS", 0.1)
    over = threading.Event()
    session, context = Session("a worker", iter(())), Cancelled(over)
    session.end()
    with rig.service._lock:
        rig.service._streams[session] = context  # type: ignore[assignment]
    assert over.wait(10)
    rig.service._gone(session)
    assert session not in rig.service._streams


class Cancelled:
    """Of a stream only that it was cancelled."""

    def __init__(self, over: threading.Event) -> None:
        self.cancel = over.set


def test_a_worker_that_says_nothing_loses_its_place(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "BUILD_SECONDS", 0.3)
    with stream(rig, claim={"place": 0}) as call:
        assert outcome(call)[0] is grpc.StatusCode.CANCELLED
    with working(rig, place=0):
        assert rig.progresses(0)


def test_a_half_open_connection_holds_up_nobody(tmp_path: Path) -> None:
    """Sockets that connect and say nothing, or something that is no HTTP/2, or half of a frame."""
    rig = Rig(Endpoint("127.0.0.1:0", TOKEN), places=1, actors=1)
    try:
        host, port = rig.service.address.split(":")
        sockets = [socket.create_connection((host, int(port))) for _ in range(50)]
        for index, one in enumerate(sockets):
            one.sendall([b"", b"\x00" * 100, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00"][index % 3])
        with working(rig):
            assert rig.progresses(0)
            for one in sockets:
                one.close()
            assert rig.progresses(0)
    finally:
        rig.close()


def test_a_thousand_connects_in_a_burst_hold_up_nobody(rig: Rig) -> None:
    refused: list[str] = []

    def knock(_: int) -> None:
        connection = rig.connect()
        try:
            connection.join()
        except LearnerLost as lost:
            refused.append(str(lost))
        finally:
            connection.close()

    with working(rig) as first, working(rig) as second, ThreadPoolExecutor(100) as pool:
        burst = [pool.submit(knock, i) for i in range(1000)]
        while not all(one.done() for one in burst):
            assert rig.progresses(first.offer.place, 1)
            assert rig.progresses(second.offer.place, 1)
        for one in burst:
            one.result()
    assert len(refused) == 1000
    assert len(rig.log) < 10
    with working(rig):
        assert rig.progresses(0)


def test_workers_hear_why_the_learner_ends(tmp_path: Path) -> None:
    for reason in ("finished", "interrupted"):
        rig = Rig(Endpoint(f"unix:{tmp_path}/s", TOKEN), places=1, actors=1)
        worker = Worker(rig.connect())
        worker.step()
        ended: list[BaseException] = []

        def work(worker: Worker = worker, ended: list[BaseException] = ended) -> None:
            try:
                work_on(worker)
            except (Closed, LearnerLost) as error:
                ended.append(error)
            finally:
                worker.close()  # the learner waits for it

        working = threading.Thread(target=work)  # what it hears stays to be read only as long as the learner is there
        working.start()
        rig.close(reason)
        working.join()
        assert isinstance(ended[0], Closed if reason == "finished" else LearnerLost)
        assert reason == "finished" or ended[0].was_interrupted  # type: ignore[attr-defined]


@pytest.mark.parametrize(("reason", "heard"), [("finished", Closed), ("interrupted", LearnerLost)])
def test_the_learner_stays_until_a_slow_worker_has_heard_that_the_run_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str, heard: type[Exception]
) -> None:
    """If the learner left before, the stream could break, and the worker would look for a run that is over."""
    monkeypatch.setattr(service_module, "ENDING_SECONDS", 60.0)
    rig = Rig(Endpoint(f"unix:{tmp_path}/s", TOKEN), places=1, actors=1)
    worker = Worker(rig.connect())
    worker.step()
    closing = threading.Thread(target=rig.close, args=(reason,))
    closing.start()
    closing.join(0.5)  # the worker's environments take this long, meanwhile
    assert closing.is_alive()
    with pytest.raises(heard) as ended:
        work_on(worker)
    assert reason == "finished" or ended.value.was_interrupted  # type: ignore[attr-defined]
    worker.close()
    closing.join(30)
    assert not closing.is_alive()


def test_a_worker_that_never_leaves_holds_up_no_end(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "ENDING_SECONDS", 0.2)
    with stream(rig, step(), claim={"place": 0}) as call:
        next(call)
        began = time.monotonic()
        rig.close()
        assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    ("offered", "message"),
    [
        ({"seed": "7"}, "field 'seed' is '7'; expected: int"),
        ({"environment": None}, "field 'environment' is 'None'; expected: dict"),
        ({"kind": "actions"}, "kind 'actions' came; expected: welcome"),
    ],
)
def test_a_learner_that_says_something_wrong_is_one_line(tmp_path: Path, offered: dict[str, Any], message: str) -> None:
    rig = Rig(Endpoint(f"unix:{tmp_path}/s", TOKEN), places=1, actors=0)
    try:
        rig.envs[0]._describe = lambda guests: offer(0, guests) | offered
        said = "is no learner of ddrl: .*" + message.replace("(", r"\(")
        with closing(rig.connect()) as connection, pytest.raises(UserError, match=said):
            connection.join()
    finally:
        rig.close()


def test_what_nobody_asks_for_does_not_grow() -> None:
    traffic, meter = Traffic(1), Meter()
    for _ in range(3 * KEPT):
        traffic.received(0, 1, 1, 0.0, waited=0.5)
        meter.batch([4], [0.5], 0.25)
    assert len(traffic._waited) == len(meter._calls) == len(meter._columns) == len(meter._seconds) == KEPT
    assert traffic.take()["round_trip_ms_p50"] == 500.0
    assert meter.take() == {
        "inference_columns_mean": 4.0,
        "inference_batch_ms_mean": 250.0,
        "inference_call_ms_p50": 500.0,
        "inference_call_ms_p99": 500.0,
    }


def test_a_learner_that_ends_while_nobody_is_there_ends_at_once(tmp_path: Path) -> None:
    rig = Rig(Endpoint(f"unix:{tmp_path}/s"), places=3, actors=3)
    began = time.monotonic()
    rig.close()
    assert time.monotonic() - began < 5


GROUPS = 2


def grouped_rig(tmp_path: Path) -> Rig:
    made = Rig(Endpoint(f"unix:{tmp_path}/s", TOKEN), places=1, actors=0, groups=GROUPS)
    made.envs[0]._describe = lambda guests: offer(0, guests) | {"other_seeds": [70 + guests]}
    return made


def test_a_worker_steps_each_group_with_the_actions_of_that_group(tmp_path: Path) -> None:
    rig = grouped_rig(tmp_path)
    ones = np.ones(ENVS, dtype=np.int64)
    try:
        with working(rig):
            groups = rig.envs[0].groups
            found = [[group.reset()] for group in groups]
            groups[0].begin(ones)
            for _ in range(30):  # the other group steps while one is being asked about
                for one, other in ((0, 1), (1, 0)):
                    groups[other].begin(other + ones)
                    found[one].append(groups[one].finish())
            for group, (seed, steps) in enumerate(zip((7, 70), found, strict=True)):
                env = registry.make("toy/catch", num_envs=ENVS, seed=seed)
                expected = [env.reset()] + [env.step(group + ones) for _ in range(len(steps) - 1)]
                for received, made in zip(steps, expected, strict=True):
                    for part, other_part in zip(received, made, strict=True):
                        np.testing.assert_array_equal(part, other_part)
    finally:
        rig.close()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_every_group_begins_anew_once_where_its_worker_is_lost(tmp_path: Path, order: tuple[int, int]) -> None:
    rig = grouped_rig(tmp_path)
    ones = np.ones(ENVS, dtype=np.int64)
    try:
        groups = rig.envs[0].groups
        with working(rig):
            for group in groups:
                group.reset()
            for group in groups:
                group.begin(ones)
                assert group.finish().valid.all()
        for group in order:
            groups[group].begin(ones)  # nobody takes it
        with working(rig):
            first, second = order
            lost = groups[first].finish()
            assert lost.start.all() and not lost.valid.any()
            groups[first].begin(ones)  # before the other group has come to the new worker
            lost = groups[second].finish()
            assert lost.start.all() and not lost.valid.any() and not lost.reward.any()
            assert groups[first].finish().valid.all()
            groups[second].begin(ones)
            assert groups[second].finish().valid.all()
    finally:
        rig.close()


@pytest.mark.parametrize("fault", [{"group": 2}, {"group": -1}, {"group": "0"}, {}])
def test_a_step_of_no_group_is_refused(fault: dict[str, Any]) -> None:
    message = wire.decode(wire.encode("step", fault))
    with pytest.raises(WireError, match="field 'group' is "):
        message.group(2)
