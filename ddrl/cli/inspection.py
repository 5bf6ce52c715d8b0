"""Reads runs without changing them (`ddrl evaluate`, `ddrl verify`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from torch import nn

from ddrl import algorithms
from ddrl.actors import evaluator
from ddrl.actors.policy import LocalInference, Policy, Sampler
from ddrl.analysis.runs.run_data import LARGEST, read_curves, read_manifest
from ddrl.environments.base import registry
from ddrl.environments.tools.named import make_env
from ddrl.errors import UserError, unknown_name
from ddrl.population.results import newest_of_best
from ddrl.population.results import problems as lineage_problems
from ddrl.regression.checks import Check, CheckOutcome, timed
from ddrl.system.files import below
from ddrl.system.notes import say
from ddrl.system.seeding import seed_for, torch_generator
from ddrl.training.builder import evaluated_environment
from ddrl.training.config.run_config import RunConfig, fingerprint_of, load_run_config, parse_run_config
from ddrl.training.device import resolve_device
from ddrl.training.records import checkpoint
from ddrl.training.records.checkpoint_layout import migrated
from ddrl.training.records.recorder import COUNTS
from ddrl.training.records.task_scores import metric_of
from ddrl.types import EnvSpec


@dataclass(frozen=True)
class Trained:
    """The newest parameters of a run, with their configuration and the frames that they were trained for."""

    config: RunConfig
    network: nn.Module
    env_frames: int

    def policy(self, num_envs: int, seed: int, role: str, index: int = 0, *, greedy: bool = False) -> Policy:
        """Return a policy for `num_envs` environments that draws from the random stream (seed, role, index).

        `greedy`: the likeliest action, the one of highest value, or the mean of continuous actions, every time.
        """
        device = resolve_device(self.config.device)
        inference = LocalInference(self.network, device=device, precision=self.config.precision)
        sample = algorithms.load(self.config.algorithm).make_sampler(
            self.config.hyperparameters, self.network, envs=None, num_envs=num_envs
        )
        if greedy:
            sample = greedy_sampler(registry.spec_for(**self.config.environment))
        return Policy(inference, num_envs, torch_generator(seed, role, index), sample)


def greedy_sampler(spec: EnvSpec) -> Sampler:
    """Return what chooses the best action by the network's output [B, P], always the same."""
    if spec.action_size:
        return lambda output, generator: output[:, : spec.action_size]  # the means come first
    return lambda output, generator: output.argmax(dim=-1)


def load_trained(run: Path) -> Trained:
    """Load the newest valid checkpoint of a run, or of the best member of a population; print why others were skipped.

    Raise `UserError` where there is no configuration or no valid checkpoint.
    """
    config = load_run_config(run / "config.json")
    if config.population:
        config, run = newest_of_best(run)
    spec = registry.spec_for(**config.environment)
    network = algorithms.load(config.algorithm).make_network(spec, config.hyperparameters, torch_generator(0, "unused"))
    damaged: list[str] = []
    for path, found in checkpoint.whole(run / "checkpoints", damaged.append):
        try:
            learner = migrated(found)["learner"]
            frames, _, _ = learner["counters"]
            network.load_state_dict(learner["network"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            words = f"{type(error).__name__}: {error}".splitlines()[0]
            damaged.append(checkpoint.passed_over(path, f"is of another layout ({words})"))
            continue
        for line in damaged:
            say(line)
        return Trained(config, network, frames)
    reasons = "; ".join(damaged) or "the folder checkpoints/ holds none"
    raise UserError(f"{run}: no valid checkpoint ({reasons})")


@dataclass(frozen=True)
class Evaluated:
    """The episodes that a run's newest parameters have played of one task."""

    run: str
    task: str
    env_frames: int
    """That the parameters were trained for."""
    greedy: bool
    seed: int
    returns: list[float]
    """Raw, of each episode."""
    lengths: list[int]
    """Agent steps of each episode."""

    def describe(self, *, with_task: bool) -> str:
        """Return one line."""
        deviation = np.std(self.returns, ddof=1) if len(self.returns) > 1 else 0.0
        return (
            f"{self.run}: {f'{self.task}: ' if with_task else ''}mean raw return {np.mean(self.returns):.2f}, standard "
            f"deviation {deviation:.2f}, {len(self.returns)} episodes, after {self.env_frames:,} frames"
        )


def evaluate(
    run: Path, *, episodes: int, seed: int, task: str | None = None, greedy: bool = False
) -> Iterator[Evaluated]:
    """Play `episodes` episodes of each task with a run's newest parameters.

    On a suite these are all tasks, or `task` alone. Raise UserError for a task that is not of the suite.
    """
    trained, num_envs = load_trained(run), evaluator.num_envs(episodes)
    evaluated = evaluated_environment(trained.config)
    tasks = chosen_tasks(evaluated["name"], task)
    for index, name in enumerate(tasks):
        environment = evaluated | {"name": name}
        own = seed_for(seed, "player-environment")
        described = f"evaluation of {run}, environment {name}, environment seed {own}"
        env = make_env(environment, num_envs, own, num_threads=1, name=described)
        try:
            policy = trained.policy(num_envs, seed, "player-policy", index, greedy=greedy)
            played = evaluator.play(env, policy, episodes)
        finally:
            env.close()
        returns, lengths = [one.episode_return for one in played], [one.length for one in played]
        yield Evaluated(str(run), name, trained.env_frames, greedy, seed, returns, lengths)


def chosen_tasks(name: str, task: str | None) -> tuple[str, ...]:
    """Return all tasks of a suite, or `task` alone, named with or without prefix. Raise UserError for any other."""
    tasks = registry.tasks_of(name)
    chosen = tuple(own for own in tasks if task is None or task in (own, own.partition("/")[2]))
    if not chosen:
        raise unknown_name("task", task, tasks, where="--task")
    return chosen


def verify(root: Path) -> Iterator[Check]:
    """Check that each finished run below `root` is whole and agrees with its manifest; follow links.

    A folder that cannot be read is a failed check. Raise UserError where `root` is no folder or holds no finished run.
    """
    if not root.is_dir():
        raise UserError(f"{root}: no such folder")
    lost: list[tuple[Path, OSError]] = []
    manifests = below(root, "run.json", lambda path, error: lost.append((path, error)))
    if not manifests:
        unseen = "".join(f"; {path}: {error.strerror}" for path, error in lost)
        raise UserError(f"{root}: holds no finished run (no run.json){unseen}")
    for path, error in lost:
        yield timed(str(path), partial(CheckOutcome, False, f"not looked into: {error.strerror}"))
    for path in manifests:
        yield timed(str(path.parent), partial(_outcome, path.parent))


def _outcome(run: Path) -> CheckOutcome:
    found = tuple(problems(run))
    return CheckOutcome(not found, found[0] if found else "whole", found[1:])


def problems(run: Path) -> Iterator[str]:
    """Return what is wrong with a finished run, a line for each problem."""
    try:
        record = read_manifest(run / "run.json")
        config = parse_run_config(record["config"], where=str(run / "run.json"))
        table = read_curves(run / "curves.parquet")
        stated = load_run_config(run / "config.json")
    except (OSError, ValueError, UserError) as error:
        yield f"cannot be read: {' '.join(str(error).split())}"
        return
    if record.get("fingerprint") != (expected := fingerprint_of(record["config"])):
        yield f"run.json: fingerprint {record.get('fingerprint')} is not that of its configuration ({expected})"
    if stated != config:
        yield "config.json differs from the configuration in run.json"
    if lost := record.get("records_lost_bytes"):
        yield f"run.json: {lost:,} bytes of records were lost while it trained; the curves have a gap"
    yield from _curve_problems(table, record, config)
    if config.population:
        yield from lineage_problems(run, config.population.size)


def _curve_problems(table: pd.DataFrame, record: dict[str, Any], config: RunConfig) -> Iterator[str]:
    for name in (*COUNTS, "seconds"):
        if not table[table.metric == "episodes"][name].is_monotonic_increasing:
            yield f"curves.parquet: {name} runs backwards"
    single = table[~table.metric.str.startswith("evaluation_")]
    if (twice := single[single.duplicated(["env_frames", "metric"])]).size:
        first = twice.iloc[0]
        yield f"curves.parquet: metric '{first.metric}' has two values at {first.env_frames} env_frames"
    if not (table.value.abs() <= LARGEST).all():
        yield f"curves.parquet: holds values that are not finite, or beyond {LARGEST:g}"
    if record["env_frames"] < config.env_frames:
        yield f"run.json: {record['env_frames']:,} frames, below the budget of {config.env_frames:,}"
    tasks, wanted = registry.tasks_of(evaluated_environment(config)["name"]), config.evaluation.final_episodes
    for metric in [metric_of("evaluation_return", task) for task in tasks] if len(tasks) > 1 else ["evaluation_return"]:
        final = table[(table.metric == metric) & (table.env_frames == record["env_frames"])]
        if len(final) != wanted:
            yield f"curves.parquet: {len(final)} final episodes ({metric}); the configuration asks for {wanted}"
