"""Jobs of Snakemake that are forked from one process, which has imported the libraries that they need.

Most of them would do little else: a figure takes a second, what it imports takes two. `interpreter` makes the Python
that they find first (`workflows/common.smk`); from there on a job does what any other does.
"""

from __future__ import annotations

import os
import runpy
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.runtimes.ray import prefork

IMPORTED = (
    "jinja2",
    "jsonschema",
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_svg",
    "pandas",
    "pyarrow.parquet",
    "scipy.stats",
    "yaml",
)
"""None of `ddrl`: jobs work in a copy of the project."""


@contextmanager
def interpreter(folder: Path) -> Iterator[Path]:
    """A Python that has `python -m ddrl...` forked; what it needs is in `folder`."""
    with prefork.interpreter(folder, "tests.workflow.jobs", r"-m ddrl\b") as python:
        yield python


def outcome(job: int, asked: prefork.Asked) -> int:
    """Exit code of a process, or the negative number of the signal that ended it; it ends with its launcher."""
    if asked.connection in select.select([asked.connection, os.pidfd_open(job)], [], [])[0]:
        os.kill(job, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(job, 0)[1])


def main() -> None:
    """Each child has a child of its own, the job, and tells the launcher how that ended."""
    if (asked := prefork.serve(sys.argv[1], IMPORTED)) is None:
        return
    if job := os.fork():
        code = outcome(job, asked)
        with suppress(BrokenPipeError):
            asked.connection.sendall(b"%d\n" % code)
        return
    asked.connection.close()
    assert not any(name.partition(".")[0] == "ddrl" for name in sys.modules)
    sys.path[0] = asked.folder
    _, module, *sys.argv[1:] = asked.arguments
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
