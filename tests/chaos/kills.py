"""SIGKILL to the whole process group of a run, at moments that are uniform over the run's life."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil

from ddrl.cli.inspection import problems
from ddrl.training.records import checkpoint
from tests.chaos.child import Child, run
from tests.chaos.outside import watched
from tests.chaos.systems import System, difference, leftovers
from tests.chaos.tally import Row, Tally

KILLS_OF_A_RUN = 12
"""After so many a run is left to reach its end: one that is killed for ever shows nothing."""
ORPHAN_SECONDS = {"serial": 10.0, "threads": 20.0, "ray": 150.0}
"""For what a killed run has started to notice. Ray's two agents of a node try for a minute to reach the head."""
BATCH_FRAMES = 400
"""Frames between a checkpoint that is due and the one that is made, of any of the systems, generously."""


def kill(systems: Sequence[System], kills: int, folder: Path, generator: np.random.Generator, tally: Tally) -> None:
    """Divide `kills` among the systems."""
    for place, system in enumerate(systems):
        share = kills // len(systems) + (place < kills % len(systems))
        if share:
            own = folder / re.sub(r"\W+", "_", system.name)
            with (
                tally.row("kills", system.name) as row,
                watched(folder.parent / "t", own=system.runtime != "ray") as left,
            ):
                kill_one(system, share, own, generator, row, tally)
                for path in left():
                    row.fail(f"left behind: {path}")


def kill_one(system: System, kills: int, folder: Path, generator: np.random.Generator, row: Row, tally: Tally) -> None:
    """Kill runs of one system until there were `kills`; each is continued to its end and compared."""
    config, straight = system.write(folder / "config.json"), folder / "straight"
    command = ["train", config, "--quiet", "--directory"]
    ended = run([*command, straight], folder / "straight.log")
    if ended.code != 0:
        row.fail(f"undisturbed: exit {ended.code}: {ended.said.strip()[-300:]}")
        return
    victim, killed_here, number, saved = folder / "run0", 0, 0, 0
    while kills:
        log = folder / f"{victim.name}.log"
        child = Child([*command, victim], log)
        if killed_here < KILLS_OF_A_RUN and _killed(child, ended.seconds * generator.uniform(), system, row):
            kills, killed_here = kills - 1, killed_here + 1
            row.count("killed")
            saved = _saved_since(system, victim, saved, row)
            tally.progress(f"{system.name}: {kills} kills to go")
            if kills:
                continue
            child = Child([*command, victim], log)
        _judge(child, system, straight, victim, row, f"{victim} after {killed_here} kills")
        number, killed_here, saved = number + 1, 0, 0
        victim = folder / f"run{number}"
    row.measured["runs"] = number


def _killed(child: Child, after: float, system: System, row: Row) -> bool:
    """Kill a run after so many seconds, with what it has started; return False where it was over before."""
    end = time.monotonic() + after
    while time.monotonic() < end and not child.poll():
        time.sleep(min(0.005, after))
    if child.poll():
        return False
    family = child.family()
    child.kill()
    child.end()
    _, alive = psutil.wait_procs(family[1:], timeout=ORPHAN_SECONDS[system.runtime])
    for process in alive:
        with suppress(psutil.Error):
            row.fail(f"orphan {process.pid}: {' '.join(process.cmdline())[:120]}")
            process.kill()
    return True


def _saved_since(system: System, run: Path, before: int, row: Row) -> int:
    """Return where the newest checkpoint of a killed run is; note where more than an interval is lost with it."""
    if not (run / "checkpoints").is_dir():  # of a population, whose members have their own
        return 0
    recorded, saved = recorded_frames(run), saved_frames(run)
    if saved < before:
        row.fail(f"{run}: the newest checkpoint is at {saved} frames, and was at {before}")
    if recorded - saved > system.checkpoint_frames + BATCH_FRAMES:
        row.fail(f"{run}: records reach {recorded} frames, checkpoints {saved}: more than an interval is lost")
    return saved


def _judge(child: Child, system: System, straight: Path, run: Path, row: Row, name: str) -> None:
    """Let a run reach its end; note what is wrong with it, else remove it."""
    ended = child.end()
    wrong = [ended.complaint] if ended.complaint else []
    if ended.code != 0:
        wrong.append(f"exit {ended.code}: {(ended.said.strip().splitlines() or [''])[-1][:200]}")
    else:
        wrong += [*problems(run), *(f"left over: {path}" for path in leftovers(run))]
        if system.repeats:
            wrong.append(difference(straight, run))
        else:
            wrong += uneven(run)
    for line in filter(None, wrong):
        row.fail(f"{name}: {line}")
    if not any(wrong):
        shutil.rmtree(run)


def recorded_frames(run: Path) -> int:
    """Return up to where a run that was killed has records; 0: it has none."""
    frames = 0
    with suppress(OSError):
        for line in (run / "curves.jsonl").read_text().splitlines():
            with suppress(ValueError):
                frames = json.loads(line)["env_frames"]
    return frames


def saved_frames(run: Path) -> int:
    """Return where its newest valid checkpoint is; 0: it has none."""
    with suppress(Exception):
        state, _ = checkpoint.load_newest(run / "checkpoints")
        return int(state["learner"]["counters"][0]) if state else 0
    return 0


def uneven(run: Path) -> list[str]:
    """Return where the records or the resumes of a finished run in threads or on Ray do not follow one another."""
    found: list[str] = []
    frames, lines = [], (run / "curves.jsonl").read_text().splitlines()
    for record in map(json.loads, lines):
        if "episodes" in record["metrics"]:
            frames.append([record[name] for name in ("env_frames", "agent_steps", "updates")])
    steps = np.diff(np.array(frames), axis=0)
    if (steps < 0).any() or (steps[:, 0] <= 0).any():
        found.append("counters of the records run backwards, or a record is there twice")
    resumed = [one["env_frames"] for one in json.loads((run / "run.json").read_text())["history"]]
    if resumed != sorted(resumed):
        found.append(f"it was resumed at {resumed} frames")
    return found
