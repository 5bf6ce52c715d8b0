"""A learner with its store: what a checkpoint holds of a replay in another process, and how it goes on from there."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from ddrl.learners.all_reduce import SingleLearner
from ddrl.training.builder import Builder
from ddrl.training.config.run_config import parse_run_config
from ddrl.training.learner_node import DistantReplay, LearnerNode
from tests.runs import BASE, merged, small


class Elsewhere:
    """A replay in another process, as far as checkpoints need it; remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def count_in(self, traffic: Any) -> None:
        """Nothing is counted."""

    def can_sample(self, count: int) -> bool:
        return False

    def save(self, number: int) -> str:
        return "checksum"

    def counters(self) -> dict[str, Any]:
        return {"size": 7}

    def restore(self, number: int) -> None:
        self.asked.append(f"restore {number}")

    def refill(self, counters: dict[str, Any]) -> int:
        self.asked.append(f"refill {counters}")
        return int(counters["size"])


def node(replay: Elsewhere, kept: str) -> LearnerNode:
    """A learner whose checkpoints hold the replay ("saved") or not ("refilled")."""
    changes = {"algorithm": "apex_dqn", "topology": {"runtime": "ray", "replay": "own"}, "checkpoint": {"replay": kept}}
    config = parse_run_config(merged(BASE, changes) | {"hyperparameters": small("apex_dqn")})
    builder = Builder(config, torch.device("cpu"))
    return LearnerNode(builder, SingleLearner(), distant_replay=cast(DistantReplay, replay))


@pytest.mark.parametrize("now", ["saved", "refilled"])
@pytest.mark.parametrize(("before", "asked"), [("saved", "restore 0"), ("refilled", "refill {'size': 7}")])
def test_a_replay_elsewhere_goes_on_from_what_the_checkpoint_has_whatever_the_configuration_says_now(
    before: str, asked: str, now: str
) -> None:
    state = node(Elsewhere(), before).state_dict()
    replay = Elsewhere()
    said = node(replay, now).load_state_dict(state)
    assert replay.asked == [asked]
    assert (said is None) == (before == "saved")
