"""Threads that share the gradient of one batch, column-wise: the sum over chunks is the gradient of the whole."""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

from ddrl.types import Metrics, Unroll

Loss = Callable[[nn.Module, Unroll], tuple[torch.Tensor, Metrics]]
"""(network, columns) -> (loss that adds up over columns, metrics that add up over columns)."""


class ColumnParallel:
    """Splits a batch over `num_threads` threads, each with a replica that shares the network's parameters.

    Intra-op threads of torch collapse as soon as an actor competes for the cores (one thread per role is the rule);
    whole chunks on threads of their own do not, and keep every core busy when the learner is the slow side.
    """

    def __init__(self, network: nn.Module, num_threads: int) -> None:
        self._network = network
        self._replicas = [network, *(_replica(network) for _ in range(num_threads - 1))]
        self._pool = ThreadPoolExecutor(num_threads, "learner", lambda: torch.set_num_threads(1))

    def backward(self, loss: Loss, batch: Unroll) -> Metrics:
        """Leaves the gradient of the whole batch's loss in the network's `.grad`; returns the summed metrics."""
        if len(self._replicas) == 1:
            return _backward(loss, self._network, batch)
        edges = [round(i * batch.batch_size / len(self._replicas)) for i in range(len(self._replicas) + 1)]
        chunks = [batch.columns(start, stop) for start, stop in zip(edges, edges[1:], strict=False) if stop > start]
        jobs = [
            self._pool.submit(_backward, loss, replica, chunk)
            for replica, chunk in zip(self._replicas, chunks, strict=False)
        ]
        parts = [job.result() for job in jobs]
        gradients = [_gradients(replica) for replica in self._replicas[: len(chunks)]]
        for others in gradients[1:]:
            torch._foreach_add_(gradients[0], others)
        return {name: sum(part[name] for part in parts) for name in parts[0]}

    def close(self) -> None:
        """Ends the threads."""
        self._pool.shutdown()


def _replica(network: nn.Module) -> nn.Module:
    replica = copy.deepcopy(network)
    for own, shared in zip(replica.parameters(), network.parameters(), strict=True):
        own.data = shared.data
    return replica


def _backward(loss: Loss, network: nn.Module, batch: Unroll) -> Metrics:
    network.zero_grad(set_to_none=True)
    value, metrics = loss(network, batch)
    value.backward()  # type: ignore[no-untyped-call]
    return metrics


def _gradients(network: nn.Module) -> list[torch.Tensor]:
    return [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
