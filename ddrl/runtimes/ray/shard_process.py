"""Shards of a parameter server in processes of their own, under runtime `ray` (Nair et al. 2015; after DistBelief).

Each holds some of the network's parameters with their part of the optimizer's state. For an update an actor gets the
learning rate from the learner, sends each shard its part of the gradient, copies the parameters that they return, and
tells the learner, which counts the update. Gradients and parameters never pass through the learner's process. A
checkpoint waits for the updates that were begun and lets none begin, so a gradient is in all its shards or in none.
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import ray
import torch
from torch import Tensor, nn

from ddrl.runtimes.ray.errors import connection_to
from ddrl.runtimes.ray.messages import NO_TRAFFIC, Shard, ShardTraffic
from ddrl.runtimes.ray.serialization import from_arrays, prepare_process, to_arrays

if TYPE_CHECKING:
    from ddrl.runtimes.ray.shard_and_replay import ShardSide

MakeShard = Callable[[], "ShardSide"]


class ShardProcess:
    """The process of a shard. It answers one call at a time, so each answer is a whole version of its part."""

    _side: ShardSide  # set by `build`

    def __init__(self, make: MakeShard) -> None:
        prepare_process()
        self._make = make

    def pid(self) -> int:
        """Return the process ID."""
        return os.getpid()

    def build(self) -> None:
        """Make the part with its initial parameters."""
        self._side = self._make()

    def apply(self, gradients: Any, learning_rate: float) -> Any:
        """Apply this part of a gradient; return `parameters` after it."""
        self._side.apply(from_arrays(gradients), learning_rate)
        return self.parameters()

    def parameters(self) -> Any:
        """Return the parameters and the process's CPU seconds. Ray copies them before the next call begins."""
        return self._arrays(), time.process_time()

    def state_dict(self) -> tuple[Any, Any]:
        """Return the parameters and the state of the optimizer."""
        return self._arrays(), to_arrays(self._side.state_dict())

    def load_state_dict(self, parameters: Any, optimizer: Any) -> None:
        """Continue with these parameters and this state of the optimizer."""
        with torch.no_grad():
            torch._foreach_copy_(self._side.parameters, from_arrays(parameters))
        self._side.load_state_dict(copy.deepcopy(from_arrays(optimizer)))  # it keeps the tensors; these are read-only

    def _arrays(self) -> Any:
        return to_arrays([parameter.detach() for parameter in self._side.parameters])


def start_process(make: MakeShard, **options: Any) -> Any:
    """Start the process of a shard; Ray spreads several over the nodes."""
    process: Any = ray.remote(num_cpus=1, scheduling_strategy="SPREAD", **options)(ShardProcess)
    return process.remote(make)


def _load(network: nn.Module, shards: Sequence[Shard], parts: Sequence[Any]) -> int:
    """Copy the arrays that each shard sent into `network`; return the bytes of all."""
    own, size = [parameter.data for parameter in network.parameters()], 0
    for shard, arrays in zip(shards, parts, strict=True):
        tensors = from_arrays(arrays)
        torch._foreach_copy_(own[shard.part], tensors)
        size += sum(tensor.nbytes for tensor in tensors)
    return size


class ShardLinks:
    """The shards, as an actor sees them. Raises RayError where the process of one is gone."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._shards = shards
        self._traffic = NO_TRAFFIC

    def apply(self, gradients: Sequence[Tensor], learning_rate: float, network: nn.Module) -> None:
        """Send each shard its part of a gradient; copy the parameters after these updates into `network`."""
        asked = [
            shard.process.apply.remote(to_arrays(list(gradients[shard.part])), learning_rate) for shard in self._shards
        ]
        self._take(asked, network, sum(tensor.nbytes for tensor in gradients))

    def pull(self, network: nn.Module) -> None:
        """Copy the present parameters into `network`."""
        self._take([shard.process.parameters.remote() for shard in self._shards], network, 0)

    def _take(self, asked: list[Any], network: nn.Module, sent: int) -> None:
        answers, before = ray.get(asked), self._traffic
        received = _load(network, self._shards, [arrays for arrays, _ in answers])
        cpu_seconds = sum(seconds for _, seconds in answers)
        self._traffic = ShardTraffic(before.sent + sent, before.received + received, cpu_seconds)

    def take_traffic(self) -> ShardTraffic:
        """Return the traffic since the last call."""
        taken, self._traffic = self._traffic, NO_TRAFFIC
        return taken


class RemoteShards:
    """The shards, as the learner sees them. Raises ConnectionError where the process of one is gone."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._shards = shards

    def pull(self, network: nn.Module) -> None:
        """Copy the present parameters into `network`."""
        answers = _get([shard.process.parameters.remote() for shard in self._shards])
        _load(network, self._shards, [arrays for arrays, _ in answers])

    def collect(self, network: nn.Module) -> list[dict[str, Any]]:
        """Copy the parameters into `network`; return the state of each shard's optimizer."""
        states = _get([shard.process.state_dict.remote() for shard in self._shards])
        _load(network, self._shards, [parameters for parameters, _ in states])
        return [from_arrays(optimizer) for _, optimizer in states]

    def restore(self, network: nn.Module, optimizers: list[dict[str, Any]]) -> None:
        """Give the shards the parameters of `network` and these states of their optimizers."""
        own = [parameter.detach() for parameter in network.parameters()]
        _get(
            [
                shard.process.load_state_dict.remote(to_arrays(own[shard.part]), to_arrays(state))
                for shard, state in zip(self._shards, optimizers, strict=True)
            ]
        )


def _get(references: list[Any]) -> Any:
    with connection_to("a parameter shard"):
        return ray.get(references)
