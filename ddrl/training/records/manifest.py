"""The provenance of a result: code, packages, hardware."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import subprocess
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from ddrl.system import processor
from ddrl.system.plugins import offering_packages

PACKAGES = ("ddrl", "torch", "numpy", "gymnasium", "ale-py", "mujoco", "dm-control", "pandas", "pyarrow")


def provenance() -> dict[str, Any]:
    """Return the entries `git_sha`, `git_dirty`, `packages` and `hardware` of `run.json`."""
    sha, dirty = _code()
    return {"git_sha": sha, "git_dirty": dirty, "packages": dict(_packages()), "hardware": hardware()}


def hardware() -> dict[str, Any]:
    """Return the processor, the number of cores this process may use, the memory and the GPU."""
    import torch  # here, since the workers of `ddrl roundtrip` import this file and need no torch

    return {
        "cpu": processor.facts().get("model name") or platform.processor() or "unknown",
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def now() -> str:
    """Return the time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def peak_memory_mib() -> float:
    """Return the largest resident size of this process so far."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


@cache
def _packages() -> dict[str, str | None]:
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for name in (*PACKAGES, *offering_packages()):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return versions


@cache
def _code() -> tuple[str | None, bool | None]:
    """Return `_git` of when this process began its first run: a process keeps the code that it has imported."""
    return _git()


def _git() -> tuple[str | None, bool | None]:
    """Return the checkout's commit, and whether this package's files differ from it; None without git or a checkout.

    A repository that does not track this package at its top is another project's, in which it is installed. Variables
    such as GIT_DIR are removed, since they may name another repository.
    """
    here = Path(__file__).parents[2] / "__init__.py"  # of the package
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}

    def git(*arguments: str) -> str:
        command = ["git", *arguments]
        answer = subprocess.run(command, cwd=here.parent, env=variables, capture_output=True, check=True)
        return answer.stdout.decode(errors="replace").strip()

    try:
        if git("ls-files", "--full-name", "--error-unmatch", "--", here.name) != f"{here.parent.name}/{here.name}":
            return None, None
        status = git("status", "--porcelain=v2", "--branch", "--no-ahead-behind", "--", ".").splitlines()
        commit = next(line.removeprefix("# branch.oid ") for line in status if line.startswith("# branch.oid "))
        return (None, None) if commit == "(initial)" else (commit, not all(line.startswith("#") for line in status))
    except (OSError, subprocess.CalledProcessError):
        return None, None
