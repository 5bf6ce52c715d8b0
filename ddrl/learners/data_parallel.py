"""Threads that share the gradient of one batch, column-wise: the sum over chunks is the gradient of the whole."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, Self, TypeVar

import torch
from torch import nn
from torch.nn import Parameter

from ddrl.types import Metrics


class Batch(Protocol):
    """What can be shared out by columns: an `Unroll`, or what an algorithm has made of one."""

    @property
    def batch_size(self) -> int:
        """Number of columns."""

    def columns(self, start: int, stop: int) -> Self:
        """Columns start..stop-1 as views."""


AnyBatch = TypeVar("AnyBatch", bound=Batch)
Loss = Callable[[nn.Module, AnyBatch], tuple[torch.Tensor, Metrics]]
"""(network, columns) -> (loss that adds up over columns, metrics that add up over columns)."""

PIECE_COLUMNS = 8
"""Columns of an unroll whose activations a thread holds at once: 8 keep the deep network's learner under 1 GiB."""


class ColumnParallel:
    """Shares a batch among `num_threads` threads, each with a replica of the network that shares its parameters.

    Intra-op threads of torch collapse as soon as an actor competes for the cores (one thread per role is the rule);
    whole pieces on threads of their own do not, and keep every core busy when the learner is the slow side.
    """

    def __init__(self, network: nn.Module, num_threads: int, piece_columns: int = PIECE_COLUMNS) -> None:
        self._piece_columns = piece_columns
        networks = [network, *(_replica(network) for _ in range(num_threads - 1))]
        self._replicas = [(one, list(one.parameters())) for one in networks]  # once, as in `GradientStep`
        self._pool = ThreadPoolExecutor(num_threads, "learner", lambda: torch.set_num_threads(1))

    def backward(self, loss: Loss[AnyBatch], batch: AnyBatch) -> Metrics:
        """Leaves the gradient of the whole batch's loss in the network's `.grad`; returns the summed metrics.

        A batch of no column goes through the network too: its gradient is 0, not absent, as other learners need it.
        """
        shares = split(batch, len(self._replicas))
        work = list(zip(self._replicas, shares, strict=False))
        pieces = [(*replica, split(share, self._num_pieces(share))) for replica, share in work]
        jobs = [
            self._pool.submit(_backward, loss, network, parameters, share) for network, parameters, share in pieces[1:]
        ]
        parts = [_backward(loss, *pieces[0]), *(job.result() for job in jobs)]
        gradients = [_gradients(parameters) for _, parameters, _ in pieces]
        for others in gradients[1:]:
            torch._foreach_add_(gradients[0], others)
        return _sum(parts)

    def _num_pieces(self, share: Batch) -> int:
        return max(1, -(-share.batch_size // self._piece_columns))

    def close(self) -> None:
        """Ends the threads."""
        self._pool.shutdown()


def split(batch: AnyBatch, num_parts: int) -> list[AnyBatch]:
    """At most `num_parts` parts of about the same number of columns, none empty unless the batch is."""
    edges = [round(i * batch.batch_size / num_parts) for i in range(num_parts + 1)]
    return [batch.columns(start, stop) for start, stop in itertools.pairwise(edges) if stop > start] or [batch]


def _sum(parts: list[Metrics]) -> Metrics:
    return {name: sum(part[name] for part in parts) for name in parts[0]}


def _replica(network: nn.Module) -> nn.Module:
    replica = copy.deepcopy(network)
    for own, shared in zip(_tensors(replica), _tensors(network), strict=True):
        own.data = shared.data
    return replica


def _backward(
    loss: Loss[AnyBatch], network: nn.Module, parameters: Sequence[Parameter], pieces: Sequence[AnyBatch]
) -> Metrics:
    for parameter in parameters:
        parameter.grad = None
    metrics = []
    for piece in pieces:
        value, part = loss(network, piece)
        value.backward()  # type: ignore[no-untyped-call]
        metrics.append(part)
    return _sum(metrics)


def _gradients(parameters: Sequence[Parameter]) -> list[torch.Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def _tensors(network: nn.Module) -> list[torch.Tensor]:
    return [*network.parameters(), *network.buffers()]
