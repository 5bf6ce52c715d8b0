"""What the process of a replay is made of, where it has one of its own: the replay, and its part of checkpoints."""

from __future__ import annotations

from pathlib import Path

import torch

from ddrl import checkpoint
from ddrl.acting import Builder
from ddrl.config import RunConfig
from ddrl.coordinator.traffic import Traffic
from ddrl.learners.reduction import SingleLearner
from ddrl.learning import make_replay
from ddrl.memory import keep_freed_memory


class ReplaySide:
    """See `ddrl.coordinator.replay_host.ReplaySide`."""

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
