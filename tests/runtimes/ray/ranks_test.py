"""Several learners with a share of the batch each learn what one learns from the whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.distributed import TCPStore

from ddrl.learners.all_reduce import SingleLearner
from tests import processes
from tests.runs import VERSIONED
from tests.runtimes.ray import ranks


def start_ranks(work: Callable[[int, int, Path], None], directory: Path) -> None:
    """Does the work in a process for each rank, and waits for them."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    started = [processes.start(work, rank, store.port, directory) for rank in range(ranks.RANKS)]
    assert [processes.finish(process, 120) for process in started] == [0] * ranks.RANKS


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> list[list[object]]:
    """What each rank learned, case by case."""
    directory: Path = tmp_path_factory.mktemp("ranks")
    start_ranks(ranks.run, directory)
    return [torch.load(directory / f"{rank}.pt", weights_only=True) for rank in range(ranks.RANKS)]


def test_a_learner_that_vanished_is_told_apart_from_other_errors(tmp_path: Path) -> None:
    start_ranks(ranks.lose, tmp_path)
    assert (tmp_path / "0.txt").read_text() == "ConnectionError"


def test_every_algorithm_is_tried() -> None:
    assert set(ranks.SETTINGS) == set(VERSIONED)  # the others have one learner each


@pytest.mark.parametrize("case", range(len(ranks.CASES)), ids=["-".join(case[:2]) for case in ranks.CASES])
def test_two_ranks_of_half_a_batch_equal_one_of_the_whole(shared: list[list[object]], case: int) -> None:
    metrics, tensors = ranks.learned(*ranks.CASES[case], SingleLearner())
    for rank in range(ranks.RANKS):
        torch.testing.assert_close(shared[rank][case], (metrics, tensors), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", range(len(ranks.CASES)), ids=["-".join(case[:2]) for case in ranks.CASES])
def test_ranks_stay_equal_bit_for_bit(shared: list[list[object]], case: int) -> None:
    torch.testing.assert_close(shared[0][case][1], shared[1][case][1], rtol=0, atol=0)
