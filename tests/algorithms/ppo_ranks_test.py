"""PPO's minibatches are those of the whole batch, however many learners share it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from ddrl.learners.all_reduce import SingleLearner
from tests.algorithms import ppo_ranks as ranks
from tests.runtimes.ray.ranks_test import start_ranks

every_case = pytest.mark.parametrize("case", sorted(ranks.CASES))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> list[dict[tuple[str, bool], Any]]:
    """What each rank learned, by (case, interrupted)."""
    directory = tmp_path_factory.mktemp("ranks")
    start_ranks(ranks.run, directory)
    return [torch.load(directory / f"{rank}.pt", weights_only=True) for rank in range(ranks.RANKS)]


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """What one learner learns from the whole batches."""
    return {case: ranks.learned(case, SingleLearner()) for case in ranks.CASES}


@every_case
def test_two_ranks_of_half_a_batch_learn_what_one_learns_from_the_whole(
    shared: list[dict[tuple[str, bool], Any]], alone: dict[str, Any], case: str
) -> None:
    for rank in range(ranks.RANKS):
        for part in ("metrics", "tensors"):
            torch.testing.assert_close(shared[rank][case, False][part], alone[case][part], rtol=1e-4, atol=1e-5)


@every_case
def test_a_sample_is_in_the_same_minibatch_whoever_holds_it(
    shared: list[dict[tuple[str, bool], Any]], alone: dict[str, Any], case: str
) -> None:
    parts = [shared[rank][case, False]["minibatches"] for rank in range(ranks.RANKS)]
    planned = ranks.UPDATES * 2 * ranks.CASES[case][1]["num_minibatches"]
    assert len(parts[0]) == planned if case != "stopped" else planned < len(parts[0]) < 2 * planned
    for *own, whole in zip(*parts, alone[case]["minibatches"], strict=True):
        assert sorted(torch.cat(own).tolist()) == sorted(whole.tolist())


def test_all_ranks_stop_at_the_same_step(shared: list[dict[tuple[str, bool], Any]]) -> None:
    made = [[update["policy_steps"] for update in rank["stopped", False]["metrics"]] for rank in shared]
    assert made[0] == made[1]
    assert min(made[0]) < 4, "some updates stop before their two epochs are over"


def test_a_rank_without_a_sample_in_a_minibatch_takes_part_all_the_same(
    shared: list[dict[tuple[str, bool], Any]],
) -> None:
    for rank, case in itertools.product(range(ranks.RANKS), ("scarce", "scarce_unrolls")):
        sizes = [len(part) for part in shared[rank][case, False]["minibatches"]]
        assert 0 in sizes
        assert max(sizes) > 0


@every_case
@pytest.mark.parametrize("interrupted", [False, True])
def test_ranks_stay_equal_bit_for_bit(shared: list[dict[tuple[str, bool], Any]], case: str, interrupted: bool) -> None:
    one, other = (rank[case, interrupted] for rank in shared)
    assert one["metrics"] == other["metrics"]
    torch.testing.assert_close(one["tensors"], other["tensors"], rtol=0, atol=0)


@every_case
def test_resumed_ranks_continue_bit_for_bit(shared: list[dict[tuple[str, bool], Any]], case: str) -> None:
    for rank in shared:
        assert rank[case, True]["metrics"] == rank[case, False]["metrics"]
        for part in ("minibatches", "tensors"):
            torch.testing.assert_close(rank[case, True][part], rank[case, False][part], rtol=0, atol=0)
