"""`ddrl doctor`: checks which parts are installed, and says what to type for each that is missing.

Only parts that every run or report needs are required. Each other part is needed by one command or one kind of machine,
which its line names.
"""

from __future__ import annotations

import ctypes.util
import importlib.metadata
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from packaging.requirements import Requirement

from ddrl.errors import UserError, ends_the_program
from ddrl.system import processor
from ddrl.system.files import read_file

PROJECT = Path(__file__).parents[2]
MINIMUM_PYTHON = (3, 11)
MINIMUM_DISK_GIB = 5.0
"""Enough for scale smoke."""


@dataclass(frozen=True)
class Finding:
    """One line of the report; `remedy` is what to type where the part is missing or wrong."""

    fine: bool
    required: bool
    line: str
    remedy: str = ""

    def describe(self) -> str:
        """Return state, line and remedy."""
        state = "ok" if self.fine else "MISSING" if self.required else "absent"
        return f"{state:8} {self.line}" + (f": {self.remedy}" if self.remedy and not self.fine else "")


def sections(*, every_example: bool = False) -> dict[str, Iterator[Finding]]:
    """Return section -> its checks, made one by one; `every_example` checks more than one of each environment."""
    return {
        "machine": chain(_machine(), _graphics_cards()),
        "required packages": _packages(),
        "environments": _environments(every_example),
        "optional": _optional(),
    }


def _machine() -> Iterator[Finding]:
    line = f"Python {platform.python_version()}, at least {'.'.join(map(str, MINIMUM_PYTHON))} is needed"
    yield Finding(sys.version_info >= MINIMUM_PYTHON, True, line, "make report PYTHON=python3.11")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0))
    yield Finding(True, True, f"{cores} cores, {memory:.1f} GiB memory, bfloat16 {processor.bfloat16()}")
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    line = f"{free:.0f} GiB free on this disk, of {MINIMUM_DISK_GIB:g} that scale smoke may take"
    yield Finding(free >= MINIMUM_DISK_GIB, True, line, "free some space")


def _packages() -> Iterator[Finding]:
    """Check each direct dependency, with its lower bound."""
    for requirement in required():
        version = _version(requirement.name)
        fine = version is not None and requirement.specifier.contains(version, prereleases=True)
        line = f"{requirement.name} {version}" if fine else f"{requirement} (here: {version or 'none'})"
        yield Finding(fine, True, line, _pip(str(requirement)))


def required() -> list[Requirement]:
    """Return the direct dependencies: those of the checkout's pyproject.toml, else of the installed package."""
    try:
        texts = tomllib.loads(read_file(PROJECT / "pyproject.toml").decode())["project"]["dependencies"]
    except FileNotFoundError:
        texts = [text for text in importlib.metadata.requires("ddrl") or [] if "extra ==" not in text]
    return [Requirement(text) for text in texts]


def _graphics_cards() -> Iterator[Finding]:
    """Name the graphics cards that torch can use, or say why it can use none."""
    try:
        import torch
    except (ImportError, OSError) as error:
        line = f"torch cannot be imported: {' '.join(str(error).split())}"
        yield Finding(False, True, line, _pip("torch"))
        return
    build = f"torch {torch.__version__}, " + (f"CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA")
    drivers = _nvidia_drivers()
    for index in range(torch.cuda.device_count()):
        card = torch.cuda.get_device_properties(index)
        driver = drivers[index] if index < len(drivers) else "unknown"
        bfloat16 = "bfloat16" if card.major >= 8 else "no bfloat16 in hardware"
        line = f"GPU {index}: {card.name}, {card.total_memory / 2**30:.0f} GiB, driver {driver}, {bfloat16}; {build}"
        yield Finding(True, False, line)
    if torch.cuda.device_count() == 0:
        line = f"GPU: none that torch can use ({build}); runs use the CPU"
        cuda_build = _pip(f"torch=={torch.__version__.partition('+')[0]}", "--force-reinstall")
        needed = [] if drivers else ["apt install nvidia-driver"]
        needed += [] if torch.version.cuda else [cuda_build]
        remedy = "if there is a card: " + ", then ".join(needed or ["nvidia-smi, to see what holds it"])
        yield Finding(False, False, line, remedy)


def _nvidia_drivers() -> list[str]:
    """Return the version of the driver of each card by nvidia-smi; nothing without that program."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        run = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return run.stdout.strip().splitlines()


def _environments(every_example: bool) -> Iterator[Finding]:
    """Run the conformance check on the examples of each prefix."""
    try:
        from ddrl.environments.base import registry
        from ddrl.environments.tools import check
    except (ImportError, OSError) as error:
        yield Finding(False, True, f"cannot be checked: {' '.join(str(error).split())}")
        return
    for prefix in registry.prefixes():
        try:
            examples = registry.adapter(prefix).examples
        except UserError as error:
            package = getattr(error.__cause__, "name", None) or prefix
            yield Finding(False, False, str(error), _pip(package))
            continue
        if not examples:  # the simulator is missing, and pip cannot install it
            yield Finding(False, False, registry.adapter(prefix).missing())
        for task in list(examples)[: None if every_example else 1]:
            name = f"{prefix}/{task}"
            try:
                seen = check.check_environment(name, **examples[task])
            except UserError as error:  # a library that only these tasks need
                yield Finding(False, False, f"{name}: {error}")
            except BaseException as error:  # a simulator may raise anything; go on with the others
                if ends_the_program(error):
                    raise
                yield Finding(False, True, f"{name}: {' '.join(str(error).split())}")
            else:
                line = f"{name} conforms ({len(registry.tasks(prefix))} tasks): {seen.protocol}"
                yield Finding(True, True, line)


def _optional() -> Iterator[Finding]:
    yield _package("rliable", "the tests' cross-check of the statistics", _pip(".[rliable]", "-e"))
    yield _package("pytest", "make test", _pip(".[dev]", "-e"))
    yield _found(shutil.which, ("git",), "provenance of runs", "apt install git")
    yield _found(shutil.which, ("make",), "the targets of the Makefile", "apt install make")
    slurm = ("sbatch", "squeue", "scancel")
    yield _found(shutil.which, slurm, "jobs on a SLURM cluster", "apt install slurm-client")
    site = "https://apptainer.org/docs/admin/latest/installation.html (Debian 12 has no package)"
    yield _found(shutil.which, ("apptainer",), "jobs in a container", site)
    found = [name for name in ("EGL", "OSMesa") if ctypes.util.find_library(name)]
    line = f"{' and '.join(found) or 'EGL or OSMesa not found'}, for videos of MuJoCo"
    yield Finding(bool(found), False, line, "apt install libegl1 libgl1-mesa-dri")
    for (packages, libraries), names in _extras().items():
        tasks = f"tasks {' and '.join(names)}"
        for package in packages:
            yield _package(package, tasks, _pip(package))
        if libraries:
            remedy = "apt install libegl1 libgl1 libglu1-mesa libgl1-mesa-dri"
            yield _found(ctypes.util.find_library, libraries, tasks, remedy)


def _extras() -> dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]]:
    """Return packages and libraries that only some tasks need -> these tasks, as the adapters declare them."""
    found: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    with suppress(ImportError, OSError):
        from ddrl.environments.base import registry

        for prefix in registry.prefixes():
            with suppress(UserError):  # its simulator is missing, as `_environments` says
                for tasks, (packages, libraries) in registry.adapter(prefix).extras.items():
                    found.setdefault((tuple(packages), tuple(libraries)), []).append(tasks)
    return found


def _package(name: str, purpose: str, remedy: str) -> Finding:
    version = _version(name)
    line = f"{name} {version or 'is not installed'}, for {purpose}"
    return Finding(version is not None, False, line, remedy)


def _found(find: Callable[[str], str | None], names: Sequence[str], purpose: str, remedy: str) -> Finding:
    """Return whether `find` finds all programs or libraries of these names."""
    missing = [name for name in names if find(name) is None]
    line = f"{', '.join(missing or names)}{' not found' if missing else ''}, for {purpose}"
    return Finding(not missing, False, line, remedy)


def _pip(requirement: str, *options: str) -> str:
    """Return the command that installs a package, to be typed in the folder of the checkout where there is one."""
    constraints = ["-c", "constraints.txt"] if (PROJECT / "constraints.txt").exists() else []
    return shlex.join([sys.executable, "-m", "pip", "install", *constraints, *options, requirement])


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
