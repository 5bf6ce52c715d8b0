"""Runtime ray: whichever of its processes is killed, the run reaches its budget and its curve has no gap."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from ddrl.api.launch import train
from ddrl.cli.commands import INTERRUPTED
from ddrl.training.config.run_config import parse_run_config
from tests.runs import BASE, config, curves, merged
from tests.runtimes.ray import clusters

RAY = {"runtime": "ray"}
LONG = {"env_frames": 6_000, "recording": {"period_frames": 100}, "evaluation": {"period_frames": None}}

AGENTS_SECONDS = 150.0
"""Ray's two agents of a node try for 60 seconds to tell the head that the node is gone, even if the head is as well."""


@pytest.fixture(scope="module", autouse=True)
def orphans() -> list[psutil.Process]:
    """All that a cluster had started when its process was killed, before the other tests of this file: they take as
    long as these processes need to notice."""
    with clusters.held_cluster() as (holder, _):
        family = holder.children(recursive=True)
        assert len([child for child in family if "Agent" in child.cmdline()[0]]) == 2
        holder.send_signal(signal.SIGKILL)
    return family


def assert_whole(directory: Path, budget: int) -> None:
    """The counts of a curve only grow, its records follow one another in time, and the last is at the budget."""
    table = curves(directory)
    for name in ("env_frames", "agent_steps", "updates"):
        assert table[name].is_monotonic_increasing
    frames = table[table.metric == "episodes"].env_frames
    assert not frames.duplicated().any()
    assert frames.diff().max() <= 2 * LONG["recording"]["period_frames"]
    assert frames.iloc[0] <= 2 * LONG["recording"]["period_frames"]
    assert frames.iloc[-1] >= budget


@pytest.mark.system
def test_actors_that_are_killed_are_replaced(
    tmp_path: Path, holder: psutil.Process, capfd: pytest.CaptureFixture[str]
) -> None:
    def kill() -> None:
        clusters.wait_until(lambda: clusters.lines(tmp_path) > 3)
        for actor in clusters.workers(holder, "ActorProcess"):  # of every learner
            actor.send_signal(signal.SIGKILL)

    killer = clusters.meanwhile(kill)
    topology = RAY | {"schedule": "synchronous", "num_actors": 2, "envs_per_actor": 4, "num_learners": 2}
    assert train(config(topology=topology, **LONG), tmp_path) == "budget_reached"
    killer.join()
    assert json.loads((tmp_path / "run.json").read_text())["actor_restarts"] == 2
    shown = capfd.readouterr().err
    assert "actor" in shown and "a new one takes its place" in shown
    lag = curves(tmp_path).query("metric == 'policy_lag_max'").value
    assert lag.max() == 0  # the schedule holds across the restart


@pytest.mark.system
@pytest.mark.parametrize(
    ("learners", "number", "topology"),
    [
        (1, signal.SIGKILL, {}),
        (2, signal.SIGSEGV, {}),
        (2, signal.SIGKILL, {"schedule": "synchronous", "preemption": {"threshold": 0.5}}),
    ],
    ids=["one", "of two", "of two whose actors are preempted"],
)
def test_a_learner_that_is_killed_goes_on_from_its_checkpoint(
    tmp_path: Path,
    holder: psutil.Process,
    capfd: pytest.CaptureFixture[str],
    learners: int,
    number: signal.Signals,
    topology: dict[str, Any],
) -> None:
    def kill() -> None:
        clusters.wait_until(lambda: len(list((tmp_path / "checkpoints").glob("**/*.sha256"))) >= 2 * learners)
        clusters.workers(holder, "LearnerProcess")[-1].send_signal(number)

    killer = clusters.meanwhile(kill)
    chosen = config(topology=RAY | {"num_learners": learners, "queue_capacity": 2} | topology, **LONG)
    assert train(chosen, tmp_path) == "budget_reached"
    killer.join()
    run = json.loads((tmp_path / "run.json").read_text())
    assert run["resumes"] == 1
    assert run["history"][1]["env_frames"] >= 300
    assert_whole(tmp_path, chosen.env_frames)
    shown = capfd.readouterr().err
    assert "the learner died" in shown and "resumed at" in shown
    if number is signal.SIGSEGV:
        assert "Segmentation fault" in shown  # its own last words


@pytest.mark.system
def test_a_run_whose_processes_all_get_sigterm_at_once_saves_a_checkpoint_and_is_resumed_on_another_cluster(
    tmp_path: Path, holder: psutil.Process
) -> None:
    values = merged(BASE, LONG | {"env_frames": 100_000, "checkpoint": {"period_frames": 10**8}, "topology": RAY})
    process = clusters.start(values, tmp_path, RAY_ADDRESS="")
    clusters.wait_for_lines(process, tmp_path, 3)
    family = psutil.Process(process.pid).children(recursive=True)
    for one in [psutil.Process(process.pid), *family]:  # as SLURM does, of which the job's every process is one
        one.send_signal(signal.SIGTERM)
    error = process.ended(60)
    assert process.returncode == INTERRUPTED, error
    assert len(list((tmp_path / "checkpoints").glob("*.sha256"))) == 1
    assert psutil.wait_procs(family, timeout=30)[1] == []
    longer = values | {"env_frames": clusters.frames(tmp_path) + 500}
    again = clusters.start(longer, tmp_path)  # joins the cluster of `holder`
    error = again.ended(120)
    assert again.returncode == 0, error
    assert "resumed at" in error


@pytest.mark.system
def test_a_run_whose_supervisor_is_killed_is_completed_by_the_same_command(
    tmp_path: Path,
) -> None:
    values = merged(BASE, LONG | {"env_frames": 4000, "topology": RAY})
    process = clusters.start(values, tmp_path, RAY_ADDRESS="")
    clusters.wait_for_lines(process, tmp_path, 3)
    clusters.wait_until(lambda: any((tmp_path / "checkpoints").glob("*.sha256")))
    family = psutil.Process(process.pid).children(recursive=True)
    folders = clusters.own_folders(family)
    family = [child for child in family if "Agent" not in child.cmdline()[0]]
    assert len(family) >= 5 and folders  # head, node, three roles
    process.send_signal(signal.SIGKILL)
    process.ended(60)
    assert process.returncode == -signal.SIGKILL
    process = clusters.start(values, tmp_path, RAY_ADDRESS="")
    clusters.wait_until(lambda: bool(clusters.workers(psutil.Process(process.pid), "LearnerProcess")))
    second = psutil.Process(process.pid).children(recursive=True)
    folders |= clusters.own_folders(second)
    error = process.ended(150)
    assert process.returncode == 0, error
    assert "resumed at" in error
    assert [line for line in error.splitlines() if "Ray" in line or "ray" in line] == []
    assert psutil.wait_procs([*family, *second], timeout=30)[1] == []
    assert len(folders) == 2 and not any(folder.exists() for folder in folders)
    assert json.loads((tmp_path / "run.json").read_text())["resumes"] == 1
    assert_whole(tmp_path, parse_run_config(values).env_frames)


@pytest.mark.system
def test_a_cluster_whose_process_is_killed_leaves_no_process(orphans: list[psutil.Process]) -> None:
    assert psutil.wait_procs(orphans, timeout=AGENTS_SECONDS)[1] == []
