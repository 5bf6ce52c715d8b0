"""Shards of a parameter server in processes of their own, under runtime `ray` (Nair et al. 2015; after DistBelief).

Each holds some of the network's parameters with their part of the optimizer's state. A bundle has the learner begin an
update, which says the learning rate, sends each shard its part of the gradient, all of them at once, puts the
parameters together that they answer with, and tells the learner, which counts the update. So gradients and parameters
never pass through the learner's process. A checkpoint waits for the updates that were begun and lets none begin, so a
gradient is in all its shards or in none.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import ray
import torch
from ray.exceptions import RayError, RayTaskError
from torch import Tensor, nn

from ddrl.runtimes.ray.errors import first_line
from ddrl.runtimes.ray.messages import Elsewhere, Place
from ddrl.runtimes.ray.serialization import from_arrays, prepare_process, to_arrays


class ShardSide(Protocol):
    """What a shard's process is made of (`ddrl.runtimes.ray.shard_side`)."""

    @property
    def parameters(self) -> list[Tensor]:
        """The live ones."""

    def apply(self, gradients: list[Tensor], learning_rate: float) -> None:
        """One update of them."""

    def state_dict(self) -> dict[str, Any]:
        """Of the optimizer."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues where `state` was taken, with tensors of its own."""


MakeShard = Callable[[], ShardSide]


class ShardProcess:
    """A shard's process. It does one thing at a time: what it answers with is a whole version of its part."""

    def __init__(self, make: MakeShard) -> None:
        prepare_process()
        self._make = make
        self._side: ShardSide | None = None

    def pid(self) -> int:
        """Of the process."""
        return os.getpid()

    def build(self) -> None:
        """Makes the part as it is at the beginning."""
        self._side = self._make()

    def apply(self, gradients: Any, learning_rate: float) -> Any:
        """One update from its part of a gradient; returns as `parameters`, after it."""
        self._built.apply(from_arrays(gradients), learning_rate)
        return self.parameters()

    def parameters(self) -> Any:
        """As they are, and CPU seconds since the beginning. Ray copies them before the next call begins."""
        return self._arrays(), time.process_time()

    def state_dict(self) -> tuple[Any, Any]:
        """Parameters, and the state of the optimizer."""
        return self._arrays(), to_arrays(self._built.state_dict())

    def load_state_dict(self, parameters: Any, optimizer: Any) -> None:
        """Continues with these."""
        with torch.no_grad():
            torch._foreach_copy_(self._built.parameters, from_arrays(parameters))
        self._built.load_state_dict(from_arrays(optimizer))

    def _arrays(self) -> Any:
        return to_arrays([parameter.detach() for parameter in self._built.parameters])

    @property
    def _built(self) -> ShardSide:
        assert self._side is not None
        return self._side


def start_process(make: MakeShard, **options: Any) -> Any:
    """Starts a shard's process, of several on as many nodes as there are."""
    host: Any = ray.remote(num_cpus=1, scheduling_strategy="SPREAD", **options)(ShardProcess)
    return host.remote(make)


def _load(network: nn.Module, places: Sequence[Place], parts: Sequence[Any]) -> int:
    """Copies what each shard sent into `network`; returns the bytes of all."""
    own, size = [parameter.data for parameter in network.parameters()], 0
    for place, arrays in zip(places, parts, strict=True):
        tensors = from_arrays(arrays)
        torch._foreach_copy_(own[place.part], tensors)
        size += sum(tensor.nbytes for tensor in tensors)
    return size


class ShardLinks:
    """The shards, as a bundle sees them. Raises RayError where the process of one is gone."""

    def __init__(self, places: Sequence[Place]) -> None:
        self._places = places
        self._traffic = Elsewhere()

    def apply(self, gradients: Sequence[Tensor], learning_rate: float, network: nn.Module) -> None:
        """Sends each shard its part of a gradient; copies the parameters after these updates into `network`."""
        asked = [
            place.host.apply.remote(to_arrays(list(gradients[place.part])), learning_rate) for place in self._places
        ]
        self._take(asked, network, sum(tensor.nbytes for tensor in gradients))

    def pull(self, network: nn.Module) -> None:
        """Copies the parameters as they are into `network`."""
        self._take([place.host.parameters.remote() for place in self._places], network, 0)

    def _take(self, asked: list[Any], network: nn.Module, sent: int) -> None:
        answers, before = ray.get(asked), self._traffic
        received = _load(network, self._places, [arrays for arrays, _ in answers])
        cpu_seconds = sum(seconds for _, seconds in answers)
        self._traffic = Elsewhere(before.sent + sent, before.received + received, cpu_seconds)

    def take_traffic(self) -> Elsewhere:
        """Since the last call."""
        taken, self._traffic = self._traffic, Elsewhere()
        return taken


class RemoteShards:
    """The shards, as the learner sees them. Raises ConnectionError where the process of one is gone."""

    def __init__(self, places: Sequence[Place]) -> None:
        self._places = places

    def pull(self, network: nn.Module) -> None:
        """Copies the parameters as they are into `network`."""
        with _there():
            answers = ray.get([place.host.parameters.remote() for place in self._places])
        _load(network, self._places, [arrays for arrays, _ in answers])

    def collect(self, network: nn.Module) -> list[dict[str, Any]]:
        """Copies the parameters into `network`; returns the state of each shard's optimizer."""
        with _there():
            states = ray.get([place.host.state_dict.remote() for place in self._places])
        _load(network, self._places, [parameters for parameters, _ in states])
        return [from_arrays(optimizer) for _, optimizer in states]

    def restore(self, network: nn.Module, optimizers: list[dict[str, Any]]) -> None:
        """Gives the shards these parameters and states."""
        own = [parameter.detach() for parameter in network.parameters()]
        with _there():
            ray.get(
                [
                    place.host.load_state_dict.remote(to_arrays(own[place.part]), to_arrays(state))
                    for place, state in zip(self._places, optimizers, strict=True)
                ]
            )


@contextmanager
def _there() -> Iterator[None]:
    try:
        yield
    except RayTaskError:  # it is there, and raised
        raise
    except RayError as error:
        raise ConnectionError(f"a parameter shard is gone: {first_line(error)}") from error
