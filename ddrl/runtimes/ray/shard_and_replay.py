"""The contents of the processes of parameter shards and of a replay."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch

from ddrl.coordinator.traffic import Traffic
from ddrl.learners.all_reduce import SingleLearner
from ddrl.learners.optimizers import make_rmsprop
from ddrl.learners.shared_updates import SharedConfig, shards
from ddrl.system.allocator import keep_freed_memory
from ddrl.training.builder import Builder
from ddrl.training.config.run_config import RunConfig
from ddrl.training.learner_node import make_replay
from ddrl.training.records import checkpoint


def shard_parts(builder: Builder) -> list[slice]:
    """Return the network's parameters of each shard with its own process; nothing where the learner holds them all."""
    topology = builder.config.topology
    if topology.runtime != "ray" or topology.parameter_shards == 1 or builder.config.system.parameters != "sharded":
        return []
    return [part for part, _ in shards(list(builder.network().parameters()), topology.parameter_shards)]


class ShardSide:
    """Some of the network's parameters, on the CPU, and their optimizer. They begin as those of the learner."""

    def __init__(self, config: RunConfig, part: slice) -> None:
        keep_freed_memory()
        network = Builder(config, torch.device("cpu")).network()
        self.parameters: list[Any] = list(network.parameters())[part]
        optimizer = make_rmsprop(self.parameters, cast(SharedConfig, config.hyperparameters).optimizer)
        self.apply, self.state_dict = optimizer.apply, optimizer.state_dict
        self.load_state_dict = optimizer.load_state_dict


class ReplaySide:
    """An empty replay, the traffic of what actors send to it, and the folder of its part of checkpoints."""

    def __init__(self, config: RunConfig, directory: Path) -> None:
        keep_freed_memory()
        builder = Builder(config, torch.device("cpu"))
        self.replay = make_replay(builder, builder.network(), SingleLearner())
        self.traffic = Traffic(builder.spec.frame_skip)
        self.folder = checkpoint.replay_folder(directory)
