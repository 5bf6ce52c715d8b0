"""Runs with all roles in one process: runtimes `serial` and `threads`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from ddrl.coordinator.program import Runtime
from ddrl.inference.endpoint import Endpoint
from ddrl.runtimes.serial import SerialRuntime
from ddrl.runtimes.threads import ThreadsRuntime
from ddrl.system.seeding import numpy_generator
from ddrl.system.signals import newest_checkpoint, stopped, stopping
from ddrl.training.config.run_config import RunConfig
from ddrl.training.records.progress import Progress
from ddrl.training.run import Run


def local_runtime(config: RunConfig) -> Callable[[], Runtime]:
    """Return a function that makes the configuration's runtime, `serial` or `threads`."""
    if config.topology.runtime == "serial":
        return lambda: SerialRuntime(numpy_generator(config.seed, "interleaving"))
    return ThreadsRuntime


def train_local(
    config: RunConfig,
    directory: Path,
    *,
    quiet: bool = False,
    accepted: Callable[[], None] = lambda: None,
    endpoint: Endpoint | None = None,
) -> str:
    """Train or resume in `directory` with runtime `serial` or `threads`; return the exit reason.

    `accepted` is called when nothing refuses the run any more. Environment workers connect to `endpoint`, if any.
    """
    torch.set_num_threads(1)  # two intra-op threads are slow beside busy actors, and add up in another order
    progress = Progress(config.env_frames, quiet=quiet)
    run = Run(config, directory, make_runtime=local_runtime(config), display=progress, endpoint=endpoint)
    with stopping(run.interrupt, directory):
        run.resume()
        accepted()
        with progress:
            reason = run.train()
        if reason == "budget_reached":
            progress.done(run.counts, run.recorder.latest)
        else:
            progress.note(stopped(run.counts.env_frames, newest_checkpoint(directory)))
    return reason
