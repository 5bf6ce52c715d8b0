"""Of each step, the gradients that come first count, and the others do not."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed import HashStore, TCPStore

from ddrl.algorithms import ppo
from ddrl.learners.dropping import Dropping
from tests.algorithms import ppo_ranks as ranks
from tests.learners.minibatches_test import Meeting, ThreadReducer, together
from tests.learners.weighting_test import KEYS

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    weighting: ("discrete", {**KEYS, "weighting": weighting, "observation_normalisation": False})
    for weighting in ("samples", "learners")
}


def test_the_first_gradients_of_a_step_are_in_time_and_each_step_counts_anew() -> None:
    store = HashStore()
    learners = [Dropping(store, 2, 3) for _ in range(3)]
    for order in ((0, 1, 2), (2, 0, 1)):
        over, counts = [], []
        for number in order:
            over.append(learners[number].is_over())
            counts.append(learners[number].arrive())
        assert over == [False, False, True]
        assert counts == [True, True, False]


def test_a_store_that_is_gone_is_a_lost_connection() -> None:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    learner = Dropping(TCPStore("127.0.0.1", server.port, is_master=False), 1, 2)
    del server
    with pytest.raises(ConnectionError):
        learner.arrive()
    with pytest.raises(ConnectionError):
        learner.is_over()


class Slow:
    """Comes second in each step: before it computes its gradient (`late`), or after."""

    def __init__(self, dropping: Dropping, late: bool) -> None:
        self._dropping, self._late = dropping, late

    def is_over(self) -> bool:
        if self._late:
            wait_until_over(self._dropping)
        over = self._dropping.is_over()
        assert over or not self._late
        return self._late

    def arrive(self) -> bool:
        wait_until_over(self._dropping)
        return self._dropping.arrive()


def wait_until_over(dropping: Dropping) -> None:
    end = time.monotonic() + 60
    while not dropping.is_over():
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.mark.parametrize("late", [False, True], ids=["after", "before"])
@pytest.mark.parametrize("case", list(CASES))
def test_a_step_learns_from_those_in_time_alone_and_learners_stay_equal(
    monkeypatch: pytest.MonkeyPatch, case: str, late: bool
) -> None:
    monkeypatch.setattr(ranks, "CASES", CASES)
    store = HashStore()

    def learned(reducer: ThreadReducer) -> tuple[list[Tensor], list[Tensor], Any, list[Tensor]]:
        dropping: Any = Dropping(store, 1, 2)
        side = ranks.make(case, reducer, 0, Slow(dropping, late) if reducer.rank else dropping)
        unroll = ranks.share(ranks.batch(side.network, case, 0), reducer)
        if reducer.rank == 0:
            unroll.valid[-3:] = False
        config: Any = side.learner.config
        part = ppo.prepare(side.network, unroll, config)
        loss, measured = ppo.ppo_loss(side.network, part, config, 0.0, 1.0 / part.num_steps)
        alone = list(torch.autograd.grad(loss, list(side.network.parameters())))
        metrics, _ = side.step(unroll)
        side.learner.core.close()
        found = [parameter.grad.clone() for parameter in side.network.parameters() if parameter.grad is not None]
        metrics["own_entropy"] = measured["entropy"] / part.num_steps
        return found, alone, metrics, [tensor.detach() for tensor in side.network.parameters()]

    first, second = together(Meeting(2), learned)
    for made, also, own in zip(first[0], second[0], first[1], strict=True):
        torch.testing.assert_close(made, own, rtol=1e-4, atol=1e-6)
        assert torch.equal(made, also)
    assert all(map(torch.equal, first[3], second[3]))
    assert first[2]["entropy"] == second[2]["entropy"] == pytest.approx(first[2]["own_entropy"], rel=1e-5)
    assert first[2]["late_gradients"] == second[2]["late_gradients"] == float(late)
