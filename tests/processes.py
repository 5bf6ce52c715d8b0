"""Processes that begin with the libraries that they import: many that live for seconds would do little else."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from typing import Any

LIBRARIES = ("torch", "pandas", "ray", "ale_py", "snakemake.cli")
"""None of `ddrl`: a process may work in a copy of the project."""


def start(work: Callable[..., object], *arguments: Any) -> ForkServerProcess:
    """Does the work in a process of its own, forked from one that has imported and does nothing else."""
    os.environ["OMP_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(LIBRARIES))
    process = context.Process(target=work, args=arguments)
    process.start()
    return process


def finish(process: ForkServerProcess, seconds: float | None = None) -> int | None:
    """Its exit code, or the negative number of the signal that ended it; None: it goes on after so many seconds."""
    process.join(seconds)
    return process.exitcode
