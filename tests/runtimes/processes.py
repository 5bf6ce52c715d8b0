"""Processes that begin with what a run imports: many that live for seconds would do little but import torch."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from typing import Any


def start(work: Callable[..., object], *arguments: Any) -> ForkServerProcess:
    """Does the work in a process of its own, forked from one that has imported and does nothing else."""
    os.environ["OMP_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ddrl.run_ray", "ddrl.environments.atari", "pandas"])
    process = context.Process(target=work, args=arguments)
    process.start()
    return process


def finish(process: ForkServerProcess, seconds: float | None = None) -> int | None:
    """Its exit code, or the negative number of the signal that ended it; None: it goes on after so many seconds."""
    process.join(seconds)
    return process.exitcode
