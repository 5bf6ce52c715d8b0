"""Runs whose roles are all in one process: in one thread, or each in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from ddrl.coordinator.program import Runtime
from ddrl.inference.endpoint import Endpoint
from ddrl.runtimes.serial import SerialRuntime
from ddrl.runtimes.threads import ThreadsRuntime
from ddrl.system.seeding import numpy_generator
from ddrl.system.signals import stopping
from ddrl.training.config.run_config import RunConfig
from ddrl.training.records.progress import Progress
from ddrl.training.run import Run


def local_runtime(config: RunConfig) -> Callable[[], Runtime]:
    """Return what makes the runtime of a configuration whose roles are all in this process."""
    if config.topology.runtime == "serial":
        return partial(_serial, config.seed)
    return ThreadsRuntime


def _serial(seed: int) -> SerialRuntime:
    return SerialRuntime(numpy_generator(seed, "interleaving"))


def train_local(
    config: RunConfig,
    directory: Path,
    *,
    quiet: bool = False,
    accepted: Callable[[], None] = lambda: None,
    endpoint: Endpoint | None = None,
) -> str:
    """Train or resume in `directory` with runtime `serial` or `threads`; return the exit reason.

    `accepted` is called when nothing refuses the run any more. With an `endpoint`, environments are stepped by
    workers that come to it.
    """
    torch.set_num_threads(1)  # two intra-op threads collapse beside busy actors, and add up in another order
    progress = Progress(config.env_frames, quiet=quiet)
    run = Run(config, directory, make_runtime=local_runtime(config), display=progress, endpoint=endpoint)
    with stopping(run.interrupt, directory):
        run.resume()
        accepted()
        with progress:
            reason = run.train()
        if reason == "budget_reached":
            progress.done(run.counts, run.recorder.latest)
    return reason
