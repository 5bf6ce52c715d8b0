"""A replay's learner: its pieces, its target network, and priorities of its own errors wherever a batch is computed."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from ddrl.learners.all_reduce import SingleLearner
from ddrl.learners.core import Setting
from ddrl.learners.optimizers import RMSPropConfig
from ddrl.learners.replay_learner import ReplayLearner, no_actions
from ddrl.replay import items as replay_items
from ddrl.replay.items import Transitions
from ddrl.system.seeding import numpy_generator
from ddrl.types import Metrics
from tests.algorithms.apex_dqn_test import Table, random_transitions
from tests.algorithms.rigs import Rig
from tests.runs import REPLAYING

every_replaying = pytest.mark.parametrize("name", REPLAYING)


class Made:
    """A learner of a table of values; its loss is made up and writes down the size of each piece."""

    def __init__(self, *, piece_steps: int = 8, trained_steps: int = 1, batch_size: int = 4, period: int = 2) -> None:
        self.network: Any = Table([[0.0, 0.0, 0.0]])
        self.network.piece_steps = piece_steps
        self.sizes: list[int] = []
        config = SimpleNamespace(
            discount=0.9,
            reward_clipping="none",
            max_grad_norm=None,
            optimizer=RMSPropConfig(learning_rate=0.1, decay_frames=None),
            fresh_columns=0,
            batch_size=batch_size,
            target_update_period=period,
            trained_steps=trained_steps,
        )
        setting = Setting(4, torch.device("cpu"), "float32", 1, numpy_generator(0, "replay"), SingleLearner())
        replay: Any = SimpleNamespace(
            can_sample=lambda count: True,
            sample=lambda count: random_transitions(0, count),
            update=lambda items, priorities: None,
        )
        params: Any = SimpleNamespace(version=7, publish=lambda network: None)
        made: dict[str, Any] = {"loss": self.loss, "priorities": lambda batch, config: batch.td_error}
        self.learner = ReplayLearner(config, self.network, params, replay, setting, **made)

    def loss(self, network: Any, target: Any, part: Transitions, config: Any, weight: float) -> tuple[Any, Metrics]:
        self.sizes.append(part.batch_size)
        return weight * network.rows.sum(), {"loss": float(part.batch_size)}


@pytest.mark.parametrize(
    ("piece_steps", "trained_steps", "sizes"),
    [(12, 3, [4, 4, 4]), (2, 3, [1] * 12), (3, 3, [1] * 12), (11, 1, [6, 6]), (100, 3, [12])],
)
def test_a_piece_has_as_many_items_as_its_trained_steps_allow_and_one_at_least(
    piece_steps: int, trained_steps: int, sizes: list[int]
) -> None:
    made = Made(piece_steps=piece_steps, trained_steps=trained_steps, batch_size=12)
    metrics = made.learner.step()
    assert made.sizes == sizes
    assert metrics["loss"] == 1.0


def test_the_target_network_follows_after_every_so_many_updates_and_takes_no_gradient() -> None:
    made = Made(period=2)
    target = made.learner.target_network.rows
    assert not target.requires_grad
    followed, counted = [], []
    for _ in range(5):
        metrics = made.learner.step()
        counted.append((made.learner.core.updates, metrics["target_updates"]))
        followed.append(torch.equal(target, made.network.rows))
    assert counted == [(1, 0.0), (2, 1.0), (3, 1.0), (4, 2.0), (5, 2.0)]
    assert followed == [False, True, False, True, False]
    assert not target.requires_grad


def test_a_restored_learner_goes_on_with_the_target_network_and_its_count() -> None:
    saved, other = Made(period=2), Made(period=2)
    for _ in range(3):
        saved.learner.step()
    other.learner.load_state_dict(copy.deepcopy(saved.learner.state_dict()))
    assert not torch.equal(saved.learner.target_network.rows, saved.network.rows)
    assert torch.equal(other.learner.target_network.rows, saved.learner.target_network.rows)
    assert torch.equal(other.network.rows, saved.network.rows)
    assert other.learner.step() == saved.learner.step()
    assert other.learner.step()["target_updates"] == 2.0


def test_a_network_that_reads_no_actions_is_given_one_step_of_zeros() -> None:
    action, reward, start = no_actions(3, torch.device("cpu"))
    assert [one.tolist() for one in (action, reward, start)] == [[[0] * 3], [[0.0] * 3], [[False] * 3]]
    assert [one.dtype for one in (action, reward, start)] == [torch.int64, torch.float32, torch.bool]


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
