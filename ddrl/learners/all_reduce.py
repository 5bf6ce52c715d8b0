"""Sums over the learners that share a batch: of gradients, and of the numbers behind means."""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]  # not in its __all__

WAIT = timedelta(hours=2)
"""How long a learner waits for the slowest one; a learner that died is noticed at once."""


class SingleLearner:
    """The reducer of a single learner, which has nothing to add."""

    rank = 0
    size = 1

    def sum_(self, tensors: list[Tensor]) -> None:
        """Leave the tensors as they are."""


class DistributedReducer:
    """The reducer of several learners in separate processes, which meet at `store` and know the same `token`.

    Sums are computed on `device`, wherever the tensors are: by NCCL on a GPU (which no other learner may use), by gloo
    on the CPU. Every learner gets the same bits, so networks that start equal stay equal. Raises ConnectionError if
    another learner is gone, or if a process that does not know the token took its place.
    """

    def __init__(self, store: Store, rank: int, size: int, device: torch.device, token: str = "") -> None:
        self.rank = rank
        self.size = size
        self._device = device
        backend = "nccl" if device.type == "cuda" else "gloo"
        with connection_errors():
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=WAIT)
        self._check_token(token)

    def _check_token(self, token: str) -> None:
        """Raise ConnectionError if a learner does not know the token: torch lets any process take a rank.

        Each rank has a proof of its own, so a proof that was overheard does not help another rank.
        """
        digests = [hmac.digest(token.encode(), f"learner {rank}".encode(), "sha256") for rank in range(self.size)]
        expected = torch.tensor([list(digest) for digest in digests])
        proven = torch.zeros_like(expected)
        proven[self.rank] = expected[self.rank]
        self.sum_([proven])
        if strangers := (proven != expected).any(dim=1).nonzero().flatten().tolist():
            raise ConnectionError(f"learners {strangers} do not know the run's token: others have come in their place")

    def sum_(self, tensors: list[Tensor]) -> None:
        """Replace each tensor, in place, by its sum over all learners; one message for each dtype."""
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            same = [tensor for tensor in tensors if tensor.dtype == dtype]
            flat = torch.cat([tensor.detach().reshape(-1).to(self._device) for tensor in same])
            with connection_errors():
                dist.all_reduce(flat)
            for tensor, total in zip(same, torch.split(flat, [tensor.numel() for tensor in same]), strict=True):
                tensor.detach().copy_(total.view_as(tensor))

    def close(self) -> None:
        """Leave the group of learners."""
        dist.destroy_process_group()


@contextmanager
def connection_errors() -> Iterator[None]:
    """Raise ConnectionError instead of the kinds of RuntimeError by which torch says that a learner is gone."""
    try:
        yield
    except RuntimeError as error:
        raise ConnectionError(f"no sum with the other learners, of which one may be gone: {error}") from error
