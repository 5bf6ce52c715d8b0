"""Runs as Python objects: train one, read one (`ddrl.train`, `ddrl.load_run`)."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from ddrl.analysis.runs import run_data
from ddrl.api import arguments, launch
from ddrl.api.settings import check_task, run_config, run_directory
from ddrl.environments.base import registry
from ddrl.errors import UserError
from ddrl.system.allocator import keep_freed_memory
from ddrl.system.signals import newest_checkpoint
from ddrl.training.builder import evaluated_environment
from ddrl.training.config.overrides import merged, nested
from ddrl.training.config.run_config import RunConfig, load_run_config, to_json
from ddrl.training.records import finished, recorder
from ddrl.training.records.task_scores import metric_of

if TYPE_CHECKING:
    import pandas as pd

CALLER = "ddrl.train"


@dataclass(frozen=True)
class Run:
    """A run in its directory: configuration, curves, manifest and score. It is read from files when it is asked for."""

    directory: Path
    """Where everything of the run is."""

    @cached_property
    def config(self) -> RunConfig:
        """The complete configuration."""
        return load_run_config(self.directory / "config.json")

    @property
    def is_finished(self) -> bool:
        """Return whether the run has reached its budget and was evaluated."""
        return finished.record_of(self.directory) is not None

    @cached_property
    def manifest(self) -> Mapping[str, Any]:
        """The manifest `run.json`: commit, packages, hardware, frames, seconds. Raise UserError before the end."""
        self._check_finished()
        return run_data.read_manifest(self.directory / "run.json")

    @property
    def curves(self) -> pd.DataFrame:
        """Everything recorded so far, one row per value.

        The columns are `env_frames`, `agent_steps`, `updates`, `seconds`, `metric` and `value`. Metrics are such as
        `episode_return` (the mean of the episodes since the last record) and `evaluation_return` (one row an episode).
        """
        if self.is_finished:
            return run_data.read_curves(self.directory / "curves.parquet")
        path = self.directory / "curves.jsonl"
        if not path.exists():
            raise UserError(f"{path}: no such file; nothing is recorded yet")
        return recorder.read_curves(path)

    @property
    def final_returns(self) -> dict[str, float]:
        """Task -> mean raw return of the final evaluation. Raise UserError before the end."""
        self._check_finished()
        tasks = registry.tasks_of(evaluated_environment(self.config)["name"])
        curves = self.curves
        found = {}
        for task in tasks:
            metric = metric_of("evaluation_return", task) if len(tasks) > 1 else "evaluation_return"
            rows = curves[curves["metric"] == metric]
            if len(rows):  # a suite's task whose environment failed has none
                found[task] = float(rows["value"][rows["env_frames"] == rows["env_frames"].max()].mean())
        return found

    @property
    def final_return(self) -> float:
        """The mean raw return of the final evaluation; of a suite, the mean over its tasks."""
        returns = self.final_returns
        return sum(returns.values()) / len(returns)

    def _check_finished(self) -> None:
        if not self.is_finished:
            raise UserError(f"{self.directory}: the run has not finished")

    def __repr__(self) -> str:
        config = self.config
        state = f"final return {self.final_return:.2f}" if self.is_finished else "not finished"
        return (
            f"Run({config.algorithm} on {config.environment['name']}, seed {config.seed}, "
            f"{config.env_frames:,} frames, {state}, {str(self.directory)!r})"
        )


AnyRun: TypeAlias = Run | str | os.PathLike[str]
"""A run, or the path of its directory."""


def directory_of(run: AnyRun, name: str) -> Path:
    """Return the directory of a run; `name` is that of the argument. Raise UserError where there is none."""
    directory = run.directory if isinstance(run, Run) else arguments.path(name, run, " of a run's directory, or a run")
    if not directory.is_dir():
        raise UserError(f"{directory}: no such folder")
    if not (directory / "config.json").exists():
        raise UserError(f"{directory}: holds no run (no config.json)")
    return directory


@arguments.one_line()
def load_run(directory: str | os.PathLike[str]) -> Run:
    """Return the run of a directory, finished or not.

    Args:
        directory: a run directory, such as `runs/impala/atari/pong/1-1`.

    Raises:
        UserError: the directory holds no run.
    """
    return Run(directory_of(directory, "ddrl.load_run: directory"))


@arguments.one_line()
def train(
    algorithm: str | None = None,
    environment: str | Mapping[str, Any] | None = None,
    *,
    config: str | os.PathLike[str] | Mapping[str, Any] | RunConfig | None = None,
    directory: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    progress: bool = True,
    **settings: Any,
) -> Run:
    """Train an algorithm on a task, and return the run. It does what `ddrl train` does.

    The same call continues a run that was interrupted. Ctrl-C ends a run after a checkpoint.

    Args:
        algorithm: such as `"impala"`; `ddrl list algorithms` has them all.
        environment: `"prefix/task"`, such as `"gymnasium/CartPole-v1"`, or a mapping with `name` and options.
        config: a configuration instead of, or beside, an algorithm and a task: a YAML or JSON file, a mapping of keys,
            or the `config` of another run.
        directory: the run directory. Left out, it is `runs/<algorithm>/<task>/<seed>-<n>`.
        overwrite: remove another run that has finished in `directory`.
        progress: show how far the run is, on standard error.
        **settings: keys of the configuration, such as `env_frames=100_000`, `seed=3`,
            `hyperparameters={"unroll_length": 10}`, or dotted ones, such as
            `**{"hyperparameters.optimizer.learning_rate": 3e-4}`.

    Returns:
        The run, which has finished.

    Raises:
        UserError: a key, a name or a value is not allowed, or another run has finished in `directory`.
        KeyboardInterrupt: the run was interrupted; its checkpoint, if there is one yet, is in the directory.
    """
    overwrite = arguments.flag(f"{CALLER}: overwrite", overwrite)
    progress = arguments.flag(f"{CALLER}: progress", progress)
    _check_call(algorithm, environment)
    given: dict[str, Any] = {}
    for key, value in settings.items():
        given = merged(given, nested(key, arguments.plain(value)))
    source = None if config is None else _source(config)
    if source is None and (algorithm is None or environment is None):
        raise UserError(f'{CALLER}: name an algorithm and a task, such as train("impala", "atari/pong"), or a config')
    task = arguments.plain(environment)
    found = run_config(CALLER, given, algorithm=algorithm, environment=task, config=source)
    file = source if isinstance(source, Path) else None
    check_task(found, file or CALLER)
    path = run_directory(found, file) if directory is None else arguments.path(f"{CALLER}: directory", directory)
    if overwrite:
        finished.remove(found, path)
    keep_freed_memory()
    threads = torch.get_num_threads()
    try:
        reason = launch.train(found, path, quiet=not progress, named=not progress or directory is not None)
    finally:
        torch.set_num_threads(threads)
    if reason == "interrupted":
        saved = newest_checkpoint(path) is not None
        how = "after a checkpoint; the same call goes on" if saved else "before a checkpoint; the call begins anew"
        raise KeyboardInterrupt(f"{path}: interrupted {how}")
    return Run(path)


def _check_call(algorithm: object, environment: object) -> None:
    """Raise UserError outside of the main thread, and for what names no algorithm or task, such as an environment."""
    if threading.current_thread() is not threading.main_thread():
        raise UserError(
            f"{CALLER} must be called in the main thread, because it handles signals; elsewhere start `ddrl train`"
        )
    if not isinstance(algorithm, str | None):
        raise arguments.refused(f"{CALLER}: algorithm", "a name such as 'impala'", algorithm)
    if not isinstance(environment, str | Mapping | None):
        raise arguments.refused(
            f"{CALLER}: environment",
            "a name such as 'gymnasium/CartPole-v1', or a mapping with `name` and options",
            environment,
        )


def _source(config: str | os.PathLike[str] | Mapping[str, Any] | RunConfig) -> Path | Mapping[str, Any]:
    if isinstance(config, RunConfig):
        return to_json(config)
    if isinstance(config, Mapping):
        plain: Mapping[str, Any] = arguments.plain(config)
        return plain
    return arguments.path(f"{CALLER}: config", config, " of a file, a mapping of keys, or the `config` of a run")
