"""How learners that share a batch add up their parts: gradients, and the sums behind means."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]  # not in its __all__

WAIT = timedelta(hours=2)
"""How long a learner waits for the slowest one; one that died is noticed at once."""


class SingleLearner:
    """One learner alone: nothing to add."""

    rank = 0
    size = 1

    def sum_(self, tensors: list[Tensor]) -> None:
        """Leaves the tensors as they are."""


class DistributedReducer:
    """One of several learners, each in a process of its own, that meet at `store` and know the same `token`.

    Sums are made on `device`: with NCCL on a GPU (which must be this learner's own), with gloo on the CPU, wherever the
    tensors are. Every learner gets the same bits, so networks that begin equal stay equal.

    Raises ConnectionError where another learner is gone, or one that does not know the token has come in its place.
    """

    def __init__(self, store: Store, rank: int, size: int, device: torch.device, token: str = "") -> None:
        self.rank = rank
        self.size = size
        self._device = device
        backend = "nccl" if device.type == "cuda" else "gloo"
        with _noticing_who_is_gone():
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=WAIT)
        self._prove(token)

    def _prove(self, token: str) -> None:
        """Whoever reaches the store can take a rank, and torch asks nothing; what another rank proves helps nobody."""
        expected = torch.tensor([list(_proof(token, rank)) for rank in range(self.size)])
        proven = torch.zeros_like(expected)
        proven[self.rank] = expected[self.rank]
        self.sum_([proven])
        if strangers := (proven != expected).any(dim=1).nonzero().flatten().tolist():
            raise ConnectionError(f"learners {strangers} do not know the run's token: others have come in their place")

    def sum_(self, tensors: list[Tensor]) -> None:
        """Replaces each tensor, in place, by its sum over all learners; one message for each dtype."""
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            same = [tensor for tensor in tensors if tensor.dtype == dtype]
            flat = torch.cat([tensor.detach().reshape(-1).to(self._device) for tensor in same])
            with _noticing_who_is_gone():
                dist.all_reduce(flat)
            for tensor, total in zip(same, torch.split(flat, [tensor.numel() for tensor in same]), strict=True):
                tensor.detach().copy_(total.view_as(tensor))

    def close(self) -> None:
        """Leaves the group."""
        dist.destroy_process_group()


def _proof(token: str, rank: int) -> bytes:
    return hmac.new(token.encode(), f"learner {rank}".encode(), hashlib.sha256).digest()


@contextmanager
def _noticing_who_is_gone() -> Iterator[None]:
    """torch says it with errors of several kinds, all of them RuntimeErrors, that say more than this as well."""
    try:
        yield
    except RuntimeError as error:
        raise ConnectionError(f"no sum with the other learners, of which one may be gone: {error}") from error
