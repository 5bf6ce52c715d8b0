"""Messages between workers and learners: they survive the way, and nothing but valid ones is believed."""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from ddrl.inference import wire
from ddrl.inference.wire import DTYPES, Message, StepDecoder, StepEncoder, WireError
from ddrl.types import Array, EnvSpec, EnvStep

IMAGES = EnvSpec("images", (3, 4, 5), "uint8", num_actions=4, frame_skip=4, protocol="none")
VECTORS = EnvSpec("vectors", (6,), "float32", num_actions=0, frame_skip=1, protocol="none", action_size=2)

tensors = st.dictionaries(
    st.text(min_size=1, max_size=8),
    st.sampled_from(DTYPES).flatmap(
        lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=0, max_dims=4, min_side=1, max_side=3))
    ),
    max_size=4,
)


def step(spec: EnvSpec, envs: int, seed: int = 0, **changes: Any) -> EnvStep:
    rng = np.random.default_rng(seed)
    observation = rng.integers(0, 255, (envs, *spec.observation_shape)).astype(spec.observation_dtype)
    flags = {name: rng.random(envs) < 0.3 for name in ("terminated", "truncated", "ended", "start", "valid")}
    return EnvStep(observation=observation, reward=rng.normal(size=envs).astype(np.float32), **flags)._replace(
        **changes
    )


def equal(a: EnvStep, b: EnvStep) -> bool:
    return all(x.dtype == y.dtype and np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def with_header(header: Any, payload: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<I", len(text)) + text + payload


@given(tensors=tensors, fields=st.dictionaries(st.sampled_from(["a", "b"]), st.integers() | st.text()))
@settings(max_examples=200, deadline=None)
def test_a_message_survives_the_way(tensors: dict[str, Array], fields: dict[str, Any]) -> None:
    message = wire.decode(wire.encode("anything", fields, tensors))
    assert (message.kind, dict(message.fields)) == ("anything", fields)
    assert list(message.tensors) == list(tensors)
    for name, array in tensors.items():
        np.testing.assert_array_equal(message.tensors[name], array)
        assert message.tensors[name].dtype == array.dtype


@given(data=st.binary(max_size=200))
@settings(max_examples=500, deadline=None)
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    with suppress(WireError):
        assert isinstance(wire.decode(data), Message)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(DTYPES),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)


@given(header=JSON, payload=st.binary(max_size=40))
@settings(max_examples=500, deadline=None)
def test_any_header_is_a_message_or_refused(header: Any, payload: bytes) -> None:
    kinds: list[Any] = [header, {"kind": "step", "tensors": header}, {"kind": "step", "tensors": [header]}]
    if isinstance(header, list):
        kinds.append({"kind": "step", "tensors": [["a", *header]]})
    for one in kinds:
        try:
            message = wire.decode(with_header(one, payload))
        except WireError:
            continue
        assert sum(array.nbytes for array in message.tensors.values()) == len(payload)


SIDES = st.sampled_from([-1, 0, 1, 2, 3, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, 10**400, 1.0, True, None])
DESCRIBED = st.tuples(
    st.sampled_from([*EnvStep._fields, "", "another", 3, None]),
    st.sampled_from([*DTYPES, "float64", "object", "V9", 3, ["uint8"]]),
    st.lists(SIDES, max_size=9) | SIDES,
)


@given(tensors=st.lists(DESCRIBED, max_size=8), payload=st.sampled_from([0, 1, 2, 8, 24, 120, 4096]))
@settings(max_examples=300, deadline=None)
def test_no_sizes_of_tensors_raise_anything_else_than_a_refusal(tensors: list[Any], payload: int) -> None:
    data = with_header({"kind": "step", "tensors": tensors}, bytes(payload))
    with suppress(WireError):
        message = wire.decode(data)
        assert all(array.size > 0 for array in message.tensors.values())
        assert sum(array.nbytes for array in message.tensors.values()) == payload
        with suppress(WireError):
            StepDecoder(IMAGES, 2).decode(message)


@given(position=st.integers(0, 400), value=st.integers(0, 255), cut=st.integers(0, 400))
@settings(max_examples=300, deadline=None)
def test_a_damaged_step_is_a_valid_step_or_refused(position: int, value: int, cut: int) -> None:
    data = bytearray(StepEncoder().encode(step(IMAGES, 2), waited=0.1, cpu_seconds=2.0))
    if position < len(data):
        data[position] = value
    for damaged in (bytes(data), bytes(data)[:cut]):
        try:
            received = StepDecoder(IMAGES, 2).decode(wire.decode(damaged))
        except WireError:
            continue
        assert received.observation.shape == (2, 3, 4, 5)
        assert received.start.dtype == bool


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "too short"),
        (b"\xff\xff\xff\xff{}", "header of 4294967295 bytes"),
        (with_header(b"{"), "not valid JSON"),
        (with_header(b"[" * 10_000), "not valid JSON"),
        (with_header(b" " * (wire.MAX_HEADER + 1)), "header of"),
        (with_header([1]), "no mapping"),
        (with_header({"kind": 3, "tensors": []}), "no mapping with a kind"),
        (with_header({"kind": "step"}), "no list of tensors"),
        (with_header({"kind": "step", "tensors": [["a", "object", [1]]]}), "dtype 'object'"),
        (with_header({"kind": "step", "tensors": [["a", "uint8", [-1]]]}), "no valid shape"),
        (with_header({"kind": "step", "tensors": [["a", "uint8", [True]]]}), "no valid shape"),
        (with_header({"kind": "step", "tensors": [["a", "uint8", [1] * 9]]}), "9 dimensions"),
        (with_header({"kind": "step", "tensors": [["a", "uint8", [2**30, 2**30]]]}), "ends at byte"),
        (with_header({"kind": "step", "tensors": [["a", "uint8", [1]]] * 2}, b"ab"), "that of another"),
        (with_header({"kind": "step", "tensors": [["a", "uint8", [0, *[2**31 - 1] * 3]]]}), "'a' has no elements"),
        (with_header({"kind": "step", "tensors": [["a", "uint8", [2**31 - 1] * 8]]}), "ends at byte"),
        (with_header({"kind": "step", "tensors": [["a", "uint8", [1]]] * 33}, bytes(33)), "33 tensors are described"),
        (with_header({"kind": "step", "tensors": []}, b"more"), "4 bytes follow"),
        (with_header({"kind": "step", "tensors": [["a", "bool", [1]]]}, b"\x02"), "neither true nor false"),
        (with_header({"kind": "step", "tensors": [["\ud800\n\x1b[2J", "uint8", ["x"]]]}), "no valid shape"),
    ],
)
def test_a_wrong_message_is_refused_in_one_line(data: bytes, message: str) -> None:
    with pytest.raises(WireError, match=message) as refused:
        wire.decode(data)
    assert len(str(refused.value)) < 300
    assert str(refused.value).isascii()
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("spec", [IMAGES, VECTORS])
def test_steps_survive_the_way(spec: EnvSpec) -> None:
    encoder, decoder = StepEncoder(), StepDecoder(spec, 3)
    for seed in range(5):
        sent = step(spec, 3, seed)
        message = wire.decode(encoder.encode(sent, waited=0.5, cpu_seconds=1.0))
        assert equal(decoder.decode(message), sent)
        assert message.kind == "step"


@given(news=st.lists(st.lists(st.booleans(), min_size=2, max_size=2), min_size=1, max_size=8))
@settings(max_examples=50, deadline=None)
def test_frames_that_the_learner_knows_are_not_sent_again(news: list[list[bool]]) -> None:
    """`news`: step by step, which of two environments shows something else than its stack moved on by one frame."""
    encoder, decoder, rng = StepEncoder(), StepDecoder(IMAGES, 2), np.random.default_rng(0)
    shown = step(IMAGES, 2).observation
    decoder.decode(wire.decode(encoder.encode(step(IMAGES, 2, observation=shown), waited=0.0, cpu_seconds=0.0)))
    for which in news:
        shown = np.concatenate([shown[:, 1:], rng.integers(0, 255, (2, 1, 4, 5), dtype=np.uint8)], axis=1)
        shown[which] = rng.integers(0, 255, (sum(which), 3, 4, 5), dtype=np.uint8)
        sent = step(IMAGES, 2, observation=shown.copy())
        message = wire.decode(encoder.encode(sent, waited=0.0, cpu_seconds=0.0))
        assert message.kind == ("step" if any(which) else "shift")
        assert equal(decoder.decode(message), sent)


def test_newest_frames_alone_are_refused_at_the_beginning() -> None:
    encoder, shown = StepEncoder(), np.zeros((2, 3, 4, 5), dtype=np.uint8)
    for _ in range(2):
        message = wire.decode(encoder.encode(step(IMAGES, 2, observation=shown), waited=0.0, cpu_seconds=0.0))
    assert message.kind == "shift"
    with pytest.raises(WireError, match="no whole observation before"):
        StepDecoder(IMAGES, 2).decode(message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"observation": np.zeros((2, 3, 4, 6), np.uint8)}, r"'observation' is uint8 \[2, 3, 4, 6\]; expected"),
        ({"observation": np.zeros((2, 3, 4, 5), np.float32)}, "is float32"),
        ({"reward": np.zeros(3, np.float32)}, "'reward' is float32"),
        ({"valid": np.zeros(2, np.uint8)}, "'valid' is uint8"),
    ],
)
def test_a_step_of_a_wrong_form_is_refused(change: dict[str, Array], message: str) -> None:
    data = StepEncoder().encode(step(IMAGES, 2, **change), waited=0.0, cpu_seconds=0.0)
    with pytest.raises(WireError, match=message):
        StepDecoder(IMAGES, 2).decode(wire.decode(data))
