"""The speed of our code and of other libraries at the same work: each in turn, and then again.

A measurement begins with the first update after `WARM_UP` of its time, and ends with an update; both count all that
lies between them: acting and learning. Each runs in processes of its own, whose CPU time and memory are added up.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ddrl.errors import Command, UserError, about
from ddrl.peers.catalogue import Peer, peer, peers
from ddrl.peers.process import driver
from ddrl.peers.request import request_of
from ddrl.training.builder import Builder
from ddrl.training.config.run_config import RunConfig, to_json

OURS = "ddrl"
WARM_UP = 0.25
"""Share of a measurement's seconds that pass before it begins."""
LONGEST = 6.0
"""A measurement of no two updates ends after so many times its seconds."""
ENDLESS = 10**9


@dataclass(frozen=True)
class Speed:
    """One measurement of one system."""

    system: str
    threads: int
    repeat: int
    frames_per_second: float
    cpu_seconds_per_1000_frames: float
    peak_memory_mib: float
    gradient_steps_per_step: float
    """Gradient steps per agent step."""
    trained_samples_per_step: float
    """Samples in gradient steps per agent step: epochs, for all that learn from each step alike."""
    steps: int
    """Agent steps measured."""
    seconds: float
    versions: str = ""
    """The library and what it uses, with their versions."""


def measured(
    config: RunConfig,
    names: Sequence[str],
    *,
    seconds: float,
    repeats: int,
    threads: Sequence[int],
    note: Callable[[str], None],
) -> list[Speed]:
    """Measure our code, and each peer with each number of torch's threads, in turn in every repeat.

    Raise `UserError` for a peer that is not installed, or cannot do what is asked.
    """
    known = peers()
    chosen = [peer(name, "--peers") for name in names] if names else _able(known, config.algorithm)
    for one in chosen:
        one.check(config.algorithm)
    subjects = [_ours(config)] + [_theirs(one, config, count) for one in chosen for count in threads]
    found = []
    for repeat in range(1, repeats + 1):
        for subject in subjects:
            where = f"repeat {repeat}/{repeats}, {subject.system}"
            try:
                speed = subject.measure(repeat, seconds)
            except UserError as error:
                note(f"{where}: {error}")
                continue
            found.append(speed)
            note(f"{where}, {subject.threads} threads: {speed.frames_per_second:,.0f} frames/s")
    return found


def _able(known: Mapping[str, Peer], algorithm: str) -> list[Peer]:
    """Return the installed peers that have an algorithm. Raise `UserError` where there are none."""
    able = [one for one in known.values() if algorithm in one.algorithms]
    if found := [one for one in able if one.is_installed]:
        return found
    with about(Command("ddrl peers speed")):
        if not able:
            raise UserError(f"no peer runs {algorithm}; see: ddrl peers list")
        raise UserError(f"no peer that runs {algorithm} is installed; type: make peers")


def _ours(config: RunConfig) -> Subject:
    if config.topology.runtime == "ray":
        raise UserError("key 'topology.runtime': our code is measured in one process; allowed: serial, threads")
    far = ENDLESS * 100
    values = to_json(config) | {"env_frames": far, "tracking": []}
    values |= {"recording": {"period_frames": far}, "checkpoint": values["checkpoint"] | {"period_frames": far}}
    values["evaluation"] = values["evaluation"] | {"period_frames": None, "final_versions": 1}
    command = [sys.executable, "-m", "ddrl.peers.own"]
    variables = {"PYTHONPATH": str(Path(__file__).parents[2])}
    return Subject(OURS, config.topology.learner_threads, command, values, variables, _skip(config))


def _theirs(peer: Peer, config: RunConfig, threads: int) -> Subject:
    request = request_of(config, threads=threads) | {"agent_steps": ENDLESS}
    request["evaluation"] = request["evaluation"] | {"episodes": 0, "versions": 1}
    return Subject(peer.name, threads, [peer.python, peer.driver], request, peer.variables, _skip(config))


def _skip(config: RunConfig) -> int:
    import torch

    return Builder(config, torch.device("cpu")).spec.frame_skip


class Mark(NamedTuple):
    """An update at which a measurement begins or ends."""

    done: Mapping[str, Any]
    """What the driver says of its progress."""
    cpu_seconds: float
    """Of all processes so far."""


@dataclass(frozen=True)
class Subject:
    """A system that is measured, with its number of torch's threads."""

    system: str
    threads: int
    command: Sequence[str | Path]
    request: Mapping[str, Any]
    variables: Mapping[str, str]
    frame_skip: int

    def measure(self, repeat: int, seconds: float) -> Speed:
        """Measure it once. Raise `UserError` where it fails, or makes no two updates in time."""
        variables = {"OMP_NUM_THREADS": str(self.threads), **self.variables}
        first: Mark | None = None
        versions = ""
        with (
            tempfile.TemporaryDirectory() as folder,
            driver(self.command, self.request, Path(folder, "log"), name=self.system, variables=variables) as running,
        ):
            for message in running.messages():
                if message["kind"] == "started":
                    versions = ", ".join(f"{name} {number}" for name, number in message["versions"].items())
                if message["kind"] != "progress" or not message["updated"]:
                    if message["kind"] == "progress" and message["seconds"] > LONGEST * seconds:
                        break
                    continue
                if first is None:
                    if message["seconds"] >= WARM_UP * seconds:
                        first = Mark(message, running.tree.cpu_seconds())
                elif message["seconds"] - first.done["seconds"] >= seconds:
                    last = Mark(message, running.tree.cpu_seconds())
                    return self._between(first, last, repeat, running.tree.peak_mib, versions)
        raise UserError(f"{self.system}: made no two updates in {LONGEST * seconds:,.0f} s; allowed: more --seconds")

    def _between(self, first: Mark, last: Mark, repeat: int, peak_mib: float, versions: str) -> Speed:
        keys = ("steps", "seconds", "gradient_steps", "trained_samples")
        steps, seconds, gradient_steps, samples = (last.done[key] - first.done[key] for key in keys)
        frames = steps * self.frame_skip
        return Speed(
            system=self.system,
            threads=self.threads,
            repeat=repeat,
            frames_per_second=round(frames / seconds, 1),
            cpu_seconds_per_1000_frames=round(1000 * (last.cpu_seconds - first.cpu_seconds) / frames, 4),
            peak_memory_mib=round(peak_mib, 1),
            gradient_steps_per_step=round(gradient_steps / steps, 5),
            trained_samples_per_step=round(samples / steps, 3),
            steps=steps,
            seconds=round(seconds, 2),
            versions=versions,
        )


def table(speeds: Sequence[Speed]) -> list[dict[str, str]]:
    """Return a row for each system and number of threads: medians over repeats, and ours over theirs."""
    groups: dict[tuple[str, int], list[Speed]] = {}
    for one in speeds:
        groups.setdefault((one.system, one.threads), []).append(one)

    def middle(group: Sequence[Speed], key: str) -> float:
        return float(statistics.median(asdict(one)[key] for one in group))

    ours = next((middle(group, "frames_per_second") for key, group in groups.items() if key[0] == OURS), None)
    rows = []
    for (system, threads), group in groups.items():
        speed, of = middle(group, "frames_per_second"), [one.frames_per_second for one in group]
        times = "" if ours is None or system == OURS else f"{ours / speed:.2f}"
        rows.append(
            {
                "system": system,
                "threads": str(threads),
                "frames/s": f"{speed:,.0f}",
                "lowest to highest": f"{min(of):,.0f} to {max(of):,.0f}",
                "CPU s per 1,000 frames": f"{middle(group, 'cpu_seconds_per_1000_frames'):.3f}",
                "peak MiB": f"{middle(group, 'peak_memory_mib'):,.0f}",
                "gradient steps per step": f"{middle(group, 'gradient_steps_per_step'):.4f}",
                "samples per step": f"{middle(group, 'trained_samples_per_step'):.2f}",
                "ours is faster by": times,
            }
        )
    return rows
