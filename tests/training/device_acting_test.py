"""Whole runs that act on their device: on the CPU the same numbers as on the host, and on a GPU no step that waits."""

from __future__ import annotations

from dataclasses import replace
from functools import partialmethod
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from ddrl.api.launch import train
from ddrl.learners.core import LearnerCore
from ddrl.system.config_differences import flatten
from ddrl.training.config.run_config import fingerprint, to_json
from ddrl.training.device import resolve_device
from ddrl.training.run import Run
from ddrl.types import Unroll
from tests import tensor_games
from tests.runs import base_of, config, curves, local_run, merged

SYNCHRONOUS = {"schedule": "synchronous", "num_actors": 1, "envs_per_actor": 8}
ON_DEVICE = SYNCHRONOUS | {"acting": "device"}
ALGORITHMS = ("ppo", "impala", "appo", "a2c")


def run_of(algorithm: str, topology: dict[str, Any], **overrides: Any) -> Any:
    return config(**merged(base_of(algorithm), {"topology": topology} | overrides))


def same(first: Path, second: Path, *, but: tuple[str, ...] = ()) -> None:
    tables = [curves(path) for path in (first, second)]
    pd.testing.assert_frame_equal(*(table[~table.metric.isin(but)].reset_index(drop=True) for table in tables))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_run_has_the_same_numbers_as_on_the_host(tmp_path: Path, algorithm: str) -> None:
    for acting in ("host", "device"):
        chosen = run_of(algorithm, ON_DEVICE | {"acting": acting})
        assert train(chosen, tmp_path / acting, quiet=True) == "budget_reached"
    same(tmp_path / "host", tmp_path / "device")


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["serial", "threads"])
def test_several_actors_and_either_runtime_have_the_same_numbers(tmp_path: Path, runtime: str) -> None:
    several = {"num_actors": 2, "envs_per_actor": 4, "runtime": runtime}
    for acting in ("host", "device"):
        chosen = run_of("ppo", ON_DEVICE | several | {"acting": acting}, evaluation={"period_frames": None})
        train(chosen, tmp_path / acting, quiet=True)
    but = ("episodes", "episode_return", "episode_length") if runtime == "threads" else ()
    same(tmp_path / "host", tmp_path / "device", but=but)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_learner_reads_what_the_collector_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    run = local_run(run_of(algorithm, ON_DEVICE), tmp_path, quiet=True)
    made: list[Unroll] = []
    taken: list[Unroll] = []
    (collector,) = run.collectors
    collect, take = collector.collect, LearnerCore.take

    def noted(core: Any) -> Unroll:
        taken.append(take(core))
        return taken[-1]

    def collected(*arguments: Any, **options: Any) -> Unroll:
        made.append(collect(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(collector, "collect", collected)
    monkeypatch.setattr(LearnerCore, "take", noted)
    run.run_roles()
    run.close()
    assert len(taken) > 10
    for own, its in zip(made, taken, strict=False):
        assert own.observation.data_ptr() == its.to(run.builder.device).observation.data_ptr()
        assert own.action.data_ptr() == its.action.data_ptr()


@pytest.mark.parametrize("tensors", [False, True])
@pytest.mark.parametrize("algorithm", ["ppo", "appo"])
def test_an_interrupted_run_resumes_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str, tensors: bool
) -> None:
    if tensors:
        tensor_games.offer(monkeypatch)
    chosen = run_of(algorithm, ON_DEVICE | {"num_actors": 2, "envs_per_actor": 4})
    train(chosen, tmp_path / "whole", quiet=True)
    learn = Run._learn

    def interrupted(run: Run, *, after: int) -> None:
        learn(run)
        if run.learner.core.updates == after:
            run.interrupt()

    for after in (7, 20, 33):
        monkeypatch.setattr(Run, "_learn", partialmethod(interrupted, after=after))
        assert train(chosen, tmp_path / "cut", quiet=True) == "interrupted"
    monkeypatch.setattr(Run, "_learn", learn)
    assert train(chosen, tmp_path / "cut", quiet=True) == "budget_reached"
    same(tmp_path / "whole", tmp_path / "cut")


def test_environments_that_speak_tensors_train_as_those_that_speak_numpy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = run_of("ppo", ON_DEVICE)
    train(chosen, tmp_path / "arrays", quiet=True)
    made: list[tensor_games.TensorGames] = []
    tensor_games.offer(monkeypatch, made)
    train(chosen, tmp_path / "tensors", quiet=True)
    assert len(made) == 1
    same(tmp_path / "arrays", tmp_path / "tensors")


def test_runs_on_the_host_keep_their_files_and_names() -> None:
    host, device = run_of("ppo", SYNCHRONOUS), run_of("ppo", ON_DEVICE)
    assert "topology.acting" not in flatten(to_json(host))
    assert flatten(to_json(device))["topology.acting"] == "device"
    assert fingerprint(host) == fingerprint(replace(device, topology=replace(device.topology, acting="host")))
    assert fingerprint(host) != fingerprint(device)


@pytest.mark.gpu
@pytest.mark.parametrize("algorithm", ["ppo", "impala", "appo"])
@pytest.mark.parametrize("task", ["toy/catch", "toy/track"])
def test_on_a_gpu_no_step_waits_for_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str, task: str
) -> None:
    tensor_games.offer(monkeypatch)
    run = local_run(run_of(algorithm, ON_DEVICE, environment={"name": task}, device="cuda"), tmp_path, quiet=True)
    (collector,) = run.collectors
    collector.collect(5, values=[], last_value=False)  # libraries are loaded, and memory is there
    count = collector._count
    modes: list[str | int] = []

    def outside(*arguments: Any) -> None:
        torch.cuda.set_sync_debug_mode("default")
        count(*arguments)

    monkeypatch.setattr(collector, "_check", lambda unroll: modes.append(torch.cuda.get_sync_debug_mode()))
    monkeypatch.setattr(collector, "_count", outside)
    torch.cuda.set_sync_debug_mode("error")
    try:
        unroll = collector.collect(32, values=[], last_value=False)
    finally:
        torch.cuda.set_sync_debug_mode("default")
        run.close()
    assert modes == [2]
    assert {part.device.type for part in unroll.tensors if part.numel()} == {"cuda"}


@pytest.mark.gpu
@pytest.mark.parametrize("tensors", [False, True])
def test_on_a_gpu_a_run_learns_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tensors: bool) -> None:
    if tensors:
        tensor_games.offer(monkeypatch)
    assert resolve_device("cuda").type == "cuda"
    learning = {"unroll_length": 32, "batch_size": 64, "num_minibatches": 4, "num_epochs": 4, "entropy_cost": 0.01}
    chosen = run_of(
        "ppo",
        ON_DEVICE | {"num_actors": 2, "envs_per_actor": 32},
        hyperparameters=learning | {"optimizer": {"learning_rate": 1e-3}},
        env_frames=150_000,
        device="cuda",
        recording={"period_frames": 5000},
        checkpoint={"period_frames": 50_000},
    )
    learn = Run._learn

    def interrupted(run: Run) -> None:
        learn(run)
        if run.learner.core.updates == 30:
            run.interrupt()

    monkeypatch.setattr(Run, "_learn", interrupted)
    assert train(chosen, tmp_path, quiet=True) == "interrupted"
    monkeypatch.setattr(Run, "_learn", learn)
    assert train(chosen, tmp_path, quiet=True) == "budget_reached"
    returns = curves(tmp_path).query("metric == 'episode_return'").value
    assert returns.iloc[-5:].mean() > 0.8 > 0.0 > returns.iloc[0]
