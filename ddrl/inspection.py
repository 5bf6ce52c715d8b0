"""Looks at runs and at this machine without changing either: evaluate, watch, verify, systems, doctor."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pandas as pd
import torch

from ddrl import algorithms, checkpoint, manifest
from ddrl.actors import evaluator
from ddrl.actors.policy import LocalPolicy
from ddrl.config import RunConfig, Topology, fingerprint, load_run_config, parse_run_config
from ddrl.environments import check, registry
from ddrl.errors import UserError
from ddrl.record import COLUMNS, COUNTS
from ddrl.run import resolve_device
from ddrl.seeding import seed_for, torch_generator
from ddrl.types import VectorEnv

CELL_PIXELS = 16
"""Side of one cell when a small observation is drawn."""


@dataclass(frozen=True)
class Player:
    """The newest parameters of a run, ready to play."""

    env: VectorEnv
    policy: LocalPolicy
    env_frames: int


def load_player(run: Path, *, num_envs: int, seed: int) -> Player:
    """Raises `UserError` where `run` has no configuration or no valid checkpoint."""
    config = load_run_config(run / "config.json")
    state, damaged = checkpoint.load_newest(run / "checkpoints")
    if state is None:
        reasons = "; ".join(damaged) or "the folder checkpoints/ holds none"
        raise UserError(f"{run}: no valid checkpoint ({reasons})")
    spec = registry.spec_for(**config.environment)
    network = algorithms.load(config.algorithm).make_network(spec, config.hyperparameters, torch_generator(0, "unused"))
    network.load_state_dict(state["learner"]["network"])
    env = registry.make(**config.environment, num_envs=num_envs, seed=seed_for(seed, "player-environment"))
    policy = LocalPolicy(
        network,
        num_envs,
        torch_generator(seed, "player-policy"),
        device=resolve_device(config.device),
        precision=config.precision,
    )
    return Player(env, policy, state["learner"]["counters"][0])


def evaluate(run: Path, *, episodes: int, seed: int) -> dict[str, Any]:
    """Raw returns of `episodes` episodes with a run's newest parameters."""
    player = load_player(run, num_envs=evaluator.num_envs(episodes), seed=seed)
    played = evaluator.play(player.env, player.policy, episodes)
    returns = [episode.episode_return for episode in played]
    return {
        "env_frames": player.env_frames,
        "episodes": episodes,
        "mean": float(np.mean(returns)),
        "standard_deviation": float(np.std(returns, ddof=1)) if episodes > 1 else 0.0,
        "returns": returns,
    }


def watch(run: Path, output: Path, *, seed: int, max_steps: int) -> float:
    """Plays one episode into an animated GIF of what the agent sees (newest frame); returns the raw return."""
    from PIL import Image

    player = load_player(run, num_envs=1, seed=seed)
    step, images, total = player.env.reset(), [], 0.0
    for _ in range(max_steps):
        images.append(Image.fromarray(_picture(step.observation[0])))
        step = player.env.step(player.policy.act(step).action.numpy())
        total += float(step.reward[0])
        if step.ended[0]:
            break
    output.parent.mkdir(parents=True, exist_ok=True)
    milliseconds = round(1000 * player.env.spec.frame_skip / 60) if player.env.spec.frame_skip > 1 else 200
    images[0].save(output, save_all=True, append_images=images[1:], duration=milliseconds, loop=0)
    return total


def _picture(observation: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The newest frame of a stack, or a flat observation as one row of cells."""
    if observation.dtype == np.uint8:
        return np.ascontiguousarray(observation[-1])
    low, high = min(0.0, observation.min()), max(1.0, observation.max())
    cells = (255 * (observation.reshape(1, -1) - low) / (high - low)).astype(np.uint8)
    return np.repeat(np.repeat(cells, CELL_PIXELS, axis=0), CELL_PIXELS, axis=1)


def verify(root: Path) -> Iterator[tuple[Path, list[str]]]:
    """For each finished run below `root`: what is wrong with it (nothing, if it is whole)."""
    manifests = sorted(root.rglob("run.json"))
    if not manifests:
        raise UserError(f"{root}: holds no finished run (no run.json)")
    for path in manifests:
        yield path.parent, list(_problems(path.parent))


def _problems(run: Path) -> Iterator[str]:
    try:
        record = json.loads((run / "run.json").read_text())
        config = parse_run_config(record["config"], where=str(run / "run.json"))
        table = pd.read_parquet(run / "curves.parquet")
    except (OSError, ValueError, KeyError, UserError) as error:
        yield f"cannot be read: {' '.join(str(error).split())}"
        return
    if record["fingerprint"] != fingerprint(config):
        yield f"run.json: fingerprint {record['fingerprint']} is not that of its configuration ({fingerprint(config)})"
    if load_run_config(run / "config.json") != config:
        yield "config.json differs from the configuration in run.json"
    yield from _curve_problems(table, record, config)


def _curve_problems(table: pd.DataFrame, record: dict[str, Any], config: RunConfig) -> Iterator[str]:
    if list(table.columns) != COLUMNS:
        yield f"curves.parquet: columns are {list(table.columns)}; expected {COLUMNS}"
        return
    for name in (*COUNTS, "seconds"):
        if not table[table.metric == "episodes"][name].is_monotonic_increasing:
            yield f"curves.parquet: {name} runs backwards"
    if not np.isfinite(table.value).all():
        yield "curves.parquet: holds values that are not finite"
    if record["env_frames"] < config.env_frames:
        yield f"run.json: {record['env_frames']:,} frames, below the budget of {config.env_frames:,}"
    final = table[(table.metric == "evaluation_return") & (table.env_frames == record["env_frames"])]
    if len(final) != config.evaluation.final_episodes:
        wanted = config.evaluation.final_episodes
        yield f"curves.parquet: {len(final)} final episodes; the configuration asks for {wanted}"


def systems() -> Iterator[str]:
    """What there is to combine: algorithms, environments, runtimes and schedules."""
    for name in algorithms.NAMES:
        module = algorithms.load(name)
        yield f"algorithm    {name:12} version {module.VERSION}: {(module.__doc__ or '').strip().splitlines()[0]}"
    for prefix in registry.prefixes():
        yield f"environment  {prefix + '/':12} {len(registry.tasks(prefix))} tasks"
    hints = get_type_hints(Topology)
    for name in ("runtime", "schedule"):
        yield f"topology     {name:12} {', '.join(get_args(hints[name]))}"


def doctor() -> Iterator[tuple[bool, str]]:
    """(fine?, line) for each thing that a run or a report needs."""
    hardware = manifest.hardware()
    yield True, f"{hardware['cpu']}, {hardware['cores']} cores, {hardware['memory_gib']} GiB, GPU {hardware['gpu']}"
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    yield free > 5, f"{free:.0f} GiB free on this disk (5 are enough for scale smoke)"
    for package in ("torch", "numpy", "gymnasium", "ale-py", "pandas", "pyarrow", "matplotlib", "snakemake", "typst"):
        try:
            yield True, f"{package} {importlib.metadata.version(package)}"
        except importlib.metadata.PackageNotFoundError:
            yield False, f"{package} is not installed: run make report or make test, which set up .venv"
    bfloat16 = torch.zeros(2, 2, dtype=torch.bfloat16)
    yield bool(torch.isfinite(bfloat16 @ bfloat16).all()), "bfloat16 matrix products work"
    for name, options in registry.examples().items():
        try:
            check.check_environment(name, **options)
        except Exception as error:
            yield False, f"{name}: {error}"
        else:
            yield True, f"{name} conforms: {registry.spec_for(name).protocol}"
