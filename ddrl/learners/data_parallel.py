"""Threads that share the gradient of one batch by columns: the gradients of the parts add up to that of the whole."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol, Self, TypeVar

import torch
from torch import nn
from torch.nn import Parameter

from ddrl.types import Metrics


class Batch(Protocol):
    """A batch that can be divided by columns: an `Unroll`, or what an algorithm makes of one."""

    @property
    def batch_size(self) -> int:
        """Number of columns."""

    def columns(self, start: int, stop: int) -> Self:
        """Return columns start..stop-1 as views."""


AnyBatch = TypeVar("AnyBatch", bound=Batch)
Result = TypeVar("Result")
Loss = Callable[..., tuple[torch.Tensor, Metrics]]
"""(network, columns, what was kept of them) -> (loss that adds up over columns, metrics that add up over columns)."""
Kept = list[list[Any]]
"""Of every piece of each thread, what a network made of it, with its graph."""

PIECE_COLUMNS = 8
"""Columns of an unroll whose activations a thread holds at once: 8 keep the deep network's learner under 1 GiB."""


class ColumnParallel:
    """Divides a batch among `num_threads` threads, each with a replica of the network that shares its parameters.

    torch's own intra-op threads become very slow as soon as an actor competes for the cores (so every role gets one);
    threads that compute whole pieces do not, and they use every core while the learner is the slow side.
    """

    def __init__(self, network: nn.Module, num_threads: int, piece_columns: int = PIECE_COLUMNS) -> None:
        self._piece_columns = piece_columns
        networks = [network, *(_replica(network) for _ in range(num_threads - 1))]
        self._replicas = [(one, list(one.parameters())) for one in networks]  # once, as in `GradientStep`
        self._pool = ThreadPoolExecutor(num_threads, "learner", lambda: torch.set_num_threads(1))
        self.close = self._pool.shutdown

    def forward(self, outputs: Callable[[nn.Module, AnyBatch], Any], batch: AnyBatch) -> Kept:
        """Return what `outputs` makes of each piece; the activations of all are kept for `backward`."""
        shares = self._shares(batch)
        replicas = [network for network, _ in self._replicas]
        return self._on_threads(
            [partial(_forward, outputs, network, pieces) for network, pieces in zip(replicas, shares, strict=False)]
        )

    def backward(self, loss: Loss, batch: AnyBatch, kept: Kept | None = None) -> Metrics:
        """Compute the gradient of the whole batch's loss into the network's `.grad`; return the summed metrics.

        `loss` gets what `forward` kept of its columns, if that is given. A batch without columns goes through the
        network too: its gradient is then 0 and not absent, because the other learners add theirs to it.
        """
        shares = self._shares(batch)
        known: list[list[tuple[Any, ...]]] = [[()] * len(pieces) for pieces in shares]
        if kept is not None:
            known = [[(one,) for one in row] for row in kept]
        metrics = self._on_threads(
            [
                partial(_backward, loss, *replica, pieces, row)
                for replica, pieces, row in zip(self._replicas, shares, known, strict=False)
            ]
        )
        own, *others = (parameters for _, parameters in self._replicas[: len(shares)])
        for parameters in others:
            torch._foreach_add_(_gradients(own), _gradients(parameters))
        return _sum(metrics)

    def _shares(self, batch: AnyBatch) -> list[list[AnyBatch]]:
        """Return the pieces of each thread, in the order of the columns."""
        shares = split(batch, len(self._replicas))
        return [split(share, max(1, -(-share.batch_size // self._piece_columns))) for share in shares]

    def _on_threads(self, work: Sequence[Callable[[], Result]]) -> list[Result]:
        """Do all of it at once, the first in this thread."""
        jobs = [self._pool.submit(one) for one in work[1:]]
        return [work[0](), *(job.result() for job in jobs)]


def split(batch: AnyBatch, num_parts: int) -> list[AnyBatch]:
    """Split a batch into at most `num_parts` parts of about the same size, none empty unless the batch is."""
    if num_parts == 1:
        return [batch]
    edges = [round(i * batch.batch_size / num_parts) for i in range(num_parts + 1)]
    return [batch.columns(start, stop) for start, stop in itertools.pairwise(edges) if stop > start] or [batch]


def _gradients(parameters: Sequence[Parameter]) -> list[torch.Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def _sum(parts: list[Metrics]) -> Metrics:
    return parts[0] if len(parts) == 1 else {name: sum(part[name] for part in parts) for name in parts[0]}


def _replica(network: nn.Module) -> nn.Module:
    """Return a copy whose parameters and buffers share memory with those of `network`."""
    replica = copy.deepcopy(network)
    own = [*replica.parameters(), *replica.buffers()]
    for tensor, shared in zip(own, [*network.parameters(), *network.buffers()], strict=True):
        tensor.data = shared.data
    return replica


def _forward(
    outputs: Callable[[nn.Module, AnyBatch], Result], network: nn.Module, pieces: Sequence[AnyBatch]
) -> list[Result]:
    return [outputs(network, piece) for piece in pieces]


def _backward(
    loss: Loss,
    network: nn.Module,
    parameters: Sequence[Parameter],
    pieces: Sequence[AnyBatch],
    known: Sequence[tuple[Any, ...]],
) -> Metrics:
    for parameter in parameters:
        parameter.grad = None
    metrics = []
    for piece, kept in zip(pieces, known, strict=True):
        value, part = loss(network, piece, *kept)
        value.backward()  # type: ignore[no-untyped-call]
        metrics.append(part)
    return _sum(metrics)
