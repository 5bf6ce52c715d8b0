"""Each kind of file of a run, damaged in each way, under each command that reads it.

A command may go on, or end with one line and exit code 2; and whatever it does, what was whole is not lost.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.chaos.child import Child, Ended, run
from tests.chaos.systems import System, all_systems, difference
from tests.chaos.tally import Row, Tally

SYSTEMS = ("serial impala tensorboard", "serial population of impala", "threads apex_dqn toy/catch")
KINDS = (
    "config.json",
    "curves.jsonl",
    "curves.parquet",
    "run.json",
    "lock",
    "checkpoints/*.pt",
    "checkpoints/*.sha256",
    "checkpoints",
    "tensorboard/*",
    "lineage.jsonl",
    "lineage.parquet",
    "members/0/member.json",
    "members/0/curves.jsonl",
    "members/0/checkpoints/*.pt",
    "members/0/checkpoints/*.sha256",
    "members/0/snapshots/*.pt",
    "members/0/adopted/*.pt",
)
NOT_NOTICED = [("curves.parquet", "of another run")]
"""In a run that is over: a whole table of another run, which nothing in `run.json` tells from the own."""
MAY_DIFFER = ("curves.jsonl", "lineage.jsonl", "members/", "config.json", "checkpoints")
"""After such damage a run need not end with the bits that it would have had."""


@dataclass(frozen=True)
class Base:
    """Runs of a system to take copies of: one that was killed after a checkpoint, one that is over, another seed's."""

    system: System
    config: Path
    straight: Path
    killed: Path
    other: Path


def damage(files: int, folder: Path, generator: np.random.Generator, tally: Tally) -> None:
    """Damage so many files of copies of runs."""
    if not files:
        return
    systems = [system for system in all_systems() if system.name in SYSTEMS]
    rows = {system.name: files // len(systems) + (place < files % len(systems)) for place, system in enumerate(systems)}
    for system in systems:
        if not rows[system.name]:
            continue
        with tally.row("files", system.name) as row:
            base = _base(system, folder / system.name.replace(" ", "_").replace("/", "_"), row)
            if base:
                _damage_one(base, rows[system.name], generator, row, tally)


def _base(system: System, folder: Path, row: Row) -> Base | None:
    config, other = system.write(folder / "config.json"), folder / "other.json"
    System("other", system.config | {"seed": 4}).write(other)
    for name, path in (("straight", config), ("another", other)):
        ended = run(["train", path, "--quiet", "--directory", folder / name], folder / f"{name}.log")
        if ended.code != 0:
            row.fail(f"undisturbed: exit {ended.code}: {ended.said.strip()[-300:]}")
            return None
    for _ in range(20):
        child = Child(["train", config, "--quiet", "--directory", folder / "killed"], folder / "killed.log")
        while not child.poll() and len(list((folder / "killed").rglob("checkpoints/*.sha256"))) < 2:
            pass
        child.kill()
        if child.end().code != 0:
            return Base(system, config, folder / "straight", folder / "killed", folder / "another")
        shutil.rmtree(folder / "killed")
    row.fail("was always over before it could be killed")
    return None


def _damage_one(base: Base, files: int, generator: np.random.Generator, row: Row, tally: Tally) -> None:
    """As many combinations of file, way and moment as are wanted, in a random order, again and again."""
    every = [
        (moment, kind, way)
        for moment in (base.killed, base.straight)
        for kind in KINDS
        for way in WAYS
        if list(moment.glob(kind))
    ]
    while len(every) < files:
        every += every
    for index, place in enumerate(generator.permutation(len(every))[:files]):
        moment, kind, way = every[place]
        tally.progress(f"{base.system.name}: file {index + 1} of {files}")
        _try(base, moment, kind, way, generator, row, base.config.parent / f"copy{index}")


def _try(base: Base, moment: Path, kind: str, way: str, generator: np.random.Generator, row: Row, copy: Path) -> None:
    """One damaged file: the same command again, then those that only look."""
    shutil.copytree(moment, copy)
    found = sorted(copy.glob(kind))
    path = found[int(generator.integers(len(found)))]
    other = sorted(base.other.glob(kind))
    WAYS[way](path, other[0] if other else base.config, generator)
    before = _contents(copy, path)
    ended = run(["train", base.config, "--quiet", "--directory", copy], copy.with_suffix(".log"))
    row.count(f"exit {ended.code}")
    wrong = [ended.complaint, *_lost(before, copy, ended)]
    noticed = (kind, way) not in NOT_NOTICED or moment != base.straight
    if ended.code == 0 and base.system.repeats and noticed and not kind.startswith(MAY_DIFFER):
        wrong.append(difference(base.straight, copy))
    for command, allowed in (("verify", (0, 1, 2)), ("evaluate", (0, 2))):
        looked = run([command, copy], copy.with_suffix(f".{command}.log"))
        if looked.code not in allowed or "Traceback" in looked.said:
            wrong.append(f"{command}: exit {looked.code}: {(looked.said.strip().splitlines() or [''])[-1][:200]}")
    name = f"{path.relative_to(copy)} of a run that is {'over' if moment == base.straight else 'not over'}, {way}"
    for line in filter(None, wrong):
        row.fail(f"{name} ({copy}): {line}")
    if not any(wrong):
        shutil.rmtree(copy)


def _contents(copy: Path, damaged: Path) -> dict[Path, bytes]:
    """What is whole: results of a run that is over, and checkpoints."""
    names = ("curves.parquet", "run.json", "lineage.parquet")
    kept = [path for path in copy.rglob("*") if path.suffix == ".pt" or path.name in names]
    return {path: path.read_bytes() for path in kept if path.is_file() and damaged not in (path, *path.parents)}


def _lost(before: dict[Path, bytes], copy: Path, ended: Ended) -> list[str]:
    """Return what was whole before a command that failed and is not there any more, here or set aside."""
    if ended.code == 0:
        return []
    now = {path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    return [f"{path.relative_to(copy)} was whole and is gone" for path, content in before.items() if content not in now]


def _flipped(path: Path, other: Path, generator: np.random.Generator) -> None:
    if path.is_dir():
        return
    content = bytearray(path.read_bytes() or b"\0")
    for _ in range(8):
        content[int(generator.integers(len(content)))] ^= 1 << int(generator.integers(8))
    path.write_bytes(bytes(content))


def _cut(path: Path, other: Path, generator: np.random.Generator) -> None:
    if not path.is_dir():
        os.truncate(path, int(generator.integers(path.stat().st_size + 1)))


def _file(content: bytes) -> Callable[[Path, Path, np.random.Generator], None]:
    def write(path: Path, other: Path, generator: np.random.Generator) -> None:
        _remove(path)
        path.write_bytes(content)

    return write


def _of_another(path: Path, other: Path, generator: np.random.Generator) -> None:
    _remove(path)
    if other.is_dir():
        shutil.copytree(other, path)
    else:
        shutil.copyfile(other, path)


def _folder(path: Path, other: Path, generator: np.random.Generator) -> None:
    _remove(path)
    path.mkdir()
    (path / "file").write_text("mine")


def _dangling(path: Path, other: Path, generator: np.random.Generator) -> None:
    _remove(path)
    path.symlink_to("gone")


def _remove(path: Path, *_: object) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _noise(path: Path, other: Path, generator: np.random.Generator) -> None:
    _remove(path)
    path.write_bytes(generator.bytes(int(generator.integers(1, 5000))))


WAYS: dict[str, Callable[[Path, Path, np.random.Generator], None]] = {
    "empty": _file(b""),
    "cut": _cut,
    "flipped": _flipped,
    "noise": _noise,
    "zeros": _file(bytes(4096)),
    "a list": _file(b"[1, 2]\n"),
    "a number": _file(b"3\n"),
    "not UTF-8": _file(b'{"caf\xe9": 1}\n'),
    "nested": _file(b"[" * 100_000),
    "of another run": _of_another,
    "a folder": _folder,
    "a dangling link": _dangling,
    "gone": _remove,
}
