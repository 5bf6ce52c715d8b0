"""Reference convergence points: one short training to a target return for each algorithm, after those of MLPerf.

A file of `tests/regression/points/` holds a configuration of the serial runtime, a target, and the frames that each of
`SEEDS` needed to it. The check trains `FRESH` seeds, which were never recorded, as they are trained today; their mean
must stay below the limit that the recorded seeds set (`ddrl.regression.limits`). Faster is never a failure.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from ddrl import algorithms
from ddrl.errors import UserError, unknown_name
from ddrl.regression import limits
from ddrl.regression.checks import Check, CheckOutcome, timed
from ddrl.system.text_files import read_json
from ddrl.training.records.recorder import write_json

FOLDER = Path("tests/regression/points")
COMMAND = "python -m ddrl.regression points"
SEEDS = tuple(range(1, 11))
FRESH = tuple(range(101, 106))
EPISODES = 20
"""Fewest episodes behind a mean return that counts as reached."""


def read(path: Path) -> dict[str, Any]:
    """Read a point. Raise `UserError` where it is missing, damaged, or a key is not what it must be."""
    point = read_json(path)
    if not isinstance(point, dict) or not isinstance(point.get("config"), dict):
        raise UserError(f"{path}: key 'config' must be a mapping")
    for name in ("algorithm", "env_frames"):
        if name not in point["config"]:
            raise UserError(f"{path}: key 'config.{name}' is missing")
    if not isinstance(point.get("target"), (int, float)):
        raise UserError(f"{path}: key 'target' must be a number")
    if not isinstance(point.get("frames", {}), dict):
        raise UserError(f"{path}: key 'frames' must be a mapping")
    return point


def frames_to_target(config: Mapping[str, Any], target: float, seed: int) -> float:
    """Train until the mean return of the newest record reaches `target`; return the frames, inf where it never does.

    A record holds all training episodes that ended within `recording.period_frames`.
    """
    import torch

    from ddrl.runtimes.local import local_runtime
    from ddrl.training.config.run_config import parse_run_config
    from ddrl.training.run import Run

    torch.set_num_threads(1)
    parsed = parse_run_config({**config, "seed": seed})
    with tempfile.TemporaryDirectory() as directory:
        run = Run(parsed, Path(directory), make_runtime=local_runtime(parsed))
        frames: list[float] = []

        def reached() -> bool:
            latest = run.recorder.latest  # its return is a record's once it has the number of episodes so far
            if latest.get("episodes", 0) >= EPISODES and latest.get("episode_return", -math.inf) >= target:
                frames.append(float(run.counts.env_frames))
            return bool(frames)

        run.pause = reached
        run.train_segment()
    return frames[0] if frames else math.inf


@contextmanager
def workers(prepare: Callable[[], None] | None = None) -> Iterator[ProcessPoolExecutor]:
    """Yield a process for each core that this process may use; each calls `prepare` first."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=context, initializer=prepare) as pool:
        try:
            yield pool
        finally:
            pool.shutdown(cancel_futures=True)


def begin(pool: ProcessPoolExecutor, point: Mapping[str, Any], seeds: Sequence[int]) -> list[Future[float]]:
    """Begin to train a point with each of `seeds`."""
    return [pool.submit(frames_to_target, point["config"], point["target"], seed) for seed in seeds]


def checks(root: Path, prepare: Callable[[], None] | None = None, names: Sequence[str] = ()) -> Iterator[Check]:
    """Train the fresh seeds of each point (of `names`; none: all) and yield a check for each."""
    paths = [path for path in sorted((root / FOLDER).glob("*.json")) if not names or path.stem in names]
    with workers(prepare) as pool:
        begun: dict[Path, list[Future[float]]] = {}
        for path in paths:
            point = read(path)
            begun[path] = begin(pool, point, FRESH) if not _outdated(point) else []
        for path in paths:
            yield timed(f"point: {path.stem}", partial(_judge, path, begun[path]))


def level(root: Path) -> float:
    """Return the level of one point, such that all of them together fail with probability `limits.LEVEL` at most."""
    return limits.LEVEL / max(1, len(list((root / FOLDER).glob("*.json"))))


def _judge(path: Path, new: Sequence[Future[float]]) -> CheckOutcome:
    point = read(path)
    if reason := _outdated(point):
        return CheckOutcome(False, f"{reason}: run '{COMMAND} {path.stem}'")
    frames = [future.result() for future in new]
    recorded, budget = list(point["frames"].values()), point["config"]["env_frames"]
    return limits.judge(recorded, frames, budget=budget, level=level(path.parents[len(FOLDER.parts)]))


def _outdated(point: Mapping[str, Any]) -> str:
    """Return why a point must be recorded anew before it can be compared; empty if it need not."""
    now = algorithms.load(point["config"]["algorithm"]).VERSION
    if not point.get("frames"):
        return "nothing was recorded yet"
    recorded = point.get("algorithm_version")
    return f"recorded with version {recorded}, now {now}" if recorded != now else ""


def record(names: Sequence[str], root: Path) -> Iterator[str]:
    """Train `SEEDS` of the points of `names` (none: all), write their frames, and return a line for each point.

    Raise `UserError` for an unknown name, and where the budget of a point is too small for its check to fail.
    """
    files = {path.stem: path for path in sorted((root / FOLDER).glob("*.json"))}
    for name in names:
        if name not in files:
            raise unknown_name("reference point", name, files, where=str(FOLDER))
    chosen = {name: files[name] for name in names or files}
    with workers() as pool:
        begun = {name: begin(pool, read(path), SEEDS) for name, path in chosen.items()}
        for name, path in chosen.items():
            point, frames = read(path), [future.result() for future in begun[name]]
            budget = point["config"]["env_frames"]
            limits.check_budget(frames, len(FRESH), budget, level(root), str(path))
            version = algorithms.load(point["config"]["algorithm"]).VERSION
            recorded = {str(seed): value for seed, value in zip(SEEDS, frames, strict=True)}
            content = {"command": COMMAND, "algorithm_version": version, "frames": recorded}
            write_json(path, {"config": point["config"], "target": point["target"], **content})
            allowed = limits.limit(frames, len(FRESH), level(root))
            yield f"{path}: {limits.mean(frames):,.0f} frames to {point['target']:g}; limit {allowed:,.0f}"
