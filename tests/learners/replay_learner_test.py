"""Priorities that a learner gives back are those of its own errors, wherever the batch was computed."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from ddrl.learners.replay_learner import ReplayLearner
from ddrl.replay import items as replay_items
from tests.algorithms.rigs import Rig
from tests.runs import REPLAYING

every_replaying = pytest.mark.parametrize("name", REPLAYING)


def away(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: what `to` returns shares no memory with what stays behind."""

    def to(batch: Any, device: torch.device) -> Any:
        return replay_items._map(batch, lambda tensor, axis: tensor.clone())

    for kind in (replay_items.Transitions, replay_items.Sequences):
        monkeypatch.setattr(kind, "to", to)


def probabilities(rig: Rig) -> dict[tuple[int, int], float]:
    streams, steps, found = rig.queue.replay.probabilities()
    return {(int(stream), int(step)): float(p) for stream, step, p in zip(streams, steps, found, strict=True)}


@every_replaying
def test_a_batch_that_is_computed_elsewhere_leaves_the_same_priorities_and_the_same_learner(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = Rig(name), Rig(name)
    for update in range(4):
        expected = here.step(seed=update, drift=0.3)
        with monkeypatch.context() as patch:
            away(patch)
            assert there.step(seed=update, drift=0.3) == expected
        assert probabilities(there) == probabilities(here)
    assert torch.equal(here.weights(), there.weights())


@every_replaying
@pytest.mark.parametrize("elsewhere", [False, True])
def test_new_priorities_are_those_of_this_batch_s_errors_before_the_update(
    name: str, elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(name)
    rig.step(seed=0, drift=0.3)
    learner: ReplayLearner = rig.learner
    before = copy.deepcopy(rig.network), copy.deepcopy(learner.target_network)
    drawn, given = [], []
    replay = rig.queue.replay
    sample, update = replay.sample, replay.update
    monkeypatch.setattr(replay, "sample", lambda count: drawn.append(sample(count)) or drawn[-1])
    monkeypatch.setattr(replay, "update", lambda *said: (given.append(said), update(*said))[1])
    if elsewhere:
        away(monkeypatch)
    rig.step(seed=1, drift=0.3)
    ((batch,), ((items, priorities),)) = drawn, given
    apart = replay_items._map(batch, lambda tensor, axis: tensor.clone())
    apart.td_error.zero_()
    learner._loss(*before, apart, rig.config, 1.0)
    torch.testing.assert_close(priorities, learner._priorities(apart, rig.config))
    assert torch.equal(items.slot, batch.drawn.slot)
    assert float(priorities.min()) > 0.0 and len(np.unique(priorities.numpy())) > 1
