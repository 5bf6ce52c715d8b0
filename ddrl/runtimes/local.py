"""The runtimes that carry all roles out in one process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ddrl.coordinator.program import Runtime
from ddrl.runtimes.serial import SerialRuntime
from ddrl.runtimes.threads import ThreadsRuntime
from ddrl.system.seeding import numpy_generator
from ddrl.training.config.run_config import RunConfig


def local_runtime(config: RunConfig) -> Callable[[], Runtime]:
    """Return what makes the runtime of a configuration whose roles are all in this process."""
    if config.topology.runtime == "serial":
        return partial(_serial, config.seed)
    return ThreadsRuntime


def _serial(seed: int) -> SerialRuntime:
    return SerialRuntime(numpy_generator(seed, "interleaving"))
