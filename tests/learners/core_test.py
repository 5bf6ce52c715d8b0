"""What all learners share: weights and means over the steps of all of them, counters, frames and the policy's lag."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ddrl.interfaces import Reducer
from ddrl.learners.all_reduce import SingleLearner
from ddrl.learners.core import LearnerCore, Setting, each_batch_once, no_fresh_batch
from ddrl.learners.optimizers import RMSPropConfig
from ddrl.system.seeding import numpy_generator
from ddrl.types import Metrics, Unroll
from tests.unrolls import make_unroll

FRAME_SKIP = 4


class Twin:
    """The reducer of one of two learners, where the other has what this one has."""

    rank = 0
    size = 2

    def sum_(self, tensors: list[Tensor]) -> None:
        for tensor in tensors:
            tensor.mul_(2)


class Value(nn.Module):
    """A number without an input, and one that no loss uses."""

    observation_normaliser = None
    reward_normaliser = None

    def __init__(self) -> None:
        super().__init__()
        self.number = nn.Parameter(torch.tensor(1.0))
        self.unused = nn.Parameter(torch.tensor(1.0))


def setting(reducer: Reducer | None = None, precision: str = "float32") -> Setting:
    generator = numpy_generator(0, "replay")
    return Setting(FRAME_SKIP, torch.device("cpu"), precision, 1, generator, reducer or SingleLearner())


class Made:
    """A learner whose loss is the number times a weight, for each column."""

    def __init__(self, reducer: Reducer | None = None, queue: Any = None) -> None:
        self.weights: list[float] = []
        config: Any = SimpleNamespace(
            discount=0.9,
            reward_clipping="none",
            max_grad_norm=None,
            optimizer=RMSPropConfig(learning_rate=0.1, decay_frames=1000),
            fresh_columns=6,
        )
        self.published: list[nn.Module] = []
        params: Any = SimpleNamespace(version=10, publish=self.published.append)
        self.network = Value()
        self.core = LearnerCore(config, self.network, params, queue, setting(reducer))

    def loss(self, network: Any, part: Unroll, weight: float) -> tuple[Tensor, Metrics]:
        self.weights.append(weight)
        return weight * part.batch_size * network.number, {"loss": 12.0 * part.batch_size}


def batch(*, dead: int = 0) -> Unroll:
    """A batch of 3 steps in 2 columns, the first `dead` of which are."""
    made = make_unroll(length=3, columns=2)
    valid = made.valid.flatten()
    valid[:dead] = False
    return replace(made, valid=valid.view(3, 2))


def test_a_setting_is_of_one_trainer_and_no_shards_unless_it_is_said() -> None:
    made = setting()
    assert (made.num_trainers, made.parameter_shards, made.shards) == (1, None, None)


@pytest.mark.parametrize(("precision", "dtype"), [("float32", torch.float32), ("bfloat16", torch.bfloat16)])
def test_networks_compute_in_the_precision_of_the_run(precision: str, dtype: torch.dtype) -> None:
    with setting(precision=precision).autocast():
        assert nn.Linear(2, 2)(torch.ones(1, 2)).dtype == dtype


def test_fresh_batches_are_learned_from_in_order_or_none_is_waited_for() -> None:
    assert [each_batch_once(None, batch) for batch in (0, 1, 5)] == [0, 1, 5]
    assert [no_fresh_batch(None, batch) for batch in (0, 1, 5)] == [0, 0, 0]


@pytest.mark.parametrize(
    ("reducer", "valid_steps", "mean", "weight", "loss", "gradient"),
    [
        (SingleLearner(), 6, True, 1 / 6, 4.0, 2 / 6),
        (SingleLearner(), 6, False, 1.0, 4.0, 2.0),
        (SingleLearner(), 1, True, 1.0, 24.0, 2.0),
        (SingleLearner(), 0, True, 1.0, 24.0, 2.0),
        (Twin(), 6, True, 1 / 12, 4.0, 2 * 2 / 12),
        (Twin(), 6, False, 1.0, 4.0, 4.0),
    ],
    ids=["mean", "sum", "one step", "no step", "mean of two learners", "sum of two learners"],
)
def test_steps_weigh_the_same_whichever_learner_has_them(
    reducer: Reducer, valid_steps: int, mean: bool, weight: float, loss: float, gradient: float
) -> None:
    made = Made(reducer)
    metrics = made.core.descend(made.loss, batch(), valid_steps, mean=mean)
    assert made.weights == [pytest.approx(weight)]
    assert metrics == {
        "loss": pytest.approx(loss),
        "gradient_norm": pytest.approx(gradient),
        "learning_rate": pytest.approx(0.1),
    }
    assert made.network.number.item() < 1.0
    assert made.network.unused.item() == 1.0


def test_a_gradient_step_is_of_means_unless_it_is_said() -> None:
    made = Made()
    made.core.descend(made.loss, batch(), 6)
    assert made.weights == [pytest.approx(1 / 6)]


@pytest.mark.parametrize(("reducer", "columns"), [(SingleLearner(), 6), (Twin(), 3)])
def test_learners_share_the_columns_of_a_fresh_batch(reducer: Reducer, columns: int) -> None:
    asked: list[int] = []
    queue = SimpleNamespace(can_sample=lambda count: True, sample=lambda count: asked.append(count) or batch())
    made = Made(reducer, queue)
    assert made.core.can_take()
    made.core.take()
    assert asked == [columns]


@pytest.mark.parametrize(("reducer", "learners"), [(SingleLearner(), 1), (Twin(), 2)])
def test_valid_steps_of_all_learners_are_counted_and_each_is_some_frames(reducer: Reducer, learners: int) -> None:
    made = Made(reducer)
    assert (made.core.agent_steps, made.core.env_frames) == (0, 0)
    counted = []
    for dead in (2, 0, 5):
        made.core.count(batch(dead=dead))
        counted.append((made.core.agent_steps, made.core.env_frames))
    assert counted == [(learners * steps, learners * steps * FRAME_SKIP) for steps in (4, 10, 11)]


def test_an_update_is_of_the_valid_steps_and_counted_and_the_schedule_follows_the_frames() -> None:
    made = Made()
    assert (made.core.updates, made.core.this_update()) == (0, "update 1")
    metrics = [made.core.update(made.loss, batch(dead=dead), mean=True) for dead in (2, 4)]
    assert made.weights == pytest.approx([1 / 4, 1 / 2])
    assert [one["loss"] for one in metrics] == pytest.approx([6.0, 12.0])
    assert [one["policy_lag_mean"] for one in metrics] == [10.0, 10.0]
    assert (made.core.updates, made.core.this_update()) == (2, "update 3")
    made.core.count_to(100)
    assert made.core.update(made.loss, batch(), mean=True)["learning_rate"] == pytest.approx(0.06)


def test_the_lag_is_the_versions_since_a_step_was_acted() -> None:
    version = torch.tensor([[1, 2], [3, 7], [5, 6]])
    assert Made().core.policy_lag(version) == {
        "policy_lag_mean": 6.0,
        "policy_lag_max": 9.0,
        "policy_lag_first": 8.5,
        "policy_lag_last": 4.5,
    }


def test_a_step_learns_from_a_fresh_batch_publishes_and_counts_it() -> None:
    fresh = batch(dead=1)
    made = Made(queue=SimpleNamespace(sample=lambda count: fresh))
    seen: list[Unroll] = []
    assert made.core.step(lambda unroll: seen.append(unroll) or {"loss": 1.0}) == {"loss": 1.0}
    assert seen == [fresh]
    assert made.published == [made.network]
    assert (made.core.agent_steps, made.core.env_frames) == (5, 5 * FRAME_SKIP)
