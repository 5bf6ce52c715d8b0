"""Inputs of the simulation: measured service times (JSON), layouts, and scenarios (YAML). Strictly checked.

Every wrong value is a `UserError` of one line that names the file, the key and what is allowed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import yaml

from ddrl.errors import UserError, about, unknown_name

System = Literal["seed", "impala"]
T = TypeVar("T")


@dataclass(frozen=True)
class ServiceTimes:
    """Measured service times, on an otherwise idle machine: `_s` in seconds, `_cores` cores kept busy meanwhile."""

    frames_per_step: int
    """Environment frames of one step of one environment (the action repeat)."""
    step_fixed_s: float
    """CPU seconds of one call that steps a worker's E environments, besides what grows with E."""
    step_per_env_s: float
    """CPU seconds per environment of such a call; it takes step_fixed_s + E * step_per_env_s, on one core."""
    inference_fixed_s: float
    """Seconds of an inference batch on one device, besides what grows with its columns."""
    inference_per_column_s: float
    """Seconds per column of an inference batch."""
    train_fixed_s: float
    """Seconds of a training batch on one device, besides what grows with its size."""
    train_per_column_step_s: float
    """Seconds per column and step of a training batch; it takes train_fixed_s + B * T * train_per_column_step_s."""
    step_cv: float = 0.0
    """Standard deviation over mean of a worker's whole step, as measured with the layout's E; gamma distributed."""
    inference_cores: float = 0.0
    """Cores of the learner's host that inference keeps busy; 0: it runs on an accelerator alone."""
    train_cores: float = 0.0
    """Cores of the learner's host that training keeps busy, all training devices together."""
    worker_message_s: float = 0.0
    """CPU seconds of sending, or of receiving, one message at a worker."""
    worker_byte_s: float = 0.0
    """CPU seconds per byte of it."""
    server_message_s: float = 0.0
    """CPU seconds of sending, or of receiving, one message at the learner."""
    server_byte_s: float = 0.0
    """CPU seconds per byte of it."""
    request_bytes_per_column: float = 0.0
    """Bytes that a worker sends per environment and step with central inference."""
    reply_bytes_per_column: float = 0.0
    """Bytes that it gets back."""
    loopback_latency_s: float = 0.0
    """One-way seconds of a message within the learner's host."""
    loopback_bytes_per_s: float = math.inf
    """Bytes per second of one message within the learner's host."""
    unroll_bytes_per_column_step: float = 0.0
    """IMPALA: bytes of an unroll per environment and step."""
    parameter_bytes: float = 0.0
    """IMPALA: bytes of the parameters that an actor pulls."""
    local_inference_fixed_s: float = 0.0
    """IMPALA: CPU seconds of an actor's inference, on one core, besides what grows with E."""
    local_inference_per_column_s: float = 0.0
    """IMPALA: CPU seconds per environment of it."""

    def __post_init__(self) -> None:
        _check(self, above_zero={"frames_per_step", "loopback_bytes_per_s"})

    def step_seconds(self, envs: int) -> float:
        """Mean CPU seconds of a call that steps `envs` environments."""
        return self.step_fixed_s + envs * self.step_per_env_s


@dataclass(frozen=True)
class Hosts:
    """Equal machines with environment workers and nothing else."""

    count: int
    cores: float
    """Of each."""
    workers: int
    """On each."""

    def __post_init__(self) -> None:
        _check(self, above_zero={"count", "cores", "workers"})


@dataclass(frozen=True)
class Layout:
    """Where what runs: inference, queue and training on the learner's host, workers there or on hosts of their own."""

    learner_cores: float
    """Cores of the learner's host, shared by all that runs on it."""
    envs_per_worker: int
    """E; for IMPALA a worker is an actor."""
    unroll_length: int
    """T, steps of an unroll."""
    batch_columns: int
    """B, columns of a training batch."""
    local_workers: int = 0
    """Workers on the learner's host."""
    worker_hosts: tuple[Hosts, ...] = ()
    queue_unrolls: int = 2
    """Unrolls (of E columns) that wait for the learner before workers wait."""
    uses_per_column: float = 1.0
    """How often a column is trained on: 1 for a queue, the replay ratio for replay."""
    training_devices: int = 1
    """n: they share each batch."""
    training_efficiency: float = 1.0
    """Fraction of n that n > 1 devices are faster by."""
    shared_accelerator: bool = False
    """Whether one device infers and trains: then one at a time, first come first served."""
    inference_devices: int = 1
    min_columns: int = 1
    """Columns with which an inference batch may begin."""
    max_columns: int | None = None
    """The most columns of an inference batch; none: those of all workers."""
    max_wait_s: float = 0.01
    """Seconds after which a request waits for no others."""
    server_threads: int | None = None
    """Messages that the learner handles at once (1: an interpreter with a lock); none: as many as come."""
    latency_s: float = 0.0
    """One-way seconds of a message between hosts."""
    bytes_per_s: float = math.inf
    """Bytes per second of one message between hosts."""
    card_bytes_per_s: float | None = None
    """Bytes per second of the learner's network card in one direction, over all messages; none: no limit."""

    def __post_init__(self) -> None:
        may_be_zero = {"local_workers", "worker_hosts", "shared_accelerator", "max_wait_s", "latency_s"}
        _check(self, above_zero={one.name for one in fields(self)} - may_be_zero)
        if not self.workers:
            raise UserError("key 'local_workers' or 'worker_hosts' must give at least one worker")
        if self.shared_accelerator and (self.inference_devices, self.training_devices) != (1, 1):
            raise UserError("key 'shared_accelerator' needs 1 inference_devices and 1 training_devices")
        if self.largest_batch < self.envs_per_worker:
            raise UserError(f"key 'max_columns' must be at least the {self.envs_per_worker} columns of a worker")
        if self.min_columns > self.largest_batch:
            raise UserError(f"key 'min_columns' must be at most max_columns (got {self.min_columns})")
        if self.queue_unrolls * self.envs_per_worker < math.ceil(self.batch_columns / self.uses_per_column):
            raise UserError(
                "key 'queue_unrolls' holds less than the fresh columns of one batch: the learner would wait"
            )

    @property
    def workers(self) -> int:
        """W, on all hosts."""
        return self.local_workers + sum(hosts.count * hosts.workers for hosts in self.worker_hosts)

    @property
    def largest_batch(self) -> int:
        """The most columns of an inference batch."""
        return self.workers * self.envs_per_worker if self.max_columns is None else self.max_columns

    def training_seconds(self, times: ServiceTimes) -> float:
        """Of a batch of B columns of T steps, on all training devices together."""
        alone = times.train_fixed_s + times.train_per_column_step_s * self.batch_columns * self.unroll_length
        return alone if self.training_devices == 1 else alone / (self.training_devices * self.training_efficiency)


@dataclass(frozen=True)
class Span:
    """Simulated seconds: first a warm-up of which nothing is kept, then the measured period."""

    warm_up_s: float = 2.0
    measured_s: float = 8.0

    def __post_init__(self) -> None:
        _check(self, above_zero={"measured_s"})


@dataclass(frozen=True)
class Assumed:
    """A service time that nobody measured here, and how it was derived."""

    value: float
    derivation: str


@dataclass(frozen=True)
class Scenario:
    """A layout to extrapolate to, and everything that is assumed for it."""

    name: str
    system: System
    layout: Layout
    assumptions: tuple[str, ...]
    """What is not known of the configuration and was put in its place."""
    assumed_times: Mapping[str, Assumed] = field(default_factory=dict)
    """Fields of `ServiceTimes` that replace measured ones."""
    span: Span = field(default_factory=Span)
    published_frames_per_s: float | None = None
    """What was published for a system of this kind, to stand beside the prediction."""
    published_cell: str = ""
    """Cell of `published/*.csv` that it is, or that it is derived from."""

    def times(self, measured: ServiceTimes) -> ServiceTimes:
        """The measured service times, with the assumed ones in their place."""
        changes: dict[str, Any] = {key: assumed.value for key, assumed in self.assumed_times.items()}
        return replace(measured, **changes)


def read_times(path: Path) -> ServiceTimes:
    """Service times from a JSON mapping of their fields; key `about` is free text and is not read.

    Raises: UserError naming file and key.
    """
    with about(path):
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UserError("no such file") from None
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise UserError(f"not valid JSON: {error}") from None
        return _build(ServiceTimes, {key: value for key, value in _mapping(data, "").items() if key != "about"}, "")


def read_scenarios(path: Path) -> tuple[Scenario, ...]:
    """Scenarios from a YAML file with the key `scenarios`, a list; key `latencies_s` makes one of each latency.

    Raises: UserError naming file, scenario and key.
    """
    with about(path):
        try:
            data = yaml.safe_load(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UserError("no such file") from None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise UserError(f"not valid YAML: {' '.join(str(error).split())}") from None
        entries = _mapping(data, "").get("scenarios")
        if not isinstance(entries, list) or len(_mapping(data, "")) != 1:
            raise UserError("must have the key 'scenarios', a list, and no other")
        scenarios = [one for number, entry in enumerate(entries, 1) for one in _scenarios(entry, number)]
        names = [scenario.name for scenario in scenarios]
        for name in names:
            if names.count(name) > 1:
                raise UserError(f"scenario '{name}' is given twice")
        return tuple(scenarios)


def _scenarios(entry: object, number: int) -> list[Scenario]:
    values = dict(_mapping(entry, f"scenario {number}: "))
    name = values.get("name")
    where = f"scenario '{name}': " if isinstance(name, str) else f"scenario {number}: "
    latencies = values.pop("latencies_s", None)
    if latencies is None:
        return [_scenario(values, where)]
    if not isinstance(latencies, list) or not latencies:
        raise UserError(f"{where}key 'latencies_s' must be a list of seconds")
    layout = _mapping(values.get("layout"), f"{where}key 'layout': ")
    scenarios = []
    for latency in latencies:
        milliseconds = 1000 * _number(latency, f"{where}key 'latencies_s'")
        label = f"{name}_{milliseconds:g}ms"
        scenarios.append(_scenario(values | {"name": label, "layout": layout | {"latency_s": latency}}, where))
    return scenarios


def _scenario(values: Mapping[str, Any], where: str) -> Scenario:
    assumed = {
        str(key): _build(
            Assumed, _mapping(value, f"{where}key 'assumed_times.{key}': "), f"{where}assumed_times.{key}: "
        )
        for key, value in _mapping(values.get("assumed_times", {}), f"{where}key 'assumed_times': ").items()
    }
    for key, one in assumed.items():
        if key not in {each.name for each in fields(ServiceTimes)}:
            raise unknown_name("service time", key, [each.name for each in fields(ServiceTimes)], where=where[:-2])
        if not one.derivation.strip():
            raise UserError(f"{where}key 'assumed_times.{key}.derivation' must say how the value was derived")
    scenario = _build(Scenario, {**values, "assumed_times": assumed}, where)
    if not scenario.assumptions:
        raise UserError(f"{where}key 'assumptions' must say what is assumed")
    return scenario


def _mapping(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{where}must be a mapping of keys to values")
    return {str(key): one for key, one in value.items()}


def _number(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise UserError(f"{where} must be a number (got {value!r})")
    return float(value)


def _build(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """An instance of the dataclass `cls` from a mapping of exactly its fields, defaults left out."""
    known = {one.name: one for one in fields(cls)}  # type: ignore[arg-type]
    for key in values:
        if key not in known:
            raise unknown_name("key", key, known, where=where.removesuffix(": "))
    for key, one in known.items():
        if key not in values and one.default is MISSING and one.default_factory is MISSING:
            raise UserError(f"{where}key '{key}' is missing")
    typed = {key: _typed(str(known[key].type), value, f"{where}key '{key}'") for key, value in values.items()}
    try:
        return cls(**typed)
    except UserError as error:
        raise UserError(f"{where}{error}") from None


def _typed(kind: str, value: Any, where: str) -> Any:
    """One value as the annotation `kind` has it."""
    if kind.endswith(" | None"):
        return None if value is None else _typed(kind.removesuffix(" | None"), value, where)
    if kind == "float":
        return _number(value, where)
    if kind == "int":
        if isinstance(value, bool) or not isinstance(value, int):
            raise UserError(f"{where} must be a whole number (got {value!r})")
        return value
    if kind in ("bool", "str"):
        if type(value).__name__ != kind:
            raise UserError(f"{where} must be {'true or false' if kind == 'bool' else 'a text'} (got {value!r})")
        return value
    if kind == "System":
        if value not in get_args(System):
            raise unknown_name("system", value, get_args(System), where=where)
        return value
    if kind.startswith("tuple"):
        if not isinstance(value, list):
            raise UserError(f"{where} must be a list (got {value!r})")
        return tuple(_part(kind, one, f"{where}, {number}") for number, one in enumerate(value, 1))
    if kind in ("Layout", "Span"):
        return _build(Layout if kind == "Layout" else Span, _mapping(value, f"{where} "), f"{where}: ")
    return value


def _part(kind: str, value: Any, where: str) -> Any:
    return _typed("str", value, where) if "str" in kind else _build(Hosts, _mapping(value, f"{where} "), f"{where}: ")


def _check(inputs: Any, above_zero: set[str]) -> None:
    """Numbers are not below 0, some are above it, and only speeds are infinite. Raises: UserError naming the key."""
    for one in fields(inputs):
        value = getattr(inputs, one.name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if one.name in above_zero and not value > 0:
            raise UserError(f"key '{one.name}' must be above 0 (got {value})")
        if not value >= 0:
            raise UserError(f"key '{one.name}' must be at least 0 (got {value})")
        if math.isinf(value) and not one.name.endswith("bytes_per_s"):
            raise UserError(f"key '{one.name}' must be finite")
