"""Programs of Debian's packages that some tests need."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence


class Unavailable(Exception):
    """A program is not here and cannot be installed; the text says why."""


def install(programs: Sequence[str], packages: Sequence[str]) -> None:
    """Installs Debian's packages where a program is missing. Raises `Unavailable` where that cannot be done."""
    missing = [name for name in programs if shutil.which(name) is None]
    if not missing:
        return
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise Unavailable(f"{', '.join(missing)} not found, and no apt-get that this user may install them with")
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    said = ""
    for command in (["update"], ["install", "--yes", "--no-install-recommends", *packages]):
        done = subprocess.run(
            ["apt-get", "--quiet", *command], env=environment, capture_output=True, text=True, timeout=600
        )
        said = done.stderr.strip() or done.stdout.strip()
    if any(shutil.which(name) is None for name in missing):
        raise Unavailable(f"apt-get could not install {', '.join(packages)}: {said[-500:]}")
