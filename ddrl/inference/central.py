"""Central inference: one network, with the newest parameters, acts for all actors of a learner in dynamic batches.

An actor calls `infer` and waits. Whole calls are taken in the order in which they came, as soon as an inference thread
is free and enough columns wait, or the oldest call has waited long enough. A batch holds what waits and nothing else:
there is no padding. Actions are drawn on the actor's side, with the actor's generator.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from ddrl.coordinator.shared_parameters import AnyParameters
from ddrl.coordinator.traffic import recent
from ddrl.errors import Closed
from ddrl.interfaces import Parameters
from ddrl.system.cuda_streams import SideStream
from ddrl.types import Metrics, PolicyInput, PolicyOutput


@dataclass(frozen=True)
class BatchRule:
    """The rule by which a batch begins, and its size."""

    min_columns: int
    max_columns: int
    """At least the columns of the largest call."""
    max_wait: float
    """Seconds after which the oldest call waits no longer for others."""


@dataclass(frozen=True)
class PendingCall:
    """A call of one actor, and the future of its answer."""

    inputs: PolicyInput
    columns: int
    came: float
    answer: Future[PolicyOutput]


class Batcher:
    """Collects the calls of many threads; other threads take them in batches. Holds one call of each actor at most."""

    def __init__(self, rule: BatchRule) -> None:
        self.waiting_columns = 0
        """Columns of the calls that are not taken yet."""
        self._rule = rule
        self._calls: deque[PendingCall] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def call(self, inputs: PolicyInput) -> PolicyOutput:
        """Wait for the answer and return it. Raise what the inference raised, or `Closed` once the run is over."""
        call = PendingCall(inputs, len(inputs.start), time.perf_counter(), Future())
        with self._changed:
            if self._closed:
                raise Closed
            self._calls.append(call)
            self.waiting_columns += call.columns
            self._changed.notify()
        return call.answer.result()

    def take(self) -> list[PendingCall]:
        """Wait for the next batch and return its calls. Raise `Closed` once the run is over."""
        with self._changed:
            while not self._closed and (wait := self._seconds_to_wait()) != 0:
                self._changed.wait(wait)
            if self._closed:
                raise Closed
            batch = [self._calls.popleft()]
            columns = batch[0].columns
            while self._calls and columns + self._calls[0].columns <= self._rule.max_columns:
                batch.append(self._calls.popleft())
                columns += batch[-1].columns
            self.waiting_columns -= columns
            if self._calls:
                self._changed.notify()  # another thread may begin with the rest
        return batch

    def _seconds_to_wait(self) -> float | None:
        """Return the seconds until a batch may begin; None: until a call comes."""
        if not self._calls:
            return None
        if self.waiting_columns >= self._rule.min_columns:
            return 0
        return max(0.0, self._calls[0].came + self._rule.max_wait - time.perf_counter())

    def close(self) -> None:
        """End every wait with `Closed`."""
        with self._changed:
            self._closed = True
            calls, self._calls = self._calls, deque()
            self._changed.notify_all()
        for call in calls:
            call.answer.set_exception(Closed())


class Network(Protocol):
    """A network to infer with, of which each inference thread has its own."""

    network: nn.Module
    version: int

    def infer(self, inputs: PolicyInput) -> PolicyOutput:
        """Return the network's output for one step [B, ...]."""


class InferenceThread:
    """A service: answers one batch a step with the newest parameters; on a GPU in a stream of its own."""

    def __init__(self, network: Network, params: AnyParameters, batcher: Batcher | None, meter: Meter) -> None:
        self._network = network
        self._params = params
        self._batcher = batcher
        self._meter = meter
        self._stream = SideStream(next(network.network.parameters()).device)
        network.version = -1

    def step(self) -> None:
        """Take a batch and answer its calls, which raise what the network raises. Raise `Closed` at the run's end."""
        assert self._batcher is not None
        calls = self._batcher.take()
        began = time.perf_counter()
        try:
            answers = self.answers([call.inputs for call in calls])
        except BaseException as error:
            for call in calls:
                call.answer.set_exception(error)
            raise
        for call, answer in zip(calls, answers, strict=True):
            call.answer.set_result(answer)
        now = time.perf_counter()
        self._meter.batch([call.columns for call in calls], [now - call.came for call in calls], now - began)

    @torch.inference_mode()
    def answers(self, inputs: Sequence[PolicyInput]) -> list[PolicyOutput]:
        """Return the answer to each call, from one forward pass, which is done when this returns."""
        own = self._network
        with self._stream.running():
            own.version = self._params.refresh(own.network, own.version)
            output = own.infer(_joined(inputs))
        if len(inputs) == 1:
            return [output]
        sizes = [len(part.start) for part in inputs]
        distributions, values = torch.split(output.distribution, sizes), torch.split(output.value, sizes)
        parts = [torch.split(part, sizes) for part in output.state]
        states = zip(*parts, strict=True) if parts else [()] * len(sizes)
        return [
            PolicyOutput(distribution, state, output.version, value)
            for distribution, state, value in zip(distributions, states, values, strict=True)
        ]


def _joined(inputs: Sequence[PolicyInput]) -> PolicyInput:
    if len(inputs) == 1:
        return inputs[0]
    *parts, states = zip(*inputs, strict=True)
    observation, last_action, last_reward, start = (torch.cat(tensors) for tensors in parts)
    state = tuple(torch.cat(tensors) for tensors in zip(*states, strict=True))
    return PolicyInput(observation, last_action, last_reward, start, state)


class CentralInference:
    """The `ddrl.interfaces.Inference` of one learner's actors, which all of them share."""

    def __init__(self, networks: Sequence[Network], params: AnyParameters, rule: BatchRule | None) -> None:
        """`networks`: one for each inference thread. `rule` None: without threads, each call is inferred at once."""
        self.network = networks[0].network
        self.meter = Meter()
        self._params = params
        self._batcher = Batcher(rule) if rule else None
        self._threads = [InferenceThread(network, params, self._batcher, self.meter) for network in networks]

    @property
    def threads(self) -> list[InferenceThread]:
        """Services that have to run for calls to be answered."""
        return self._threads if self._batcher else []

    def pull(self, params: Parameters, unroll_index: int) -> None:
        """Wait for the schedule; the parameters are where the inference is."""
        self._params.wait_for_schedule(unroll_index)

    def leave_out_values(self) -> None:
        """Do nothing: the network is not the actor's."""

    def infer(self, inputs: PolicyInput) -> PolicyOutput:
        """Return the behaviour policy for the actor's columns. Raise as `Batcher.call` does."""
        return self._batcher.call(inputs) if self._batcher else self._threads[0].answers([inputs])[0]

    def close(self) -> None:
        """End every wait with `Closed`."""
        if self._batcher:
            self._batcher.close()

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the parameters are not the actor's."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing."""


class Meter:
    """The newest measurements of inference threads since the last `take`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._columns, self._seconds, self._calls = recent(), recent(), recent()

    def batch(self, columns: Sequence[int], waited: Sequence[float], seconds: float) -> None:
        """Count a batch: the columns of each call, the seconds since each call came, the seconds of the inference."""
        with self._lock:
            self._columns.append(sum(columns))
            self._seconds.append(seconds)
            self._calls.extend(waited)

    def take(self) -> Metrics:
        """Return columns of a batch and milliseconds of a batch and of a call; nothing without batches."""
        with self._lock:
            columns, seconds, calls = self._columns, self._seconds, self._calls
            self._columns, self._seconds, self._calls = recent(), recent(), recent()
        if not columns:
            return {}
        return {
            "inference_columns_mean": float(np.mean(columns)),
            "inference_batch_ms_mean": 1000 * float(np.mean(seconds)),
            "inference_call_ms_p50": 1000 * float(np.percentile(calls, 50)),
            "inference_call_ms_p99": 1000 * float(np.percentile(calls, 99)),
        }
