"""An error, or SIGKILL, at the n-th call of a kind that a run makes to its files.

The calls of an undisturbed run are counted first; then each of them is disturbed in turn, in a random order.
"""

from __future__ import annotations

import builtins
import errno
import io
import json
import os
import re
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ddrl.cli.inspection import problems
from tests.chaos.child import run
from tests.chaos.systems import System, difference, leftovers
from tests.chaos.tally import Row, Tally

CALLS = ("fsync", "replace", "unlink", "mkdir", "truncate")
"""Functions of `os`; beside them `open` for writing and `write`."""
MODES = ("EIO", "ENOSPC", "kill before", "kill after")
FAULTS_OF_A_SYSTEM = 30
"""With fewer faults to make, fewer systems are disturbed: each has its calls counted first."""


@dataclass(frozen=True)
class Fault:
    """What happens at the n-th call of a kind."""

    call: str
    number: int
    mode: str


def inject(systems: Sequence[System], faults: int, folder: Path, generator: np.random.Generator, tally: Tally) -> None:
    """Divide `faults` among systems in one process."""
    able = [system for system in systems if system.runtime != "ray" and "workers" not in system.name]
    able = able[: max(1, faults // FAULTS_OF_A_SYSTEM)]
    for place, system in enumerate(able):
        share = faults // len(able) + (place < faults % len(able))
        if share:
            with tally.row("faults", system.name) as row:
                inject_one(system, share, folder / re.sub(r"\W+", "_", system.name), generator, row, tally)


def inject_one(
    system: System, faults: int, folder: Path, generator: np.random.Generator, row: Row, tally: Tally
) -> None:
    """Disturb so many calls of a system's runs; each run is continued to its end and compared."""
    config, straight, counts = system.write(folder / "config.json"), folder / "straight", folder / "counts.json"
    command = ["train", config, "--quiet", "--directory"]
    ended = run([*command, straight], folder / "straight.log", partial(disturb, straight, None, counts))
    if ended.code != 0:
        row.fail(f"undisturbed: exit {ended.code}: {ended.said.strip()[-300:]}")
        return
    numbers: dict[str, int] = json.loads(counts.read_text())
    row.measured.update({f"{call} calls": float(number) for call, number in numbers.items()})
    planned = _planned(numbers, faults, generator)
    for index, fault in enumerate(planned):
        tally.progress(f"{system.name}: fault {index + 1} of {len(planned)}")
        victim, log = folder / f"run{index}", folder / f"run{index}.log"
        ended = run([*command, victim], log, partial(disturb, victim, fault, None))
        wrong = _wrong(fault, ended.code, ended.complaint)
        again = run([*command, victim], folder / f"run{index}.again.log")
        if again.complaint or again.code != 0:
            wrong.append(f"the same command again: {again.complaint or again.said.strip()[-200:]}")
        else:
            wrong += [*problems(victim), *(f"left over: {path}" for path in leftovers(victim))]
            wrong += [difference(straight, victim)] if system.repeats else []
        reached = "kill" not in fault.mode or ended.code != 0  # in threads the number of calls is not always the same
        row.count(f"{fault.call} {fault.mode}" if reached else "not reached")
        for line in filter(None, wrong):
            row.fail(f"{fault.call} {fault.number}, {fault.mode} ({victim}): {line}")
        if not any(wrong):
            shutil.rmtree(victim)


def _planned(numbers: dict[str, int], faults: int, generator: np.random.Generator) -> list[Fault]:
    """Return all calls in every mode in random order, or as many as there are faults to make."""
    every = [
        Fault(call, number, mode)
        for call, count in numbers.items()
        for number in range(1, count + 1)
        for mode in (*MODES, *(("half, then kill", "half, then ENOSPC") if call == "write" else ()))
    ]
    # Of each kind of call as many: there are a hundred writes for a rename.
    weights = np.array([1.0 / numbers[fault.call] for fault in every])
    chosen = generator.choice(len(every), min(faults, len(every)), replace=False, p=weights / weights.sum())
    return [every[index] for index in chosen]


def _wrong(fault: Fault, code: int | None, complaint: str) -> list[str]:
    if "kill" in fault.mode:
        return [] if code in (-signal.SIGKILL, 0) else [f"exit {code}, not by the signal: {complaint}"]
    return [complaint] if complaint else []


def disturb(root: Path, fault: Fault | None, counts: Path | None) -> None:
    """In the process of a run: count its calls on files below `root`, and do what `fault` says at one of them."""
    count: dict[str, int] = dict.fromkeys((*CALLS, "open", "write"), 0)

    def at(call: str, act: Callable[[], Any], half: Callable[[], Any] | None = None) -> Any:
        count[call] += 1
        if counts:
            _keep(counts, count)
        if fault is None or (call, count[call]) != (fault.call, fault.number):
            return act()
        if fault.mode.startswith("half") and half:
            half()
        elif fault.mode == "kill after":
            act()
        if "kill" in fault.mode:
            os.kill(os.getpid(), signal.SIGKILL)
        name = "ENOSPC" if "ENOSPC" in fault.mode else fault.mode
        number = getattr(errno, name)
        raise OSError(number, os.strerror(number), str(root))

    for name in CALLS:
        setattr(os, name, _counted(name, getattr(os, name), at, root))
    opened = partial(_opened, io.open, at, root)
    builtins.open = opened  # type: ignore[assignment]
    io.open = opened  # type: ignore[assignment]


def _keep(path: Path, count: dict[str, int]) -> None:
    """Without a call that is counted."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.write(descriptor, json.dumps(count).encode())
    os.close(descriptor)


def _counted(name: str, act: Callable[..., Any], at: Callable[..., Any], root: Path) -> Callable[..., Any]:
    def call(first: Any, *arguments: Any, **keywords: Any) -> Any:
        path = os.readlink(f"/proc/self/fd/{first}") if isinstance(first, int) else str(first)
        if not path.startswith(str(root)):
            return act(first, *arguments, **keywords)
        return at(name, lambda: act(first, *arguments, **keywords))

    return call


def _opened(
    act: Callable[..., Any],
    at: Callable[..., Any],
    root: Path,
    file: Any,
    mode: str = "r",
    *more: Any,
    **keywords: Any,
) -> Any:
    writes = set(mode) & set("wax+") and not isinstance(file, int)
    if not writes or not str(file).startswith(str(root)):
        return act(file, mode, *more, **keywords)
    return Written(at("open", lambda: act(file, mode, *more, **keywords)), at)


class Written:
    """An open file whose writes are counted."""

    def __init__(self, file: Any, at: Callable[..., Any]) -> None:
        self._file = file
        self._at = at

    def write(self, data: Any) -> Any:
        """As the file does; half of it goes to the disk where the fault says so."""

        def half() -> None:
            self._file.write(data[: len(data) // 2])
            self._file.flush()

        return self._at("write", lambda: self._file.write(data), half)

    def truncate(self, *size: int) -> Any:
        """As the file does."""
        return self._at("truncate", lambda: self._file.truncate(*size))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Written:
        return self

    def __exit__(self, *error: Any) -> None:
        self._file.close()

    def __iter__(self) -> Any:
        return iter(self._file)
