"""Messages between environment workers and a learner: a small JSON header, then the bytes of its tensors.

    uint32 (little endian)   length of the header
    header                   {"kind": ..., fields of the kind, "tensors": [[name, dtype, shape], ...]}
    payload                  the tensors' bytes (little endian, row by row), one after the other, and nothing else

What a header describes must be what the receiver expects (`Message.arrays`). Nothing in a message is ever run, and a
message that is too long is not read (`MAX_HEADER`; the service bounds the whole). Sizes are computed as Python's
integers, which do not overflow, and compared with the message before an array is made of them.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ddrl.types import Array, EnvSpec, EnvStep

VERSION = 5
"""The protocol's version, which must be the same on both sides."""
MAX_HEADER = 16 * 1024
MAX_TENSORS = 32
MAX_DIMENSIONS = 8
MOST_SECONDS = 1e9
"""The longest time that a message may state, thirty years: sums and percentiles of such times stay finite."""
DTYPES = ("bool", "uint8", "int64", "float32")
_LENGTH = struct.Struct("<I")


class WireError(Exception):
    """A fault of a message, in one line of ASCII, for the log and for the sender."""

    def __init__(self, text: str) -> None:
        super().__init__(ascii(text)[1:-1])


@contextmanager
def refusing() -> Iterator[None]:
    """Raise WireError instead of any other error in the block, so that wrong bytes end their own stream alone."""
    try:
        yield
    except WireError:
        raise
    except Exception as error:
        raise WireError(f"a message cannot be read: {type(error).__name__}: {str(error)[:80]}") from None


class TensorSpec(NamedTuple):
    """The dtype and shape that a tensor must have."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size of its data in bytes."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Message:
    """A decoded message; its tensors are views of the received bytes."""

    kind: str
    fields: Mapping[str, Any]
    tensors: Mapping[str, Array] = field(default_factory=dict)

    def expect(self, kind: str) -> Message:
        """Return the message itself. Raise WireError if it is of another kind."""
        if self.kind != kind:
            raise WireError(f"a message of kind '{self.kind[:40]}' came; expected: {kind}")
        return self

    def arrays(self, specs: Mapping[str, TensorSpec]) -> dict[str, Array]:
        """Return the tensors. Raise WireError unless they are exactly those of `specs`."""
        if list(self.tensors) != list(specs):
            raise WireError(f"tensors {', '.join(self.tensors)[:200]} came; expected: {', '.join(specs)}")
        for name, spec in specs.items():
            array = self.tensors[name]
            if (array.dtype.name, array.shape) != spec:
                raise WireError(
                    f"tensor '{name}' is {array.dtype.name} {list(array.shape)}; "
                    f"expected: {spec.dtype} {list(spec.shape)}"
                )
        return dict(self.tensors)

    def value(self, name: str, kind: type) -> Any:
        """Return a field. Raise WireError if it is missing or of another type."""
        value = self.fields.get(name)
        if type(value) is not kind:
            raise WireError(f"field '{name}' is {str(value)[:40]!r}; expected: {kind.__name__}")
        return value

    def group(self, groups: int) -> int:
        """Return which group of environments it is about. Raise WireError unless it is one of so many."""
        group: int = self.value("group", int)
        if not 0 <= group < groups:
            raise WireError(f"field 'group' is {group}; expected: 0 to {groups - 1}")
        return group

    def seconds(self, name: str) -> float:
        """Return a field that is a time. Raise WireError unless it is a number from 0 to `MOST_SECONDS`."""
        value: float = self.value(name, float)
        if not 0 <= value <= MOST_SECONDS:
            raise WireError(f"field '{name}' is {value}; expected: seconds from 0 to {MOST_SECONDS:g}")
        return value


def encode(kind: str, fields: Mapping[str, Any] | None = None, tensors: Mapping[str, Array] | None = None) -> bytes:
    """Return the bytes of a message."""
    arrays = {name: np.ascontiguousarray(array) for name, array in (tensors or {}).items()}
    described = [[name, array.dtype.name, array.shape] for name, array in arrays.items()]
    header = json.dumps({"kind": kind, **(fields or {}), "tensors": described}, separators=(",", ":")).encode()
    return b"".join([_LENGTH.pack(len(header)), header, *(array.data for array in arrays.values())])


@refusing()
def decode(data: bytes) -> Message:
    """Return the message in `data`. Raise WireError if its form is wrong; `Message` checks its content."""
    if len(data) < _LENGTH.size:
        raise WireError(f"a message of {len(data)} bytes came; it is too short")
    (length,) = _LENGTH.unpack_from(data)
    if length > min(MAX_HEADER, len(data) - _LENGTH.size):
        raise WireError(f"a header of {length} bytes was announced in a message of {len(data)} bytes")
    start = _LENGTH.size + length
    header = _header(data[_LENGTH.size : start])
    tensors = {}
    for name, dtype, shape in _described(header.pop("tensors")):
        size = math.prod(shape)
        if size == 0:  # no step has such a tensor; beside a 0 other dimensions could be of any size
            raise WireError(f"tensor '{name[:40]}' has no elements")
        stop = start + size * np.dtype(dtype).itemsize
        if stop > len(data):
            raise WireError(f"tensor '{name[:40]}' ends at byte {stop} of a message of {len(data)} bytes")
        array = np.frombuffer(data, dtype, size, start).reshape(shape)
        if dtype == "bool" and (array.view(np.uint8) > 1).any():
            raise WireError(f"tensor '{name[:40]}' holds bytes that are neither true nor false")
        tensors[name] = array
        start = stop
    if start != len(data):
        raise WireError(f"{len(data) - start} bytes follow the last tensor")
    return Message(header.pop("kind"), header, tensors)


def _header(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        raise WireError("the header is not valid JSON") from None
    if not (isinstance(header, dict) and isinstance(header.get("kind"), str)):
        raise WireError("the header is no mapping with a kind")
    if not isinstance(header.get("tensors"), list):
        raise WireError("the header has no list of tensors")
    return header


def _described(tensors: list[Any]) -> list[tuple[str, str, tuple[int, ...]]]:
    if len(tensors) > MAX_TENSORS:
        raise WireError(f"{len(tensors)} tensors are described; allowed: {MAX_TENSORS}")
    found: list[tuple[str, str, tuple[int, ...]]] = []
    for one in tensors:
        if not (isinstance(one, list) and len(one) == 3):
            raise WireError("a tensor must be described by name, dtype and shape")
        name, dtype, shape = one
        if not isinstance(name, str) or name in {known for known, _, _ in found}:
            raise WireError("a tensor has no name, or that of another")
        if dtype not in DTYPES:
            raise WireError(f"tensor '{name[:40]}' has dtype {str(dtype)[:40]!r}; allowed: {', '.join(DTYPES)}")
        if not (isinstance(shape, list) and all(type(size) is int and 0 <= size < 2**31 for size in shape)):
            raise WireError(f"tensor '{name[:40]}' has no valid shape")
        if len(shape) > MAX_DIMENSIONS:
            raise WireError(f"tensor '{name[:40]}' has {len(shape)} dimensions")
        found.append((name, dtype, tuple(shape)))
    return found


ALIVE = encode("alive")
"""A message that a worker may send at any time, such as while its environments take long."""


# Messages about environments ------------------------------------------------------------------------------------------


def step_specs(spec: EnvSpec, num_envs: int) -> dict[str, TensorSpec]:
    """Return the tensors of a worker's step: the fields of `EnvStep`."""
    return {
        "observation": TensorSpec(spec.observation_dtype, (num_envs, *spec.observation_shape)),
        "reward": TensorSpec("float32", (num_envs,)),
        **{name: TensorSpec("bool", (num_envs,)) for name in ("terminated", "truncated", "ended", "start", "valid")},
    }


def action_specs(spec: EnvSpec, num_envs: int) -> dict[str, TensorSpec]:
    """Return the tensor of a learner's answer."""
    if spec.action_size:
        return {"action": TensorSpec("float32", (num_envs, spec.action_size))}
    return {"action": TensorSpec("int64", (num_envs,))}


class StepEncoder:
    """Encodes a worker's steps: as whole steps, or as `shift` if only the newest frames are new.

    Of the k frames of an observation [k, height, width] the learner mostly knows k-1. If it does in every environment,
    the message holds the last frame alone, and the learner puts the stack together again.
    """

    def __init__(self) -> None:
        self._before: Array | None = None

    def encode(self, step: EnvStep, *, waited: float, cpu_seconds: float, group: int = 0) -> bytes:
        """Return the message of a group's step; `waited`: for the actions before it; `cpu_seconds`: of the worker."""
        fields = {"waited": waited, "cpu_seconds": cpu_seconds, "group": group}
        tensors, before, now = step._asdict(), self._before, step.observation
        self._before = now
        if before is None or not is_stacked(now.shape[1:]) or not np.array_equal(now[:, :-1], before[:, 1:]):
            return encode("step", fields, tensors)
        return encode("shift", fields, tensors | {"observation": now[:, -1:]})


class StepDecoder:
    """Decodes the messages of a `StepEncoder`."""

    def __init__(self, spec: EnvSpec, num_envs: int) -> None:
        self._whole = step_specs(spec, num_envs)
        shape = (num_envs, 1, *spec.observation_shape[1:])
        self._shift = self._whole | {"observation": TensorSpec(spec.observation_dtype, shape)}
        self._is_stacked = is_stacked(spec.observation_shape)
        self._before: Array | None = None

    def forget(self) -> None:
        """Begin anew with the steps of another worker."""
        self._before = None

    def decode(self, message: Message) -> EnvStep:
        """Return the step in a message. Raise WireError if it is none of these environments."""
        if message.kind == "shift":
            if self._before is None or not self._is_stacked:
                raise WireError("newest frames came, but no whole observation before them")
            step = EnvStep(**message.arrays(self._shift))
            step = step._replace(observation=np.concatenate([self._before[:, 1:], step.observation], axis=1))
        else:
            step = EnvStep(**message.expect("step").arrays(self._whole))
        self._before = step.observation
        return step


def is_stacked(observation_shape: tuple[int, ...]) -> bool:
    """Return whether an observation may be a stack of frames, the newest last."""
    return len(observation_shape) == 3 and observation_shape[0] > 1
