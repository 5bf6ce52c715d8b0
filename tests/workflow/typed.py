"""Snakemake as it is typed in a folder, in a process that has imported its libraries."""

import os
import runpy
import sys
from pathlib import Path


def snakemake(python: Path, folder: Path, arguments: list[str], variables: dict[str, str], output: Path) -> None:
    """Becomes `python -m snakemake`, in a process group of its own, which writes to `output`."""
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    with output.open("wb") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    sys.path.insert(0, str(folder))
    sys.executable = str(python)
    sys.argv = ["snakemake", *arguments]
    runpy.run_module("snakemake", run_name="__main__", alter_sys=True)
