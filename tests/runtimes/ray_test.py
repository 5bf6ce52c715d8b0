"""Runtime ray: the same results as serial, and what happens when a part of it fails."""

from __future__ import annotations

import json
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest

from ddrl import algorithms, run_ray
from ddrl.commands import INTERRUPTED
from ddrl.config import parse_run_config
from ddrl.coordinator import cluster
from ddrl.errors import UserError
from ddrl.run import train
from tests.runs import BASE, config, curves, merged
from tests.runtimes import clusters
from tests.runtimes.crash import raising_actor, vanishing_actor

RAY = {"runtime": "ray"}
EVERY_UPDATE = {
    "recording": {"period_frames": 1},
    "evaluation": {"period_frames": None, "final_episodes": 4},
    "env_frames": 600,
}
SYNCHRONOUS = {"schedule": "synchronous", "num_actors": 2, "envs_per_actor": 4}
LONG = {"env_frames": 12_000, "recording": {"period_frames": 100}, "evaluation": {"period_frames": None}}
BUDGETS: dict[str, Any] = {
    "impala": {},
    "ppo": {"num_epochs": 2, "num_minibatches": 2},
    "impact": {"num_slots": 2, "num_traversals": 2},
}


@pytest.fixture(scope="module")
def holder() -> Iterator[psutil.Process]:
    """A cluster that the runs of this file join."""
    with clusters.held_cluster() as (process, variables), pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield process


def settings(algorithm: str) -> dict[str, Any]:
    """Small settings of an algorithm, for toy/catch."""
    return {"network": "mlp", "unroll_length": 5, "batch_size": 8} | BUDGETS[algorithm]


def learned(directory: Path) -> pd.DataFrame:
    """What the learner recorded; an episode may end before or after the record of an update."""
    table = curves(directory)
    table = table[~table.metric.isin(["episode_return", "episode_length", "episodes"])]
    return table[["env_frames", "agent_steps", "updates", "metric", "value"]].reset_index(drop=True)


def meanwhile(action: Callable[[], None]) -> threading.Thread:
    """Does something while the main thread trains."""
    thread = threading.Thread(target=action)
    thread.start()
    return thread


@pytest.mark.parametrize("algorithm", sorted(algorithms.NAMES))
def test_synchronous_ray_and_serial_agree_bit_for_bit(tmp_path: Path, holder: psutil.Process, algorithm: str) -> None:
    base = merged(BASE, EVERY_UPDATE | {"algorithm": algorithm}) | {"hyperparameters": settings(algorithm)}
    for runtime in ("serial", "ray"):
        values = merged(base, {"topology": SYNCHRONOUS | {"runtime": runtime}})
        assert train(parse_run_config(values), tmp_path / runtime, quiet=True) == "budget_reached"
    pd.testing.assert_frame_equal(learned(tmp_path / "serial"), learned(tmp_path / "ray"))


def test_an_asynchronous_run_records_its_lag_reaches_its_budget_and_leaves_the_cluster(
    tmp_path: Path, holder: psutil.Process
) -> None:
    chosen = config(topology=RAY | {"num_actors": 3, "queue_capacity": 8}, env_frames=4000)
    assert train(chosen, tmp_path, quiet=True) == "budget_reached"
    table = curves(tmp_path)
    assert table.env_frames.max() >= 4000
    assert table[table.metric == "policy_lag_max"].value.max() >= 1
    assert table[table.metric == "episodes"].value.iloc[-1] > 100
    assert len(table[table.metric == "evaluation_return"]) >= chosen.evaluation.final_episodes
    clusters.wait_until(lambda: not clusters.workers(holder, "ActorHost") + clusters.workers(holder, "LearnerHost"))
    assert holder.is_running()


def test_two_learners_of_half_a_batch_equal_one_of_a_whole(tmp_path: Path, holder: psutil.Process) -> None:
    for learners in (1, 2):
        topology = SYNCHRONOUS | RAY | {"num_learners": learners}
        train(config(topology=topology, **EVERY_UPDATE), tmp_path / str(learners), quiet=True)
    one, two = learned(tmp_path / "1"), learned(tmp_path / "2")
    first = one.updates <= 8  # rounding apart, they act alike until one action differs
    pd.testing.assert_frame_equal(one[first], two[two.updates <= 8], rtol=1e-4, atol=1e-6)
    assert two.env_frames.max() >= EVERY_UPDATE["env_frames"]


def test_an_actor_that_is_killed_is_replaced(
    tmp_path: Path, holder: psutil.Process, capfd: pytest.CaptureFixture[str]
) -> None:
    def kill() -> None:
        clusters.wait_until(lambda: clusters.lines(tmp_path) > 3)
        clusters.workers(holder, "ActorHost")[0].send_signal(signal.SIGKILL)

    killer = meanwhile(kill)
    assert train(config(topology=RAY | SYNCHRONOUS, **LONG), tmp_path) == "budget_reached"
    killer.join()
    assert json.loads((tmp_path / "run.json").read_text())["actor_restarts"] == 1
    shown = capfd.readouterr().err
    assert "actor" in shown and "a new one takes its place" in shown
    lag = curves(tmp_path).query("metric == 'policy_lag_max'").value
    assert lag.max() == 0  # the schedule holds across the restart


@pytest.mark.parametrize("learners", [1, 2])
def test_a_learner_that_is_killed_goes_on_from_its_checkpoint(
    tmp_path: Path, holder: psutil.Process, capfd: pytest.CaptureFixture[str], learners: int
) -> None:
    def kill() -> None:
        clusters.wait_until(lambda: len(list((tmp_path / "checkpoints").glob("**/*.sha256"))) >= 2 * learners)
        clusters.workers(holder, "LearnerHost")[-1].send_signal(signal.SIGKILL)

    killer = meanwhile(kill)
    chosen = config(topology=RAY | {"num_learners": learners, "queue_capacity": 2}, **LONG)
    assert train(chosen, tmp_path) == "budget_reached"
    killer.join()
    run = json.loads((tmp_path / "run.json").read_text())
    assert run["resumes"] == 1
    assert run["history"][1]["env_frames"] >= 300
    table = curves(tmp_path)
    for name in ("env_frames", "agent_steps", "updates"):
        assert table[name].is_monotonic_increasing
    shown = capfd.readouterr().err
    assert "the learner died" in shown and "resumed at" in shown


def test_an_environment_that_raises_ends_the_run_with_its_traceback_actor_and_seed(
    tmp_path: Path, holder: psutil.Process, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_ray, "act_alone", raising_actor)
    with pytest.raises(UserError) as caught:
        train(config(topology=RAY), tmp_path)
    message = str(caught.value)
    assert "\n" not in message
    for words in ("actor 1", "toy/catch", "environment seed ", "ArithmeticError", "the ball fell through"):
        assert words in message
    shown = capfd.readouterr().err
    assert "Traceback of another process" in shown and "crash.py" in shown and "\x1b" not in shown


def test_an_actor_that_dies_again_and_again_ends_the_run(
    tmp_path: Path, holder: psutil.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_ray, "act_alone", vanishing_actor)
    with pytest.raises(UserError, match=r"actor \d, .*died 3 times in a row"):
        train(config(topology=RAY | {"num_actors": 1}), tmp_path, quiet=True)


def test_a_learner_that_raises_ends_the_run_with_its_traceback(
    tmp_path: Path, holder: psutil.Process, capfd: pytest.CaptureFixture[str]
) -> None:
    chosen = config(topology=RAY, hyperparameters={"optimizer": {"learning_rate": 1e30}})
    with pytest.raises(ArithmeticError, match="diverged"):
        train(chosen, tmp_path)
    shown = capfd.readouterr().err
    assert "Traceback of another process" in shown and "gradients.py" in shown


def test_a_cluster_that_is_too_small_is_said_at_once(tmp_path: Path, holder: psutil.Process) -> None:
    with pytest.raises(UserError, match=r"8 CPUs.*num_actors"):
        train(config(topology=RAY | {"num_actors": 12}), tmp_path, quiet=True)


def test_an_own_cluster_is_interrupted_resumed_and_gone_while_another_stays(
    tmp_path: Path, holder: psutil.Process
) -> None:
    before = len(holder.children(recursive=True))
    values = merged(BASE, LONG | {"env_frames": 8000, "topology": RAY})
    process = clusters.start(values, tmp_path, RAY_ADDRESS="")
    clusters.wait_for_lines(process, tmp_path, 3)
    children = psutil.Process(process.pid).children(recursive=True)
    arguments = " ".join(argument for child in children for argument in child.cmdline())
    folders = {Path(found) for found in re.findall(r"/[\w/]+/ddrl-ray-[\w-]+", arguments)}
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=60)
    assert process.returncode == INTERRUPTED, error
    psutil.wait_procs(children, timeout=5)
    assert not [child for child in children if child.is_running()]
    assert folders and not any(folder.exists() for folder in folders)
    assert len(holder.children(recursive=True)) >= before
    process = clusters.start(values, tmp_path, RAY_ADDRESS="")
    _, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    assert "resumed at" in error
    assert [line for line in error.splitlines() if "Ray" in line or "ray" in line] == []


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "nowhere.invalid:6379", "ray://127.0.0.1:10001", "6379", "localhost:99999999"]
)
def test_an_address_that_cannot_be_reached_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    before = time.monotonic()
    with pytest.raises(UserError) as caught:
        train(config(topology=RAY), tmp_path, quiet=True)
    assert time.monotonic() - before < 15
    assert "RAY_ADDRESS" in str(caught.value) and address in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_server_that_is_no_cluster_is_told_apart(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def answer() -> None:
            connection, _ = server.accept()
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            connection.close()

        thread = meanwhile(answer)
        with pytest.raises(UserError, match="not the head of a Ray cluster"):
            cluster.check_reachable(f"127.0.0.1:{port}")
        thread.join()
