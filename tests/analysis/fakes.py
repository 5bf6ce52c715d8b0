"""Finished runs without training: curves of a known shape, in the format of real ones."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg

from ddrl.analysis.__main__ import main
from ddrl.analysis.runs.problems import gather
from ddrl.analysis.tables.build import read
from ddrl.analysis.tables.derived import derive
from ddrl.analysis.tables.scores import scores
from ddrl.analysis.verdicts.claims import claims
from ddrl.papers.experiments import Experiment
from ddrl.papers.own_code import own_function
from ddrl.papers.paper import Paper
from ddrl.papers.published import load_references
from ddrl.training.config.experiments import PlannedRun, write_configs


def write_run(
    run: PlannedRun,
    results: Path,
    *,
    start: float,
    final: float,
    origin: str = "run",
    frames: int | None = None,
    **shape: Any,
) -> Path:
    """A run whose return rises from `start` to `final` (`curves_of`, with `shape`); returns its directory."""
    frames = frames or int(run.config["env_frames"])
    curves = curves_of(run, start=start, final=final, frames=frames, **shape)
    return _write(run, results, origin, curves, manifest(run.config, frames))


def _write(run: PlannedRun, results: Path, origin: str, curves: pd.DataFrame, manifest: Mapping[str, Any]) -> Path:
    folder = results / "reference" / run.paper / run.key if origin == "reference" else run.directory(results)
    folder.mkdir(parents=True, exist_ok=True)
    curves.to_parquet(folder / "curves.parquet", index=False, write_page_checksum=True)
    (folder / "run.json").write_text(json.dumps(manifest))
    (folder / "config.json").write_text(json.dumps(run.config))
    return folder


def curves_of(
    run: PlannedRun, *, start: float, final: float, frames: int, records: int = 40, noisiness: float = 0.04
) -> pd.DataFrame:
    """Curves whose return rises with seeded noise.

    `noisiness`: the standard deviation of a record, as a part of the whole rise.
    """
    generator = np.random.Generator(np.random.PCG64([run.seed, len(run.key), sum(run.key.encode())]))
    grid = np.linspace(frames / records, frames, records).astype(np.int64)
    shape = 1 / (1 + np.exp(-10 * (grid / frames - 0.45)))
    noise = noisiness * abs(final - start) * generator.standard_normal(records)
    rows: list[tuple[int, str, float]] = []
    lag = float(run.config.get("topology", {}).get("parameter_delay") or 3.0)
    replay = float(run.config["hyperparameters"].get("replay_fraction") or 0.0)
    for frame, level, wobble in zip(grid, shape, noise, strict=True):
        rows.append((int(frame), "episode_return", start + (final - start) * level + wobble))
        rows.append((int(frame), "episodes", frame / 1000))
        rows.append((int(frame), "policy_lag_mean", lag + replay * frame / frames * 200 + generator.random()))
        rows.append((int(frame), "policy_lag_max", 2 * lag + replay * frame / frames * 500 + 2))
    episodes = int(run.config["evaluation"]["final_episodes"])
    rows += [(int(grid[-1]), "evaluation_return", final + float(w)) for w in noise[:1].repeat(episodes)]
    table = pd.DataFrame(rows, columns=["env_frames", "metric", "value"])
    table["agent_steps"] = table["env_frames"] // 4
    table["updates"] = table["env_frames"] // 2560
    table["seconds"] = table["env_frames"] / 7000.0
    return table[["env_frames", "agent_steps", "updates", "seconds", "metric", "value"]]


def write_timed(
    run: PlannedRun,
    results: Path,
    *,
    final: float,
    speed: float,
    cores: int = 2,
    gpu: str | None = None,
    origin: str = "run",
    measured: Mapping[str, float] | None = None,
    frames: int | None = None,
    **options: Any,
) -> Path:
    """A fake run that took env_frames / speed seconds on a machine with so many cores; `options` as for `curves_of`.

    `measured`: as for `write_measured`.
    """
    frames = frames or int(run.config["env_frames"])
    curves = curves_of(run, frames=frames, **{"start": 10.0, "final": final, **options})
    curves = curves.assign(seconds=curves["env_frames"] / speed)
    kind, _, task = run.environment.partition("/")
    protocol = f"ale-0.12.1/{task};skip4,gray42x42" if kind == "atari" else f"mujoco-3.17.0/{task};cap1000"
    told = manifest(run.config, frames) | {"seconds": float(curves["seconds"].max()) + 10.0, "protocol": protocol}
    told["hardware"] |= {"cores": cores, "gpu": gpu}
    return _write(run, results, origin, curves if measured is None else _with(curves, measured), told)


def write_measured(
    run: PlannedRun, results: Path, *, final: float, speed: float, measured: Mapping[str, float], **options: Any
) -> Path:
    """A fake run at a steady speed after ten seconds of starting up, that recorded `measured` beside its training.

    Of metrics that add up (`cpu_seconds`, `worker_cpu_seconds`) it is what a million frames take, after five seconds of
    starting up. The first record of every other one is wrong by a factor of 100, as starting up would have it.
    """
    return write_timed(run, results, final=final, speed=speed, measured=measured, **options)


def _with(curves: pd.DataFrame, measured: Mapping[str, float]) -> pd.DataFrame:
    curves = curves.assign(seconds=curves["seconds"] + 10.0)
    records = curves[curves["metric"] == "episodes"]
    parts = [curves[~curves["metric"].isin(list(measured))]]
    for name, value in measured.items():
        adds_up = name.endswith("cpu_seconds")
        values = records["env_frames"] * value / 1e6 + 5.0 if adds_up else [100 * value, *[value] * (len(records) - 1)]
        parts.append(records.assign(metric=name, value=values))
    return pd.concat(parts, ignore_index=True)


def decided(
    paper: Paper, experiments: Mapping[str, Experiment], planned: Sequence[PlannedRun], results: Path
) -> pd.DataFrame:
    """The paper's claims by name, on the runs that were planned and written, all of which must be readable."""
    runs = gather(paper.key, planned, results, experiments, allow_missing=False).runs
    assert len(runs) == len(planned)
    found = claims(paper, experiments, scores(list(runs), load_references(paper)), list(runs))
    return found[found["origin"] == "run"].set_index("claim")


def assert_figures_are_drawn(paper: Paper, results: Path) -> None:
    """Every figure of the paper, with the runs of scale smoke and the reference runs that are there, and with none."""
    replications = str(paper.directory.parent)
    assert main(["aggregate", "--paper", paper.key, "--results", str(results), "--replications", replications]) == 0
    tables = results / "smoke" / paper.key / "tables"
    for table in paper.derived:
        derive(paper.directory, table, tables, tables)
    for figure in paper.figures:
        draw = own_function(paper.directory, "figures.py", figure.name)
        given = read(tables, figure.tables)
        for rows in (None, 0):
            canvas = draw(**{name: table.iloc[:rows] for name, table in given.items()})
            FigureCanvasAgg(canvas).draw()
            drawn = sum(len(axes.lines) + len(axes.collections) for axes in canvas.axes)
            assert bool(drawn) == (rows is None), figure.name


def manifest(config: Any, frames: int) -> dict[str, Any]:
    """A run.json."""
    return {
        "config": config,
        "fingerprint": "0123456789abcdef",
        "algorithm_version": 1,
        "protocol": protocol(config["environment"]["name"]),
        "git_sha": "f" * 40,
        "git_dirty": False,
        "packages": {"python": "3.11", "torch": "2.13.0"},
        "hardware": {"cpu": "a processor", "cores": 2, "memory_gib": 23.5, "gpu": None},
        "started": "2026-01-01T00:00:00+00:00",
        "finished": "2026-01-01T01:00:00+00:00",
        "seconds": frames / 7000.0,
        "env_frames": frames,
        "agent_steps": frames // 4,
        "updates": frames // 2560,
        "episodes": 100,
        "resumes": 0,
        "exit_reason": "budget_reached",
        "peak_memory_mib": 812.0,
        "parameters": 680_000,
    }


def protocol(environment: str) -> str:
    """The protocol id of a run with the paper's settings."""
    family, _, task = environment.partition("/")
    if family != "atari":
        return f"{family}-1/{task};autoreset-next-step;raw-rewards"
    parts = "skip4,max2,gray84x84,stack4;noop1-30;sticky0;minimal-actions;life-loss-terminal;cap108k"
    return f"ale-0.12.1/{task};{parts};autoreset-next-step;raw-rewards"


def write_bench(results: Path, name: str = "bench.json") -> Path:
    """A benchmark of IMPALA on Pong with three repeats, at 1000, 1100 and 1200 frames per second."""
    repeats = [
        {"training": speed, "policy_lag_mean": lag} for speed, lag in ((1200.0, 3.0), (1000.0, 5.0), (1100.0, 4.0))
    ]
    content = {
        "config": {
            "algorithm": "impala",
            "environment": {"name": "atari/pong"},
            "hyperparameters": {"network": "shallow"},
            "topology": {"runtime": "threads", "schedule": "asynchronous", "num_actors": 3, "envs_per_actor": 32},
            "precision": "float32",
        },
        "hardware": {"cpu": "a processor", "cores": 2, "memory_gib": 23.5, "gpu": None},
        "repeats": repeats,
        "median_bound_frames_per_second": 1250.0,
        "median_ratio": 0.88,
        "limiting_part": "simulation",
    }
    path = results / "reference" / "bench" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


ATARI = {
    "atari/pong": (-20.7, 14.6),
    "atari/breakout": (1.7, 30.5),
    "atari/space_invaders": (148.0, 1668.7),
}
CORRECTION = {"v_trace": 0.98, "one_step_is": 0.93, "epsilon_correction": 0.0, "no_correction": -0.6}


def write_scale(runs: Sequence[PlannedRun], results: Path, *, progress: float = 0.1) -> None:
    """Every run of a scale: Atari ends at `progress` of the way from random to human, Catch as `CORRECTION` says.

    Experiments on systems end as random play does on games, and at the best return on Catch.
    """
    write_configs(runs, results)
    for run in runs:
        if run.experiment == "atari":
            random, human = ATARI.get(run.environment, (0.0, 100.0))
            factor = progress * (1.2 if run.variant == "deep" else 1.0)
            write_run(run, results, start=random, final=random + factor * (human - random))
        elif run.environment in ATARI:
            write_run(run, results, start=ATARI[run.environment][0], final=ATARI[run.environment][0])
        else:
            write_run(run, results, start=-0.6, final=CORRECTION.get(run.variant.removesuffix("_replay"), 1.0))
