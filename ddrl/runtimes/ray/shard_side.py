"""What the process of a parameter server's shard is made of, where it has one of its own."""

from __future__ import annotations

import copy
from typing import Any

import torch

from ddrl.learners.optimizers import make_rmsprop
from ddrl.learners.shared_updates import shards
from ddrl.system.allocator import keep_freed_memory
from ddrl.training.builder import Builder
from ddrl.training.config.run_config import RunConfig
from ddrl.training.config.systems import has_parameter_server


def shard_parts(builder: Builder) -> list[slice]:
    """Which of the network's parameters each shard with a process of its own holds; none where the learner has all."""
    topology = builder.config.topology
    if topology.runtime != "ray" or topology.parameter_shards == 1 or not has_parameter_server(builder.config):
        return []
    return [part for part, _ in shards(list(builder.network().parameters()), topology.parameter_shards)]


class ShardSide:
    """See `ddrl.runtimes.ray.shard_process.ShardSide`; it begins as the learner's network does, and is on the CPU."""

    def __init__(self, config: RunConfig, part: slice) -> None:
        keep_freed_memory()
        network = Builder(config, torch.device("cpu")).network()
        self.parameters: list[Any] = list(network.parameters())[part]
        self._optimizer = make_rmsprop(self.parameters, config.hyperparameters.optimizer)
        self.apply, self.state_dict = self._optimizer.apply, self._optimizer.state_dict

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The optimizer keeps tensors that it is given, and these may lie where nobody may write."""
        self._optimizer.load_state_dict(copy.deepcopy(state))
