"""The device of a run, and the check of the address that environment workers connect to."""

from __future__ import annotations

import torch

from ddrl.errors import UserError
from ddrl.inference.endpoint import Endpoint
from ddrl.training.config.run_config import RunConfig


def resolve_device(name: str) -> torch.device:
    """Return the device; `auto` is the GPU if there is one. Raise UserError for cuda without a GPU."""
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("key 'device': cuda was asked for, but torch finds no GPU; allowed here: auto, cpu")
    return torch.device("cuda" if name == "cuda" or (name == "auto" and torch.cuda.is_available()) else "cpu")


def check_endpoint(config: RunConfig, endpoint: Endpoint) -> None:
    """Raise UserError if workers could not connect to a run of `config` through `endpoint`."""
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
