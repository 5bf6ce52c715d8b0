"""What the process of a replay is made of, where it has one of its own: the replay, and its part of checkpoints."""

from __future__ import annotations

from pathlib import Path

import torch

from ddrl.coordinator.traffic import Traffic
from ddrl.learners.all_reduce import SingleLearner
from ddrl.system.allocator import keep_freed_memory
from ddrl.training.builder import Builder
from ddrl.training.config.run_config import RunConfig
from ddrl.training.learner_node import make_replay
from ddrl.training.records import checkpoint


class ReplaySide:
    """See `ddrl.runtimes.ray.replay_process.ReplaySide`."""

    def __init__(self, config: RunConfig, directory: Path) -> None:
        keep_freed_memory()
        builder = Builder(config, torch.device("cpu"))
        self.replay = make_replay(builder, builder.network(), SingleLearner())
        self.traffic = Traffic(builder.spec.frame_skip)
        self._folder = checkpoint.replay_folder(directory)

    def save(self, number: int) -> str:
        """Beside the learner's checkpoint of this number, which is written afterwards and names the checksum."""
        return checkpoint.checksum(checkpoint.save(self._folder, number, {"replay": self.replay.state_dict()}))

    def restore(self, number: int) -> None:
        """From what `save` has written."""
        self.replay.load_state_dict(checkpoint.load(self._folder, number)["replay"])
