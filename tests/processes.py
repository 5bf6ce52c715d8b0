"""Processes that begin with the libraries that they import: many that live for seconds would do little else."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

PYTHON = "DDRL_TESTS_PYTHON"
"""Variable: the interpreter that `ddrl` believes to run in, with which Ray starts workers."""
LIBRARIES = ("torch", "pandas", "ale_py", "grpc", "rich.progress", "snakemake.cli", "tests.frozen")
"""None of `ddrl`: a process may work in a copy of the project. Nor Ray: it reads the variables when it is imported."""


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


class Ddrl:
    """`ddrl` with arguments, in a process group of its own; what it writes to standard error is kept."""

    def __init__(self, *arguments: object, variables: dict[str, str]) -> None:
        """`variables`: all of its environment."""
        self._written = tempfile.NamedTemporaryFile()  # noqa: SIM115 (for as long as this is there)
        self._process = start(_typed, [str(one) for one in arguments], variables, Path(self._written.name))
        assert self._process.pid is not None
        self.pid = self._process.pid
        self.kill = self._process.kill

    @property
    def returncode(self) -> int | None:
        """As that of `finish`; None while it goes on."""
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        """To this process alone."""
        os.kill(self.pid, number)

    def ended(self, seconds: float) -> str:
        """What it has written until its end, for which so many seconds are allowed."""
        assert finish(self._process, seconds) is not None, f"goes on after {seconds} s: {self.written()}"
        return self.written()

    def written(self) -> str:
        """To standard error, so far."""
        return Path(self._written.name).read_text()


def _typed(arguments: list[str], variables: dict[str, str], written: Path) -> None:
    os.setsid()
    os.environ.clear()
    os.environ.update(variables)
    with written.open("wb") as file, open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.executable = os.environ.pop(PYTHON, sys.executable)
    from ddrl import cli  # with the variables set

    sys.exit(cli.main(arguments))
