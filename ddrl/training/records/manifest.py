"""Where a result came from: code, packages, hardware."""

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

PACKAGES = ("ddrl", "torch", "numpy", "gymnasium", "ale-py", "mujoco", "dm-control", "pandas", "pyarrow")


def provenance() -> dict[str, Any]:
    """`git_sha`, `git_dirty`, `packages`, `hardware` of `run.json`."""
    sha, dirty = _git()
    return {"git_sha": sha, "git_dirty": dirty, "packages": dict(_packages()), "hardware": hardware()}


def hardware() -> dict[str, Any]:
    """Processor, cores this process may use, memory, graphics card."""
    import torch  # not before it is needed: the workers of `ddrl roundtrip` import this file

    return {
        "cpu": processor.facts().get("model name") or platform.processor() or "unknown",
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def now() -> str:
    """In UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def peak_memory_mib() -> float:
    """Largest resident size of this process so far."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


@cache
def _packages() -> dict[str, str | None]:
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return versions


def _git() -> tuple[str | None, bool | None]:
    """Commit of the checkout, and whether this package's files differ from it; None without git or a checkout.

    A repository in which this package stands elsewhere than at the top, or that does not track it, is somebody else's,
    in which it is installed. Variables such as GIT_DIR would name another one than that around the file.
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
