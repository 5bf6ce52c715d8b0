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
from collections.abc import Sequence
from typing import Any, cast

import ray
import torch
from torch import Tensor, nn

from ddrl.learners.optimizers import make_rmsprop
from ddrl.learners.shared_updates import SharedConfig
from ddrl.runtimes.ray.errors import connection_to
from ddrl.runtimes.ray.messages import NO_TRAFFIC, Shard, ShardTraffic
from ddrl.runtimes.ray.serialization import prepare_process
from ddrl.system.allocator import keep_freed_memory
from ddrl.training.builder import Builder
from ddrl.training.config.run_config import RunConfig


class ShardProcess:
    """The process of a shard, on the CPU. It answers one call at a time: each answer is a whole version of its part."""

    def __init__(self, config: RunConfig, part: slice) -> None:
        """`part`: of the network's parameters."""
        prepare_process()
        self._config, self._part = config, part

    def pid(self) -> int:
        """Return the process ID."""
        return os.getpid()

    def build(self) -> None:
        """Make the parameters and their optimizer, which begin as those of the learner."""
        keep_freed_memory()
        own = list(Builder(self._config, torch.device("cpu")).network().parameters())[self._part]
        self._parameters = [parameter.detach() for parameter in own]
        self._optimizer = make_rmsprop(own, cast(SharedConfig, self._config.hyperparameters).optimizer)

    def apply(self, gradients: list[Tensor], learning_rate: float) -> tuple[list[Tensor], float]:
        """Apply this part of a gradient; return `parameters` after it."""
        self._optimizer.apply(gradients, learning_rate)
        return self.parameters()

    def parameters(self) -> tuple[list[Tensor], float]:
        """Return the parameters and the process's CPU seconds. Ray copies them before the next call begins."""
        return self._parameters, time.process_time()

    def state_dict(self) -> tuple[list[Tensor], dict[str, Any]]:
        """Return the parameters and the state of the optimizer."""
        return self._parameters, self._optimizer.state_dict()

    def load_state_dict(self, parameters: list[Tensor], optimizer: dict[str, Any]) -> None:
        """Continue with these parameters and this state of the optimizer."""
        torch._foreach_copy_(self._parameters, parameters)
        self._optimizer.load_state_dict(copy.deepcopy(optimizer))  # it keeps the tensors; these are read-only


def start_process(config: RunConfig, part: slice, **options: Any) -> Any:
    """Start the process of a shard; Ray spreads several over the nodes."""
    process: Any = ray.remote(num_cpus=1, scheduling_strategy="SPREAD", **options)(ShardProcess)
    return process.remote(config, part)


def _load(network: nn.Module, shards: Sequence[Shard], parts: Sequence[list[Tensor]]) -> int:
    """Copy the tensors that each shard sent into `network`; return the bytes of all."""
    own, size = [parameter.data for parameter in network.parameters()], 0
    for shard, tensors in zip(shards, parts, strict=True):
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
        asked = [shard.process.apply.remote(list(gradients[shard.part]), learning_rate) for shard in self._shards]
        self._take(asked, network, sum(tensor.nbytes for tensor in gradients))

    def pull(self, network: nn.Module) -> None:
        """Copy the present parameters into `network`."""
        self._take([shard.process.parameters.remote() for shard in self._shards], network, 0)

    def _take(self, asked: list[Any], network: nn.Module, sent: int) -> None:
        answers, before = ray.get(asked), self._traffic
        received = _load(network, self._shards, [parameters for parameters, _ in answers])
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
        _load(network, self._shards, [parameters for parameters, _ in answers])

    def collect(self, network: nn.Module) -> list[dict[str, Any]]:
        """Copy the parameters into `network`; return the state of each shard's optimizer."""
        states = _get([shard.process.state_dict.remote() for shard in self._shards])
        _load(network, self._shards, [parameters for parameters, _ in states])
        return [optimizer for _, optimizer in states]

    def restore(self, network: nn.Module, optimizers: list[dict[str, Any]]) -> None:
        """Give the shards the parameters of `network` and these states of their optimizers."""
        own = [parameter.detach() for parameter in network.parameters()]
        _get(
            [
                shard.process.load_state_dict.remote(own[shard.part], state)
                for shard, state in zip(self._shards, optimizers, strict=True)
            ]
        )


def _get(references: list[Any]) -> Any:
    with connection_to("a parameter shard"):
        return ray.get(references)
