"""Learners weigh alike, or their steps do; Wijmans et al. 2020 average the gradients of ranks whose rollouts differ."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ddrl.algorithms import ppo
from ddrl.learners.all_reduce import SingleLearner
from ddrl.learners.weighting import Weights
from tests.algorithms import ppo_ranks as ranks
from tests.learners.minibatches_test import Meeting, ThreadReducer, together

STEPS, SUMS = (2, 6), (3.0, 12.0)
KEYS = {
    "num_epochs": 1,
    "num_minibatches": 1,
    "max_grad_norm": None,
    "normalise_advantages": False,
    "reward_normalisation": False,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "learners": ("discrete", {**KEYS, "weighting": "learners", "observation_normalisation": False}),
    "samples": ("discrete", {**KEYS, "observation_normalisation": False}),
    "scarce": ("discrete", {"num_epochs": 2, "num_minibatches": 10, "weighting": "learners"}),
    "stopped": (
        "continuous",
        {"num_minibatches": 2, "clip_epsilon": None, "kl_cost": 0.2, "max_kl": 0.0005, "weighting": "learners"}
        | {"kl_target": 0.0001, "kl_excess_cost": 10.0},
    ),
    "unrolls": ("discrete", {"num_minibatches": 2, "lstm_size": 8, "separate_value_network": False}),
}


@pytest.fixture(autouse=True)
def cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "CASES", CASES)


@pytest.mark.parametrize(("weighting", "mean"), [("samples", 15.0 / 8), ("learners", (1.5 + 2.0) / 2)])
def test_a_mean_is_over_all_steps_or_over_the_means_of_learners(weighting: Any, mean: float) -> None:
    def found(reducer: ThreadReducer) -> tuple[float, float]:
        weights = Weights(reducer, weighting)
        divisor = weights.divisor(STEPS[reducer.rank])
        total = SUMS[reducer.rank]
        assert weights.means({"some": total, "half": total / 2}, divisor) == {"some": mean, "half": mean / 2}
        return weights.mean(total, divisor), weights.total(total / divisor)

    for measured, of_gradients in together(Meeting(2), found):
        assert measured == of_gradients == pytest.approx(mean)


@pytest.mark.parametrize("weighting", ["samples", "learners"])
def test_a_single_learner_is_its_own_mean(weighting: Any) -> None:
    weights = Weights(SingleLearner(), weighting)
    assert weights.mean(6.0, weights.divisor(4)) == 1.5
    assert weights.divisor(0) == 1.0


def gradient(case: str, reducer: Any, first: int) -> tuple[list[Tensor], list[Tensor], int]:
    """The gradient of an update, that of its own share alone by autograd, and the steps of the share.

    Rank 0 has `first` steps less than it could have, as if it had been preempted.
    """
    side = ranks.make(case, reducer, 0)
    network = side.network
    unroll = ranks.share(ranks.batch(network, case, 0), reducer)
    if reducer.rank == 0:
        unroll.valid[-first:] = False
    config: Any = side.learner.config
    part = ppo.prepare(network, unroll, config)
    loss, _ = ppo.ppo_loss(network, part, config, 0.0, 1.0 / part.num_steps)
    alone = list(torch.autograd.grad(loss, list(network.parameters())))
    side.step(unroll)
    side.learner.core.close()
    return [p.grad.clone() for p in network.parameters() if p.grad is not None], alone, part.num_steps


@pytest.mark.parametrize("case", ["samples", "learners"])
def test_the_gradient_is_the_mean_of_learners_however_many_steps_each_has(case: str) -> None:
    one, other = together(Meeting(2), lambda reducer: gradient(case, reducer, 4))
    assert one[2] < other[2]
    share = 0.5 if case == "learners" else one[2] / (one[2] + other[2])
    for made, also, first, second in zip(one[0], other[0], one[1], other[1], strict=True):
        torch.testing.assert_close(made, share * first + (1 - share) * second, rtol=1e-4, atol=1e-6)
        assert torch.equal(made, also)


@pytest.mark.parametrize("case", ["scarce", "stopped", "unrolls"])
def test_learners_with_minibatches_of_their_own_make_the_same_number_of_steps_and_stay_equal(case: str) -> None:
    def learned(reducer: ThreadReducer) -> tuple[list[Any], list[int], list[Tensor]]:
        side = ranks.make(case, reducer, 0)
        acting = ranks.make(case, SingleLearner(), 0).network
        metrics, sizes = [], []
        for update in range(3):
            unroll = ranks.share(ranks.batch(acting, case, update), reducer)
            if reducer.rank == 0:
                unroll.valid[2:] = False
            made, minibatches = side.step(unroll)
            metrics.append(made)
            sizes += [len(minibatch) for minibatch in minibatches]
        side.learner.core.close()
        return metrics, sizes, [tensor.detach() for tensor in side.network.parameters()]

    one, other = together(Meeting(2), learned)
    assert one[0] == other[0]
    assert all(map(torch.equal, one[2], other[2]))
    if case != "unrolls":
        assert len(one[1]) == len(other[1])
        assert one[1] != other[1]
    if case == "scarce":
        assert 0 in one[1]
        assert 0 not in other[1]
