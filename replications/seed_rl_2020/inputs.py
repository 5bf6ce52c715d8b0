"""Inputs of the simulation: service times, layouts, and scenarios, which stand in a YAML file.

Every wrong value is a `UserError` of one line that names the file, the key and what is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from ddrl.errors import UserError, about
from ddrl.papers.schema import load_checked

System = Literal["seed", "impala"]


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


def read_scenarios(path: Path) -> tuple[Scenario, ...]:
    """Scenarios from a YAML file (schema `scenarios`); key `latencies_s` makes one of each latency.

    Raises: UserError naming file, scenario and key.
    """
    found: dict[str, Scenario] = {}
    for entry in load_checked(path, "scenarios")["scenarios"]:
        with about(f"{path}: scenario '{entry['name']}'"):
            for scenario in _scenarios(entry):
                if scenario.name in found:
                    raise UserError("is given twice")
                found[scenario.name] = scenario
    return tuple(found.values())


def _scenarios(entry: Mapping[str, Any]) -> Iterator[Scenario]:
    values = dict(entry)
    latencies = values.pop("latencies_s", None)
    if latencies is None:
        yield _scenario(values)
    for latency in latencies or ():
        name, layout = f"{values['name']}_{1000 * latency:g}ms", values["layout"] | {"latency_s": latency}
        yield _scenario(values | {"name": name, "layout": layout})


def _scenario(values: Mapping[str, Any]) -> Scenario:
    hosts = tuple(Hosts(**one) for one in values["layout"].get("worker_hosts", ()))
    assumed = {key: Assumed(**one) for key, one in values.get("assumed_times", {}).items()}
    parts = {
        "layout": Layout(**values["layout"] | {"worker_hosts": hosts}),
        "assumptions": tuple(values["assumptions"]),
        "assumed_times": assumed,
        "span": Span(**values.get("span", {})),
    }
    return Scenario(**{**values, **parts})


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
