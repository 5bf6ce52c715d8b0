"""Sums over learners: one alone adds nothing; several add one message of each kind of number, and know each other."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch import Tensor

from ddrl.learners import all_reduce
from ddrl.learners.all_reduce import DistributedReducer, SingleLearner

CPU = torch.device("cpu")
TOKEN = "of-this-run"


class Group:
    """Stands for torch's group of two learners: the other one adds what `other` makes of a message."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, other: Callable[[Tensor], Tensor]) -> None:
        self.backend = ""
        self.keys: dict[str, Any] = {}
        self.sent: list[tuple[torch.dtype, int]] = []
        self._other = other
        monkeypatch.setattr(all_reduce.dist, "init_process_group", self.init)
        monkeypatch.setattr(all_reduce.dist, "all_reduce", self.add)

    def init(self, backend: str, **keys: Any) -> None:
        self.backend, self.keys = backend, keys

    def add(self, flat: Tensor) -> None:
        self.sent.append((flat.dtype, flat.numel()))
        flat.add_(self._other(flat))


def proof_of_rank_1(flat: Tensor, token: str = TOKEN) -> Tensor:
    """What the other learner adds to 2 proofs of 32 bytes: its own, in the second place."""
    proofs = torch.zeros(2, 32, dtype=flat.dtype)
    proofs[1] = torch.tensor(list(hmac.digest(token.encode(), b"learner 1", "sha256")))
    return proofs.flatten()


def joined() -> DistributedReducer:
    store: Any = None
    return DistributedReducer(store, 0, 2, CPU, TOKEN)


def test_a_single_learner_is_the_first_of_one_and_adds_nothing() -> None:
    alone, tensor = SingleLearner(), torch.tensor([1.0, 2.0])
    alone.sum_([tensor])
    assert (alone.rank, alone.size) == (0, 1)
    assert tensor.tolist() == [1.0, 2.0]


@pytest.mark.parametrize(("device", "backend"), [("cpu", "gloo"), ("cuda", "nccl")])
def test_learners_meet_by_the_backend_of_their_device_and_wait_two_hours_for_the_slowest(
    device: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An evaluation or a checkpoint of rank 0 takes longer than the minutes that torch waits by itself."""
    monkeypatch.setattr(DistributedReducer, "_check_token", lambda *_: None)
    group, store = Group(monkeypatch, torch.zeros_like), object()
    reducer = DistributedReducer(store, 1, 2, torch.device(device))  # type: ignore[arg-type]
    assert (reducer.rank, reducer.size, group.backend) == (1, 2, backend)
    assert group.keys == {"store": store, "rank": 1, "world_size": 2, "timeout": timedelta(hours=2)}


def test_a_learner_that_knows_the_token_is_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(monkeypatch, proof_of_rank_1)
    joined()
    assert [size for _, size in group.sent] == [2 * 32]


@pytest.mark.parametrize("place", [0, 13, 31])
def test_a_proof_is_wrong_if_one_byte_is(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def nearly(flat: Tensor) -> Tensor:
        proofs = proof_of_rank_1(flat)
        proofs[32 + place] += 1
        return proofs

    Group(monkeypatch, nearly)
    with pytest.raises(ConnectionError, match=r"learners \[1\] do not know the run's token"):
        joined()


def test_the_proof_of_one_rank_is_none_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    Group(monkeypatch, lambda flat: proof_of_rank_1(flat).view(2, 32).flip(0).flatten())
    with pytest.raises(ConnectionError, match=r"learners \[0, 1\] do not know the run's token"):
        joined()


def test_tensors_of_any_shape_are_summed_in_place_in_one_message_a_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DistributedReducer, "_check_token", lambda *_: None)
    group = Group(monkeypatch, lambda flat: torch.arange(flat.numel()).to(flat.dtype))
    parameter = torch.nn.Parameter(torch.full((2, 3), 0.5))
    counts, scalar = torch.tensor([10, 20, 30, 40]), torch.tensor(100.0)
    joined().sum_([parameter, counts, scalar])
    assert group.sent == [(torch.float32, 7), (torch.int64, 4)]
    assert parameter.tolist() == [[0.5, 1.5, 2.5], [3.5, 4.5, 5.5]]
    assert counts.tolist() == [10, 21, 32, 43]
    assert scalar.item() == 106.0


def test_a_sum_that_torch_cannot_make_says_that_a_learner_may_be_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(flat: Tensor) -> Tensor:
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr(DistributedReducer, "_check_token", lambda *_: None)
    Group(monkeypatch, gone)
    with pytest.raises(ConnectionError, match="one may be gone: Connection closed by peer"):
        joined().sum_([torch.zeros(1)])
