"""`ddrl doctor`: what of all parts is here, and what to type for each that is not.

Only a part that every run or report needs is required; without the others one command or one kind of machine is
missing, and the line says which.
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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from packaging.requirements import Requirement

from ddrl.errors import UserError, ends_the_program
from ddrl.system import processor
from ddrl.system.files import read_file

PROJECT = Path(__file__).parents[2]
MINIMUM_PYTHON = (3, 11)
MINIMUM_DISK_GIB = 5.0
"""Enough for scale smoke."""
Section = Literal["machine", "required packages", "environments", "optional"]
SECTIONS: tuple[Section, ...] = get_args(Section)


@dataclass(frozen=True)
class Finding:
    """One line of the report: `remedy` is what to type where the part is not there, or not as it should be."""

    section: Section
    fine: bool
    required: bool
    line: str
    remedy: str = ""

    def describe(self) -> str:
        """State, line and remedy."""
        state = "ok" if self.fine else "MISSING" if self.required else "absent"
        return f"{state:8} {self.line}" + (f": {self.remedy}" if self.remedy and not self.fine else "")


def findings(*, every_example: bool = False) -> Iterator[Finding]:
    """Everything, section by section. `every_example`: all examples of each environment prefix, not only the first."""
    yield from _machine()
    yield from _graphics_cards()
    yield from _packages()
    yield from _environments(every_example)
    yield from _optional()


def _machine() -> Iterator[Finding]:
    fine = sys.version_info >= MINIMUM_PYTHON
    line = f"Python {platform.python_version()}, at least {'.'.join(map(str, MINIMUM_PYTHON))} is needed"
    yield Finding("machine", fine, True, line, "make report PYTHON=python3.11")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0))
    yield Finding("machine", True, True, f"{cores} cores, {memory:.1f} GiB memory, bfloat16 {processor.bfloat16()}")
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    fine = free >= MINIMUM_DISK_GIB
    line = f"{free:.0f} GiB free on this disk, of {MINIMUM_DISK_GIB:g} that scale smoke may take"
    yield Finding("machine", fine, True, line, "free some space")


def _packages() -> Iterator[Finding]:
    """Each direct dependency, with its lower bound."""
    for requirement in required():
        version = _version(requirement.name)
        fine = version is not None and requirement.specifier.contains(version, prereleases=True)
        line = f"{requirement.name} {version}" if fine else f"{requirement} (here: {version or 'none'})"
        yield Finding("required packages", fine, True, line, _pip(str(requirement)))


def required() -> list[Requirement]:
    """The direct dependencies: of the checkout's pyproject.toml, else of the installed package."""
    try:
        texts = tomllib.loads(read_file(PROJECT / "pyproject.toml").decode())["project"]["dependencies"]
    except FileNotFoundError:
        texts = [text for text in importlib.metadata.requires("ddrl") or [] if "extra ==" not in text]
    return [Requirement(text) for text in texts]


def _graphics_cards() -> Iterator[Finding]:
    """The cards that torch can use; or why it can use none."""
    try:
        import torch
    except (ImportError, OSError) as error:
        line = f"torch cannot be imported: {' '.join(str(error).split())}"
        yield Finding("machine", False, True, line, _pip("torch"))
        return
    build = f"torch {torch.__version__}, " + (f"CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA")
    drivers = _nvidia_drivers()
    for index in range(torch.cuda.device_count()):
        card = torch.cuda.get_device_properties(index)
        driver = drivers[index] if index < len(drivers) else "unknown"
        bfloat16 = "bfloat16" if card.major >= 8 else "no bfloat16 in hardware"
        line = f"GPU {index}: {card.name}, {card.total_memory / 2**30:.0f} GiB, driver {driver}, {bfloat16}; {build}"
        yield Finding("machine", True, False, line)
    if torch.cuda.device_count() == 0:
        line = f"GPU: none that torch can use ({build}); runs use the CPU"
        cuda_build = _pip(f"torch=={torch.__version__.partition('+')[0]}", "--force-reinstall")
        needed = [] if drivers else ["apt install nvidia-driver"]
        needed += [] if torch.version.cuda else [cuda_build]
        remedy = "if there is a card: " + ", then ".join(needed or ["nvidia-smi, to see what holds it"])
        yield Finding("machine", False, False, line, remedy)


def _nvidia_drivers() -> list[str]:
    """Version of the driver of each card, by nvidia-smi; empty without it."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        run = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return run.stdout.strip().splitlines()


def _environments(every_example: bool) -> Iterator[Finding]:
    """The conformance check on the examples of each prefix."""
    try:
        from ddrl.environments.base import registry
        from ddrl.environments.tools import check
    except (ImportError, OSError) as error:
        yield Finding("environments", False, True, f"cannot be checked: {' '.join(str(error).split())}")
        return
    for prefix in registry.prefixes():
        try:
            examples = registry.adapter(prefix).EXAMPLES
        except UserError as error:
            package = getattr(error.__cause__, "name", None) or prefix
            yield Finding("environments", False, False, str(error), _pip(package))
            continue
        if not examples:  # an adapter that is there without its simulator, which pip cannot install
            yield Finding("environments", False, False, registry.adapter(prefix).missing())
        for task in list(examples)[: None if every_example else 1]:
            name = f"{prefix}/{task}"
            try:
                seen = check.check_environment(name, **examples[task])
            except UserError as error:  # a library that only these tasks need
                yield Finding("environments", False, False, f"{name}: {error}")
            except BaseException as error:  # whatever a simulator raises, the other lines are still wanted
                if ends_the_program(error):
                    raise
                yield Finding("environments", False, True, f"{name}: {' '.join(str(error).split())}")
            else:
                line = f"{name} conforms ({len(registry.tasks(prefix))} tasks): {seen.protocol}"
                yield Finding("environments", True, True, line)


def _optional() -> Iterator[Finding]:
    yield _package("optional", "rliable", "the tests' cross-check of the statistics", extra="rliable")
    yield _package("optional", "pytest", "make test", extra="dev")
    yield _program("optional", ("git",), "provenance of runs", "apt install git")
    yield _program("optional", ("make",), "the targets of the Makefile", "apt install make")
    yield _program("optional", ("sbatch", "squeue", "scancel"), "jobs on a SLURM cluster", "apt install slurm-client")
    site = "https://apptainer.org/docs/admin/latest/installation.html (Debian 12 has no package)"
    yield _program("optional", ("apptainer",), "jobs in a container", site)
    yield _graphics_library()
    yield from _first_person()


def _package(section: Section, name: str, purpose: str, *, extra: str = "") -> Finding:
    version = _version(name)
    remedy = _pip(f".[{extra}]", "-e") if extra else _pip(name)
    return Finding(
        section, version is not None, False, f"{name} {version or 'is not installed'}, for {purpose}", remedy
    )


def _graphics_library() -> Finding:
    found = [name for name in ("EGL", "OSMesa") if ctypes.util.find_library(name)]
    line = f"{' and '.join(found) or 'EGL or OSMesa not found'}, for videos of MuJoCo"
    return Finding("optional", bool(found), False, line, "apt install libegl1 libgl1-mesa-dri")


def _first_person() -> Iterator[Finding]:
    """What the two families of `firstperson` need: packages of their own, and MiniWorld three libraries."""
    for family in ("vizdoom", "miniworld"):
        yield _package("optional", family, f"tasks firstperson/{family}_...")
    missing = [name for name in ("EGL", "GL", "GLU") if ctypes.util.find_library(name) is None]
    line = f"{', '.join(missing) + ' not found' if missing else 'EGL, GL, GLU'}, for tasks firstperson/miniworld_..."
    yield Finding("optional", not missing, False, line, "apt install libegl1 libgl1 libglu1-mesa libgl1-mesa-dri")


def _program(section: Section, names: Sequence[str], purpose: str, remedy: str) -> Finding:
    missing = [name for name in names if shutil.which(name) is None]
    line = f"{', '.join(missing or names)}{' not found' if missing else ''}, for {purpose}"
    return Finding(section, not missing, False, line, remedy)


def _pip(requirement: str, *options: str) -> str:
    """What to type, in the folder of the checkout where there is one."""
    constraints = ["-c", "constraints.txt"] if (PROJECT / "constraints.txt").exists() else []
    return shlex.join([sys.executable, "-m", "pip", "install", *constraints, *options, requirement])


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
