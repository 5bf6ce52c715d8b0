"""Central inference under runtime ray: environments in processes of their own, which stream to the learner."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import psutil
import pytest

from ddrl.api.launch import train
from ddrl.cli.commands import INTERRUPTED
from ddrl.training.config.run_config import parse_run_config
from tests.runs import BASE, config, curves, merged
from tests.runtimes.ray import clusters
from tests.runtimes.ray.kill_test import LONG, assert_whole

pytestmark = pytest.mark.slow

CENTRAL = {"runtime": "ray", "inference": "central"}


def test_a_run_reaches_its_budget_and_records_what_crosses_the_wire(tmp_path: Path, holder: psutil.Process) -> None:
    topology = CENTRAL | {"num_learners": 2, "num_actors": 2, "envs_per_actor": 4, "queue_capacity": 4}
    assert train(config(topology=topology, env_frames=3000), tmp_path, quiet=True) == "budget_reached"
    table = curves(tmp_path)
    assert table.env_frames.max() >= 3000
    assert table[table.metric == "policy_lag_max"].value.max() >= 1
    assert table[table.metric == "episodes"].value.iloc[-1] > 300 * 0.9  # of all learners' actors: nine steps each
    sent = table[table.metric == "wire_bytes_per_frame_to_learner"].value
    assert (sent > 4 * 50).all()  # a float32 observation of 50 numbers, and little else
    assert (sent < 4 * 50 + 200).all()
    clusters.wait_until(
        lambda: not clusters.workers(holder, "ActorProcess") + clusters.workers(holder, "LearnerProcess")
    )


def test_the_synchronous_schedule_has_no_lag(tmp_path: Path, holder: psutil.Process) -> None:
    topology = CENTRAL | {"schedule": "synchronous", "num_actors": 2, "envs_per_actor": 4}
    train(config(topology=topology), tmp_path, quiet=True)
    table = curves(tmp_path)
    assert table[table.metric == "policy_lag_max"].value.max() == 0


@pytest.mark.system
def test_workers_that_are_killed_are_replaced_and_a_learner_that_is_killed_goes_on_from_its_checkpoint(
    tmp_path: Path, holder: psutil.Process, capfd: pytest.CaptureFixture[str]
) -> None:
    def kill() -> None:
        clusters.wait_until(lambda: clusters.lines(tmp_path) > 3)
        first = set(clusters.workers(holder, "ActorProcess"))
        for worker in first:
            worker.send_signal(signal.SIGKILL)
        clusters.wait_until(lambda: len(set(clusters.workers(holder, "ActorProcess")) - first) == len(first))
        before = clusters.lines(tmp_path)
        clusters.wait_until(lambda: clusters.lines(tmp_path) > before + 3)
        clusters.workers(holder, "LearnerProcess")[-1].send_signal(signal.SIGKILL)

    killer = clusters.meanwhile(kill)
    chosen = config(topology=CENTRAL | {"num_actors": 2, "envs_per_actor": 4, "queue_capacity": 2}, **LONG)
    assert train(chosen, tmp_path) == "budget_reached"
    killer.join()
    run = json.loads((tmp_path / "run.json").read_text())
    assert (run["actor_restarts"], run["resumes"]) == (2, 1)
    assert_whole(tmp_path, chosen.env_frames)
    shown = capfd.readouterr().err
    assert "a new one takes its place" in shown and "the learner died" in shown
    # Episodes that the killed workers had begun are no episodes: what ended has the length of a game of Catch.
    table = curves(tmp_path)
    assert (table[table.metric == "episode_length"].value == 9).all()


@pytest.mark.system
def test_an_own_cluster_is_interrupted_resumed_and_leaves_nothing(tmp_path: Path) -> None:
    values = merged(BASE, LONG | {"env_frames": 100_000, "topology": CENTRAL})
    process = clusters.start(values, tmp_path, RAY_ADDRESS="")
    clusters.wait_for_lines(process, tmp_path, 3)
    family = psutil.Process(process.pid).children(recursive=True)
    (learner,) = [one for one in family if one.name().startswith("ray::LearnerProcess")]
    workers = [one for one in family if one.name().startswith("ray::ActorProcess")]
    assert [has_torch(one) for one in [learner, *workers]] == [True] + [False] * BASE["topology"]["num_actors"]
    sockets = [one.laddr for one in learner.net_connections("unix") if str(one.laddr).endswith("/inference-0")]
    assert sockets  # one machine: no port is open
    assert (Path(sockets[0]).parent.stat().st_mode & 0o777) == 0o700
    process.send_signal(signal.SIGTERM)
    error = process.ended(60)
    assert process.returncode == INTERRUPTED, error
    assert "lost its learner" not in error
    assert psutil.wait_procs(family, timeout=30)[1] == []
    assert not Path(sockets[0]).parent.exists()
    reached = clusters.frames(tmp_path)
    resumed = parse_run_config(merged(values, {"env_frames": reached + 500}))
    (tmp_path / "config.json").unlink()
    assert train(resumed, tmp_path, quiet=True) == "budget_reached"
    assert json.loads((tmp_path / "run.json").read_text())["resumes"] == 1


def has_torch(process: psutil.Process) -> bool:
    """Whether the process has loaded its library."""
    return any("libtorch" in part.path for part in process.memory_maps())
