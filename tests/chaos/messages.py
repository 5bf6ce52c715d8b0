"""Fuzzed messages: to the decoder, and over a Unix socket to a live inference service beside a worker that is right."""

from __future__ import annotations

import json
import math
import queue
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.chaos.child import Child
from tests.chaos.tally import Row, Tally

LIVE_SHARE = 50
"""One message of so many goes to a live service; the others to the decoder alone."""
CHUNK = 20_000
STREAM_MESSAGES = 4
"""Of one stream to the live service, after an honest beginning or none."""
PROGRESS_SECONDS = 20.0
ENVS = 3
TOKEN = "a token of these tests"
NUMBERS = (0, 1, -1, 2**31 - 1, 2**31, 2**53, 2**63, 10**30, -(2**63), 1.5, 1e308, math.inf, math.nan)
VALUES = (*NUMBERS, True, None, "1", [], {})
"""What a value of a header is replaced with."""


def fuzz(number: int, folder: Path, generator: np.random.Generator, tally: Tally) -> None:
    """Send so many fuzzed messages."""
    if not number:
        return
    folder.mkdir(parents=True, exist_ok=True)
    with tally.row("messages", "decoder") as row:
        decoder(number - number // LIVE_SHARE, generator, row, tally)
    if live := number // LIVE_SHARE:
        with tally.row("messages", "live service, Unix socket") as row:
            _in_a_process(live, int(generator.integers(2**31)), folder, row)


def seeds() -> list[bytes]:
    """Return honest messages of each kind, of observations with and without frames."""
    from ddrl.inference import wire
    from ddrl.types import EnvSpec, EnvStep

    made = [
        wire.encode("hello", {"protocol": wire.VERSION, "nonce": "0" * 64}),
        wire.encode("claim", {"proof": "0" * 64, "place": -1, "generation": 0}),
    ]
    for spec in _specs(EnvSpec):
        rng, encoder = np.random.default_rng(0), wire.StepEncoder()
        frames = rng.integers(0, 255, (ENVS, *spec.observation_shape)).astype(spec.observation_dtype)
        flags = {name: rng.random(ENVS) < 0.3 for name in ("terminated", "truncated", "ended", "start", "valid")}
        for _ in range(2):  # whole, then the newest frame alone
            step = EnvStep(observation=frames, reward=rng.normal(size=ENVS).astype(np.float32), **flags)
            made.append(encoder.encode(step, waited=0.1, cpu_seconds=1.0))
            frames = np.concatenate([frames[:, 1:], frames[:, :1]], axis=1)
    return [*made, wire.encode("over", {"reason": "finished"})]


def _specs(make: Any) -> list[Any]:
    return [
        make("images", (4, 8, 8), "uint8", num_actions=4, frame_skip=4, protocol="none"),
        make("vectors", (6,), "float32", num_actions=0, frame_skip=1, protocol="none", action_size=2),
    ]


def decoder(number: int, generator: np.random.Generator, row: Row, tally: Tally) -> None:
    """Decode so many: each is refused with `WireError`, or is a message that the step decoders refuse or take."""
    from ddrl.inference import wire
    from ddrl.types import EnvSpec

    good = seeds()
    decoders = [wire.StepDecoder(spec, ENVS) for spec in _specs(EnvSpec)]
    taken = refused = 0
    for index in range(number):
        data = fuzzed(good, generator)
        try:
            message = wire.decode(data)
            with suppress(wire.WireError):
                message.value("waited", float)
            for one in decoders:
                try:
                    one.decode(message)
                    taken += 1
                except wire.WireError:
                    refused += 1
        except wire.WireError:
            refused += 1
        except Exception as error:
            row.fail(f"message {index}: {type(error).__name__}: {error}: {data[:300]!r}")
        if index % CHUNK == 0:
            tally.progress(f"decoder: {index:,} of {number:,} messages")
    row.count("decoded", number)
    row.measured.update({"steps taken": float(taken), "refused": float(refused)})


def fuzzed(good: list[bytes], generator: np.random.Generator) -> bytes:
    """Return an honest message after one to three changes."""
    data = good[generator.integers(len(good))]
    for _ in range(generator.integers(1, 4)):
        data = CHANGES[generator.integers(len(CHANGES))](data, generator)
    return data


def _flip(data: bytes, generator: np.random.Generator) -> bytes:
    changed = bytearray(data)
    for _ in range(generator.integers(1, 5)):
        if changed:
            changed[generator.integers(len(changed))] ^= 1 << int(generator.integers(8))
    return bytes(changed)


def _cut(data: bytes, generator: np.random.Generator) -> bytes:
    return data[: generator.integers(len(data) + 1)]


def _grow(data: bytes, generator: np.random.Generator) -> bytes:
    return data + generator.bytes(int(generator.integers(1, 64)))


def _length(data: bytes, generator: np.random.Generator) -> bytes:
    length = int(generator.choice([0, 1, len(data), len(data) - 4, 16_384, 16_385, 2**31, 2**32 - 1]))
    return struct.pack("<I", length % 2**32) + data[4:]


def _header(data: bytes, generator: np.random.Generator) -> bytes:
    """A header with a value that is another one, of any kind, somewhere."""
    try:
        (length,) = struct.unpack_from("<I", data)
        header, rest = json.loads(data[4 : 4 + length]), data[4 + length :]
    except (struct.error, ValueError, RecursionError):
        return data
    _change(header, generator)
    text = json.dumps(header).encode()
    return struct.pack("<I", len(text)) + text + (rest if generator.random() < 0.7 else b"")


def _change(value: Any, generator: np.random.Generator) -> None:
    """Replaces, removes or doubles something in a JSON value."""
    while isinstance(value, dict | list) and value:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = keys[generator.integers(len(keys))]
        inner = value[key]
        if isinstance(inner, dict | list) and inner and generator.random() < 0.8:
            value = inner
            continue
        choice = generator.integers(4)
        if choice == 0:
            del value[key]
        elif choice == 1 and isinstance(value, list):
            value.insert(key, inner)
        else:
            value[key] = VALUES[generator.integers(len(VALUES))]
        return


def _noise(data: bytes, generator: np.random.Generator) -> bytes:
    return generator.bytes(int(generator.integers(0, 200)))


def _nested(data: bytes, generator: np.random.Generator) -> bytes:
    text = (b"[" if generator.random() < 0.5 else b'{"kind":') * int(generator.integers(1, 3000))
    return struct.pack("<I", len(text)) + text


def _zero_sized(data: bytes, generator: np.random.Generator) -> bytes:
    """A tensor of no bytes whose shape is huge all the same."""
    shape = [2**31 - 1] * int(generator.integers(1, 9))
    shape[int(generator.integers(len(shape)))] = int(generator.integers(2))
    header = {
        "kind": "step",
        "waited": 0.0,
        "cpu_seconds": 0.0,
        "group": 0,
        "tensors": [["observation", "uint8", shape]],
    }
    text = json.dumps(header).encode()
    return struct.pack("<I", len(text)) + text


CHANGES: tuple[Callable[[bytes, np.random.Generator], bytes], ...] = (
    _flip, _cut, _grow, _length, _header, _header, _header, _noise, _nested, _zero_sized,
)  # fmt: skip


def _in_a_process(number: int, seed: int, folder: Path, row: Row) -> None:
    """The service in a process of its own: it has threads, which no process has that forks others."""
    answer = folder / "live.json"

    def work() -> None:
        answer.write_text(json.dumps(live(number, seed)))

    ended = Child(["--help"], folder / "live.log", work).end(60.0 + number / 50)
    if not answer.exists():
        row.fail(f"the process of the service ended with {ended.code}: {ended.said.strip()[-300:]}")
        return
    found = json.loads(answer.read_text())
    row.count("sent", found["sent"])
    row.measured.update({name: float(found[name]) for name in ("streams", "worker steps")})
    for failure in found["failures"]:
        row.fail(failure)


def live(number: int, seed: int) -> dict[str, Any]:
    """Send messages in streams to a service of two places, while a worker that is right steps in one of them."""
    import grpc

    from ddrl.coordinator.traffic import Traffic
    from ddrl.environments.base import registry
    from ddrl.errors import Closed
    from ddrl.inference.endpoint import Endpoint
    from ddrl.inference.remote_env import RemoteEnv
    from ddrl.inference.service import METHOD, NAME, InferenceService

    generator, good = np.random.default_rng(seed), seeds()
    failures: list[str] = []
    envs = [RemoteEnv(registry.spec_for("toy/catch"), ENVS, Traffic(1), partial(_offer, i)) for i in range(2)]
    steps = [0, 0]

    def act(index: int) -> None:
        """An actor, as its thread is: what it raises ends a run."""
        try:
            envs[index].reset()
            while True:
                envs[index].step(np.ones(ENVS, dtype=np.int64))
                steps[index] += 1
        except Closed:
            return
        except BaseException as error:
            failures.append(f"the actor of place {index} ended with {type(error).__name__}: {error}")

    with tempfile.TemporaryDirectory(prefix="ddrl-chaos-") as folder:
        service = InferenceService(Endpoint(f"unix:{folder}/s", TOKEN), envs, lambda line: None)
        actors = [threading.Thread(target=act, args=(index,), daemon=True) for index in range(2)]
        for actor in actors:
            actor.start()
        worker = threading.Thread(target=_honest, args=(service.address, failures), daemon=True)
        worker.start()
        sent = streams = 0
        while sent < number and not failures:
            batch = [fuzzed(good, generator) for _ in range(min(STREAM_MESSAGES, number - sent))]
            options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
            with grpc.insecure_channel(service.address, options=options) as channel:
                requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
                call = channel.stream_stream(f"/{NAME}/{METHOD}")(iter(requests.get, None), timeout=5.0)
                with suppress(grpc.RpcError, StopIteration):
                    if generator.random() < 0.7:
                        _prove(call, requests)
                    for message in [*batch, None]:
                        requests.put(message)
                    for _ in call:
                        pass
                requests.put(None)  # in any case: gRPC's thread waits for it
            sent, streams = sent + len(batch), streams + 1
            if streams % 25 == 0:
                _check_progress(steps, failures, streams)
        _check_progress(steps, failures, streams)
        service.close("finished")
    return {"sent": sent, "streams": streams, "worker steps": max(steps), "failures": failures}


def _prove(call: Any, requests: queue.SimpleQueue[bytes | None]) -> None:
    """Get in as a worker does, with the token: what follows is read as a worker's."""
    from ddrl.inference import proof, wire

    nonce = proof.nonce()
    requests.put(wire.encode("hello", {"protocol": wire.VERSION, "nonce": nonce}))
    said = {"place": -1, "generation": 0}
    both = (wire.VERSION, nonce, wire.decode(next(call)).value("nonce", str), *said.values())
    requests.put(wire.encode("claim", {"proof": proof.proof(TOKEN, proof.CLIENT, *both)} | said))


def _check_progress(steps: list[int], failures: list[str], streams: int) -> None:
    before, end = sum(steps), time.monotonic() + PROGRESS_SECONDS
    while sum(steps) < before + 3:
        if time.monotonic() > end:
            failures.append(f"after {streams} streams the worker that is right makes no steps for {PROGRESS_SECONDS} s")
            return
        time.sleep(0.01)


def _honest(address: str, failures: list[str]) -> None:
    """A worker that is right, and comes again where it was sent away: places may be taken by others for a moment."""
    from ddrl.errors import Closed, UserError
    from ddrl.inference.client import Connection, LearnerLost
    from ddrl.inference.endpoint import Endpoint
    from ddrl.inference.worker import Worker

    while not failures:
        try:
            worker = Worker(Connection(Endpoint(address, TOKEN)))
            while True:
                worker.step()
        except (Closed, LearnerLost, UserError):
            time.sleep(0.05)
        except Exception as error:
            failures.append(f"a worker that is right ended with {type(error).__name__}: {error}")


def _offer(place: int, guests: int) -> dict[str, Any]:
    return {"environment": {"name": "toy/catch"}, "env_threads": 1, "first_env": place, "seed": guests, "name": "fuzz"}
