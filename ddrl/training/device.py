"""What surrounds a run: where it shows how far it is, its device, its endpoint."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from ddrl.errors import UserError
from ddrl.inference.endpoint import Endpoint
from ddrl.training.config.run_config import RunConfig
from ddrl.training.records.recorder import Counts
from ddrl.types import Metrics


class Display(Protocol):
    """Where a run shows how far it is: a `Progress`, or what passes it on to another process."""

    def __enter__(self) -> Any: ...
    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None: ...
    def show(self, counts: Counts, latest: Metrics) -> None: ...
    def done(self, counts: Counts, latest: Metrics) -> None: ...
    def note(self, line: str) -> None: ...


def resolve_device(name: str) -> torch.device:
    """`auto`: the GPU where there is one. Raises `UserError` for cuda without a GPU."""
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("key 'device': cuda was asked for, but torch finds no GPU; allowed here: auto, cpu")
    return torch.device("cuda" if name == "cuda" or (name == "auto" and torch.cuda.is_available()) else "cpu")


def check_endpoint(config: RunConfig, endpoint: Endpoint) -> None:
    """Raises `UserError` where no worker could come through it."""
    topology = config.topology
    if config.population:
        raise UserError("--listen: the members of a population act by themselves (key 'population')")
    if topology.central.worker_processes:
        raise UserError("--listen: with topology.central.worker_processes the run starts its workers itself")
    if (topology.runtime, topology.inference) != ("threads", "central"):
        raise UserError(
            "--listen: workers come to a run with topology.runtime: threads and topology.inference: central "
            f"(got {topology.runtime} and {topology.inference})"
        )
    endpoint.check()
