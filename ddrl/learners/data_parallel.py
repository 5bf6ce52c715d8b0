"""Threads that share the gradient of one batch by columns: the gradients of the parts add up to that of the whole."""

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
    """A batch that can be divided by columns: an `Unroll`, or what an algorithm makes of one."""

    @property
    def batch_size(self) -> int:
        """Number of columns."""

    def columns(self, start: int, stop: int) -> Self:
        """Return columns start..stop-1 as views."""


AnyBatch = TypeVar("AnyBatch", bound=Batch)
Loss = Callable[[nn.Module, AnyBatch], tuple[torch.Tensor, Metrics]]
"""(network, columns) -> (loss that adds up over columns, metrics that add up over columns)."""

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

    def backward(self, loss: Loss[AnyBatch], batch: AnyBatch) -> Metrics:
        """Compute the gradient of the whole batch's loss into the network's `.grad`; return the summed metrics.

        A batch without columns goes through the network too: its gradient is then 0 and not absent, because the other
        learners add theirs to it.
        """
        work = list(zip(self._replicas, split(batch, len(self._replicas)), strict=False))
        shares = [
            (*replica, split(share, max(1, -(-share.batch_size // self._piece_columns)))) for replica, share in work
        ]
        jobs = [
            self._pool.submit(_backward, loss, network, parameters, pieces)
            for network, parameters, pieces in shares[1:]
        ]
        metrics = [_backward(loss, *shares[0]), *(job.result() for job in jobs)]
        own, *others = (parameters for _, parameters, _ in shares)
        for parameters in others:
            torch._foreach_add_(_gradients(own), _gradients(parameters))
        return _sum(metrics)


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
