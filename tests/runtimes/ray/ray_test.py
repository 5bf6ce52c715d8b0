"""Runtime ray: the same results as serial, and what happens when a part of it fails."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pandas as pd
import psutil
import pytest
import ray
import torch
from ray.exceptions import ActorDiedError, ActorUnavailableError, OwnerDiedError, RayTaskError

from ddrl.api.launch import train
from ddrl.errors import Closed, NonFiniteError, UserError
from ddrl.runtimes.ray import actor_process, cluster, launch
from ddrl.runtimes.ray import supervisor as supervising
from ddrl.runtimes.ray.messages import Beside
from ddrl.runtimes.ray.process_group import ClusterGone, Plan, ProcessGroup, Who
from ddrl.system import temporary
from ddrl.training.config.run_config import parse_run_config
from ddrl.training.records import checkpoint
from tests.runs import BASE, GRADIENTS, VERSIONED, config, curves, merged, small
from tests.runtimes.crash import raising_actor, vanishing_actor
from tests.runtimes.ray import clusters, ranks

RAY = {"runtime": "ray"}
EVERY_UPDATE = {
    "recording": {"period_frames": 1},
    "evaluation": {"period_frames": None, "final_episodes": 4},
    "env_frames": 600,
}
SYNCHRONOUS = {"schedule": "synchronous", "num_actors": 2, "envs_per_actor": 4}
NORMALISED = ("impact", "ppo")
"""Those that normalise by running statistics, and are looked at where these have to travel."""


def learned(directory: Path) -> pd.DataFrame:
    """What the learner recorded; an episode may end before or after the record of an update."""
    table = curves(directory)
    table = table[~table.metric.isin(["episode_return", "episode_length", "episodes"])]
    return table[["env_frames", "agent_steps", "updates", "metric", "value"]].reset_index(drop=True)


@pytest.mark.parametrize("algorithm", sorted(set(VERSIONED) - set(NORMALISED)))
def test_synchronous_ray_and_serial_agree_bit_for_bit(tmp_path: Path, holder: psutil.Process, algorithm: str) -> None:
    base = merged(BASE, EVERY_UPDATE | {"algorithm": algorithm}) | {"hyperparameters": small(algorithm)}
    for runtime in ("serial", "ray"):
        values = merged(base, {"topology": SYNCHRONOUS | {"runtime": runtime}})
        assert train(parse_run_config(values), tmp_path / runtime, quiet=True) == "budget_reached"
    pd.testing.assert_frame_equal(learned(tmp_path / "serial"), learned(tmp_path / "ray"))


@pytest.mark.parametrize(("algorithm", "inference"), [("apex_dqn", "local"), ("r2d2", "central")])
def test_a_replay_is_filled_by_actors_in_other_processes(
    tmp_path: Path, holder: psutil.Process, algorithm: str, inference: str
) -> None:
    topology = RAY | {"inference": inference}
    values = merged(BASE, {"algorithm": algorithm, "topology": topology, "env_frames": 3000})
    values |= {"hyperparameters": small(algorithm)}
    assert train(parse_run_config(values), tmp_path, quiet=True) == "budget_reached"
    table = curves(tmp_path)
    assert table.env_frames.max() >= 3000
    last = table[table.updates == table.updates.max()].set_index("metric").value
    assert last["replay_samples_per_insert"] == pytest.approx(1.0, rel=0.05)
    assert last["replay_steps"] <= 800
    assert last["episodes"] > 100


@pytest.mark.parametrize("algorithm", GRADIENTS)
def test_gradients_of_actors_in_other_processes_are_applied_and_they_get_the_parameters_back(
    tmp_path: Path, holder: psutil.Process, algorithm: str
) -> None:
    values = merged(BASE, {"algorithm": algorithm, "topology": RAY | {"num_actors": 3, "envs_per_actor": 2}})
    values |= {"hyperparameters": small(algorithm), "evaluation": {"period_frames": None, "final_episodes": 4}}
    assert train(parse_run_config(values), tmp_path, quiet=True) == "budget_reached"
    table = pd.read_parquet(tmp_path / "curves.parquet")
    last = table.groupby("metric").value.last()
    steps, updates = table.agent_steps.max(), table.updates.max()
    assert steps / 10 <= updates <= steps / 5, "an update is a gradient of 5 steps of 2 environments, some of them dead"
    assert 0 < table[table.metric == "policy_lag_mean"].value.median() < 3
    assert last["episodes"] > 100
    network = 4 * json.loads((tmp_path / "run.json").read_text())["parameters"]
    sent, received = (last[f"wire_bytes_per_frame_{way}_learner"] for way in ("to", "from"))
    assert sent == pytest.approx(network / 10, rel=0.3), "a gradient an unroll"
    assert received == pytest.approx(network / 10, rel=0.3), "and the parameters, which others have moved on"


def test_trainers_beside_each_other_learn_from_environments_in_other_processes(
    tmp_path: Path, holder: psutil.Process
) -> None:
    topology = {"runtime": "ray", "inference": "central", "num_trainers": 2, "central": {"num_threads": 2}}
    values = merged(BASE, {"algorithm": "ga3c", "topology": topology, "env_frames": 3000})
    values |= {"hyperparameters": small("ga3c") | {"batch_size": 4}}
    assert train(parse_run_config(values), tmp_path, quiet=True) == "budget_reached"
    table = pd.read_parquet(tmp_path / "curves.parquet")
    last = table.groupby("metric").value.last()
    assert table.updates.max() >= table.agent_steps.max() / 20
    assert last["policy_lag_mean"] > 0
    assert last["episodes"] > 200
    assert last["worker_cpu_seconds"] > 0


@pytest.mark.parametrize("algorithm", NORMALISED)
def test_they_agree_as_well_where_actions_are_continuous_and_running_statistics_normalise(
    tmp_path: Path, holder: psutil.Process, algorithm: str
) -> None:
    normalised = {"observation_normalisation": True, "reward_normalisation": True}
    environment = {"name": "toy/track", "action_size": 2, "limit": 7}  # episodes end within unrolls
    base = merged(BASE, EVERY_UPDATE | {"algorithm": algorithm, "topology": SYNCHRONOUS})
    base |= {"environment": environment, "hyperparameters": small(algorithm) | normalised}
    for name, change in {
        "serial": {"topology": {"runtime": "serial"}},
        "ray": {"topology": {"runtime": "ray"}},
        "unlike": {"topology": {"runtime": "serial"}, "hyperparameters": dict.fromkeys(normalised, False)},
    }.items():
        assert train(parse_run_config(merged(base, change)), tmp_path / name, quiet=True) == "budget_reached"
    pd.testing.assert_frame_equal(learned(tmp_path / "serial"), learned(tmp_path / "ray"))
    assert not learned(tmp_path / "serial").equals(learned(tmp_path / "unlike"))


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
    clusters.wait_until(
        lambda: not clusters.workers(holder, "ActorProcess") + clusters.workers(holder, "LearnerProcess")
    )
    assert holder.is_running()


def test_a_run_interrupted_as_soon_as_its_learner_answers_goes_on(
    tmp_path: Path, holder: psutil.Process, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = parse_run_config(merged(BASE, EVERY_UPDATE | {"topology": RAY}))
    stopped = launch.train_with_ray(chosen, tmp_path, watch=lambda status: True)
    assert stopped == "interrupted"
    newest = max((tmp_path / "checkpoints").glob("*.pt"))
    frames = checkpoint.load(newest.parent, int(newest.stem))["learner"]["counters"][0]
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == f"stopped at {frames:,} frames, which are saved; the same command goes on from {newest}"
    assert train(chosen, tmp_path, quiet=True) == "budget_reached"
    assert json.loads((tmp_path / "run.json").read_text())["resumes"] == 1
    curve = learned(tmp_path)
    assert curve.env_frames.is_monotonic_increasing and not list(tmp_path.glob("checkpoints-*"))


def test_two_learners_of_half_a_batch_equal_one_of_a_whole(tmp_path: Path, holder: psutil.Process) -> None:
    for learners in (1, 2):
        topology = SYNCHRONOUS | RAY | {"num_learners": learners}
        train(config(topology=topology, **EVERY_UPDATE), tmp_path / str(learners), quiet=True)
    one, two = learned(tmp_path / "1"), learned(tmp_path / "2")
    first = one.updates <= 8  # rounding apart, they act alike until one action differs
    pd.testing.assert_frame_equal(one[first], two[two.updates <= 8], rtol=1e-4, atol=1e-6)
    assert two.env_frames.max() >= EVERY_UPDATE["env_frames"]


PREEMPTED = SYNCHRONOUS | RAY | {"num_learners": 2}


def test_a_threshold_that_no_actor_reaches_before_the_last_changes_no_bit(
    tmp_path: Path, holder: psutil.Process
) -> None:
    for name, preemption in (("without", None), ("all", {"threshold": 1.0})):
        topology = PREEMPTED | {"preemption": preemption}
        train(config(topology=topology, **EVERY_UPDATE), tmp_path / name, quiet=True)
    own = learned(tmp_path / "all")
    of_preemption = own.metric.isin(["live_fraction", "preempted_fraction"])
    assert set(own[own.metric == "preempted_fraction"].value) == {0.0}
    pd.testing.assert_frame_equal(learned(tmp_path / "without"), own[~of_preemption].reset_index(drop=True))


@pytest.mark.parametrize("inference", ["local", "central"])
def test_unrolls_end_early_and_two_learners_reach_the_budget(
    tmp_path: Path, holder: psutil.Process, inference: str
) -> None:
    topology = PREEMPTED | {"preemption": {"threshold": 0.5, "least_fraction": 0.25}, "inference": inference}
    values = merged(BASE, EVERY_UPDATE | {"algorithm": "ppo", "topology": topology})
    sizes = small("ppo") | {"unroll_length": 40, "weighting": "learners"}
    chosen = parse_run_config(values | {"hyperparameters": sizes, "env_frames": 4000})
    assert train(chosen, tmp_path, quiet=True) == "budget_reached"
    made = learned(tmp_path)
    whole = 40 * chosen.hyperparameters.batch_size
    collected = made.agent_steps.iloc[-1] / (made.updates.iloc[-1] * whole)
    assert 0.2 < collected < 0.88, "toy/catch has a dead step in ten, so a whole unroll has 0.9"
    means = made.groupby("metric").value.mean()
    assert means["live_fraction"] == pytest.approx(collected, abs=1e-6)
    assert 0.1 < means["preempted_fraction"] <= 1.0


def test_late_gradients_are_dropped_and_two_learners_reach_the_budget(tmp_path: Path, holder: psutil.Process) -> None:
    topology = PREEMPTED | {"required_gradients": 1}
    assert train(config(topology=topology, **EVERY_UPDATE), tmp_path, quiet=True) == "budget_reached"
    table = curves(tmp_path)
    late = table[table.metric == "late_gradients"].value
    assert len(late) > 10
    assert late.between(0, 1).all()


def test_an_environment_that_raises_ends_the_run_with_its_traceback_actor_and_seed(
    tmp_path: Path, holder: psutil.Process, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch, "act_alone", raising_actor)
    with pytest.raises(UserError) as caught:
        train(config(topology=RAY, env_frames=2**40), tmp_path)
    message = str(caught.value)
    assert "\n" not in message
    for words in ("actor 1", "toy/catch", "environment seed ", "ArithmeticError", "the ball fell through"):
        assert words in message
    shown = capfd.readouterr().err
    assert "Traceback of another process" in shown and "crash.py" in shown and "\x1b" not in shown


def test_an_actor_that_dies_again_and_again_ends_the_run(
    tmp_path: Path, holder: psutil.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "act_alone", vanishing_actor)
    with pytest.raises(UserError, match=r"actor \d, .*died 3 times in a row"):
        train(config(topology=RAY | {"num_actors": 1}), tmp_path, quiet=True)


def test_a_learner_that_raises_ends_the_run_with_its_traceback(
    tmp_path: Path, holder: psutil.Process, capfd: pytest.CaptureFixture[str]
) -> None:
    chosen = config(topology=RAY, hyperparameters={"optimizer": {"learning_rate": 1e30}})
    with pytest.raises(ArithmeticError, match="diverged"):
        train(chosen, tmp_path)
    shown = capfd.readouterr().err
    assert "Traceback of another process" in shown and "optimizers.py" in shown


def test_a_learner_that_raises_before_the_ranks_have_met_ends_the_run_at_once(
    tmp_path: Path, holder: psutil.Process, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch, "make_learner", ranks.missing_learner)
    with pytest.raises(ArithmeticError, match="rank 1 stays away"):
        train(config(topology=RAY | {"num_learners": 2}), tmp_path, quiet=True)
    assert "missing_learner" in capfd.readouterr().err  # a traceback is no progress: also shown when quiet


def test_a_cluster_that_is_too_small_is_said_at_once(tmp_path: Path, holder: psutil.Process) -> None:
    with pytest.raises(UserError, match=r"8 CPUs.*num_actors"):
        train(config(topology=RAY | {"num_actors": 12}), tmp_path, quiet=True)


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

        thread = clusters.meanwhile(answer)
        with pytest.raises(UserError, match="not the head of a Ray cluster"):
            cluster.check_reachable(f"127.0.0.1:{port}")
        thread.join()


# Parts of it alone, without a cluster --------------------------------------------------------------------------------


def plan(**changes: Any) -> Plan:
    """One learner and two actors that nobody makes."""
    values: dict[str, Any] = {
        "num_actors": 2,
        "num_learners": 1,
        "learner_threads": 1,
        "device": "cpu",
        "make_learner": None,
        "make_actor": None,
        "describe_actor": lambda index, generation: f"actor {index}",
        "newest_checkpoint": lambda: None,
        "folder": Path("/tmp/of-an-own-cluster"),
    }
    return Plan(**values | changes)


def noting(notes: list[str]) -> Any:
    """Return a display that adds to `notes` what it is told."""
    return SimpleNamespace(note=notes.append, complain=notes.append, show=lambda counts, latest: None)


def supervisor(notes: list[str]) -> supervising.RayRuntime:
    """Return what supervises that plan."""
    return supervising.RayRuntime(plan(), noting(notes))


GONE = RayTaskError("learn", "Traceback", ConnectionError("connection closed by peer"))
LOST = OwnerDiedError("00", b"", "")


@pytest.mark.parametrize("error", [GONE, ActorDiedError()], ids=["the survivor's error", "the death"])
def test_a_learner_s_death_is_recognised_whichever_news_of_it_comes_first(error: Exception) -> None:
    group = MagicMock()
    group.start.side_effect = error
    with pytest.raises(supervising._Died):
        supervisor([])._supervise(group)


def test_what_a_learner_raised_while_it_was_made_is_shown_in_full_without_colours() -> None:
    group = MagicMock()
    group.start.side_effect = ActorDiedError(RayTaskError("__init__", "\x1b[36mray\x1b[39m\n  no memory", None))
    group.last_words.return_value = ""
    with pytest.raises(supervising._Died) as caught:
        supervisor([])._supervise(group)
    assert "no memory" in caught.value.words and "\x1b" not in caught.value.words + str(caught.value)


@pytest.fixture
def headless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster whose head does not answer any more."""
    monkeypatch.setattr(cluster, "what_is_gone", lambda: "its head (GCS) at 127.0.0.1:1")
    monkeypatch.setattr(supervising, "what_is_gone", cluster.what_is_gone)
    monkeypatch.setattr(cluster, "PULSE_SECONDS", 0.0)
    monkeypatch.setattr(supervising, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(ray, "get", lambda reference: reference)
    monkeypatch.setattr(ray, "wait", lambda references, **_: ([], references))
    monkeypatch.setattr(supervising, "gpus_per_learner", lambda *_: 0.0)


def assert_gone(error: UserError) -> None:
    assert str(error) == (
        "the Ray cluster is gone: its head (GCS) at 127.0.0.1:1 does not answer; "
        "no checkpoint yet: the same command begins anew"
    )
    assert error.status == 75


@pytest.mark.parametrize("saves", [True, False], ids=["learners save", "learners are gone, too"])
def test_a_cluster_that_is_gone_ends_the_run_after_its_learners_have_saved(
    monkeypatch: pytest.MonkeyPatch, headless: None, saves: bool
) -> None:
    group = MagicMock()
    group.start.return_value = 0
    group.status.return_value = None
    group.next_ended.side_effect = lambda seconds: (
        (Who("learner", 0), "interrupted") if saves and group.interrupt.called else None
    )
    monkeypatch.setattr(supervising, "SAVING_SECONDS", 0.1)
    monkeypatch.setattr(supervising, "ProcessGroup", lambda *_: group)
    with pytest.raises(UserError) as caught:
        supervisor([]).run()
    assert_gone(caught.value)
    group.interrupt.assert_called_once_with()
    group.kill.assert_not_called()  # Ray would wait for the head


def test_a_run_whose_learner_dies_with_the_cluster_is_not_begun_again(
    monkeypatch: pytest.MonkeyPatch, headless: None
) -> None:
    group = MagicMock()
    group.build.side_effect = ActorDiedError()
    monkeypatch.setattr(supervising, "ProcessGroup", lambda *_: group)
    with pytest.raises(UserError) as caught:
        supervisor([]).run()
    assert_gone(caught.value)
    group.build.assert_called_once_with()


def test_nobody_waits_for_processes_of_a_cluster_that_is_gone(headless: None) -> None:
    waiting = ProcessGroup.__new__(ProcessGroup)
    waiting._interrupted = lambda: False
    with pytest.raises(ClusterGone, match="GCS"):
        waiting._get(["a process that nobody starts"])


def test_learners_that_do_not_stop_are_waited_for_no_longer_than_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervising, "STOPPING_SECONDS", 0.05)
    group = MagicMock()
    group.start.return_value = 0
    group.status.return_value = None
    group.next_ended.return_value = None
    notes: list[str] = []
    run = supervisor(notes)
    run.interrupt()
    assert run._supervise(group) == "interrupted"
    assert notes == ["the learners have not stopped within 0 s; no checkpoint yet: the same command begins anew"]


@pytest.mark.parametrize("error", [ActorDiedError(), ActorUnavailableError("network", None), LOST, Closed(), GONE])
def test_an_actor_says_whether_the_run_is_over_or_its_learner_is_lost(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    side = MagicMock()
    side.step.side_effect = error
    monkeypatch.setattr(actor_process, "LearnerLink", MagicMock())
    host = actor_process.ActorProcess(lambda *_: side)
    if error is GONE:
        with pytest.raises(RayTaskError):
            host.act(0, (0, 0), None, 0, Beside())
    else:
        said = host.act(0, (0, 0), None, 0, Beside())
        assert said is None if isinstance(error, Closed) else said is not None and "lost its learner" in said
    side.close.assert_called_once()


def test_an_actor_that_lost_its_learner_is_replaced_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = [
        (Who("actor", 1), "it lost its learner"),
        (Who("learner", 0), "budget_reached"),
    ]
    monkeypatch.setattr(ray, "get", lambda reference: reference)
    group = MagicMock()
    group.start.return_value = 3  # restarts that the checkpoint knows of
    group.next_ended.side_effect = ended
    group.status.return_value = None
    assert supervisor([])._supervise(group) == "budget_reached"
    group.replace_actor.assert_called_once_with(1, "it lost its learner", "")
    group.count_restarts.assert_called_once_with(4)


def test_an_actor_that_dies_during_an_interruption_is_replaced_in_peace(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = MagicMock()
    fake.wait = lambda waiting, **_: ([], waiting)  # the learner answers late: it is saving
    fake.get.return_value = 7
    monkeypatch.setattr("ddrl.runtimes.ray.process_group.ray", fake)
    monkeypatch.setattr("ddrl.runtimes.ray.process_group.on_this_node", MagicMock())
    monkeypatch.setattr("ddrl.runtimes.ray.process_group.last_words", lambda pids: "")
    notes: list[str] = []
    group = ProcessGroup(plan(), 0.0, noting(notes), lambda: True)
    group._set_to_work(0)
    group.replace_actor(0, "killed", "")
    assert notes == ["actor 0: its process died (killed); a new one takes its place"]
    assert group.generation(0) == (0, 1)
    fake.kill.assert_called_once()  # the old process may be there still: it may only have lost its learner


def test_a_learner_that_dies_while_the_run_stops_is_said_with_the_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    runtime = supervisor(notes)
    group = MagicMock()
    group.start.side_effect = ActorDiedError()
    group.last_words.return_value = "Fatal Python error"
    monkeypatch.setattr(supervising, "ProcessGroup", lambda *_: group)
    monkeypatch.setattr(supervising, "gpus_per_learner", lambda *_: 0.0)
    runtime.interrupt()
    assert runtime.run() == "interrupted"
    assert "Fatal Python error" in notes[0]
    assert "the same command begins anew" in notes[1]


@pytest.mark.parametrize(
    ("newest", "going"),
    [(None, "no checkpoint yet, beginning anew"), (Path("7.pt"), "continuing from the newest checkpoint")],
)
def test_where_a_learner_died_a_line_says_whether_there_is_a_checkpoint_to_continue_from(
    monkeypatch: pytest.MonkeyPatch, newest: Path | None, going: str
) -> None:
    notes: list[str] = []
    group = MagicMock()
    group.start.side_effect = [ActorDiedError(), 0]
    group.last_words.return_value = ""
    group.status.return_value = None
    group.next_ended.return_value = (Who("learner", 0), "budget_reached")
    monkeypatch.setattr(ray, "get", lambda reference: reference)
    monkeypatch.setattr(supervising, "ProcessGroup", lambda *_: group)
    monkeypatch.setattr(supervising, "gpus_per_learner", lambda *_: 0.0)
    runtime = supervising.RayRuntime(plan(newest_checkpoint=lambda: newest), noting(notes))
    assert runtime.run() == "budget_reached"
    assert notes[-1].startswith("the learner died (") and notes[-1].endswith(f"): {going}")


def test_the_newest_checkpoint_that_all_learners_have_is_named(tmp_path: Path) -> None:
    assert launch.newest_checkpoint(tmp_path, 2) is None
    for name in ("1.sha256", "2.sha256", "rank1/1.sha256"):
        path = tmp_path / "checkpoints" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert launch.newest_checkpoint(tmp_path, 2) == tmp_path / "checkpoints/1.pt"
    assert launch.newest_checkpoint(tmp_path, 1) == tmp_path / "checkpoints/2.pt"
    (tmp_path / "checkpoints" / "replay").mkdir()
    assert launch.newest_checkpoint(tmp_path, 1) is None
    (tmp_path / "checkpoints" / "replay" / "1.sha256").touch()
    assert launch.newest_checkpoint(tmp_path, 1) == tmp_path / "checkpoints/1.pt"


@pytest.mark.parametrize(("gpus", "device"), [(1.0, "cuda"), (0.5, "cpu"), (0.0, "cpu")])
def test_learners_that_share_a_gpu_add_up_on_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: float, device: str
) -> None:
    resources = SimpleNamespace(get_assigned_resources=lambda: {"CPU": 1.0} | ({"GPU": gpus} if gpus else {}))
    monkeypatch.setattr(ray, "get_runtime_context", lambda: resources)
    monkeypatch.setattr(launch, "resolve_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(launch, "keep_freed_memory", lambda: None)
    monkeypatch.setattr(launch, "Run", lambda *_, **__: None)
    reducer = MagicMock()
    monkeypatch.setattr(launch, "DistributedReducer", reducer)
    chosen = config(topology=RAY | {"num_learners": 2})
    launch.make_learner(chosen, tmp_path, None, 1, MagicMock(), Beside(), lambda episode: None)
    assert reducer.call_args.args[3] == torch.device(device)


def test_only_folders_whose_cluster_is_gone_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "LONGEST_PARENT", 1000)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    gone, begun = tmp_path / "ddrl-ray-1-left", tmp_path / "ddrl-ray-999999999-begun"  # as seen from another container
    gone.mkdir()
    (gone / temporary.LOCK).touch()
    begun.mkdir()
    with cluster.own_folder() as one, cluster.own_folder() as other:
        assert {path.name for path in tmp_path.iterdir()} == {begun.name, Path(one).name, Path(other).name}
    assert list(tmp_path.iterdir()) == [begun]


def test_an_actor_of_ray_whose_numbers_are_not_finite_has_diverged_and_not_crashed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that a population goes on without it; its gradient, or the actions of its policy."""
    told: list[str] = []
    group: Any = SimpleNamespace(generation=lambda index: (0, 0))
    runtime = supervising.RayRuntime(plan(), noting(told))
    for cause, raised in ((NonFiniteError("loss is nan"), RayTaskError), (ArithmeticError("crash"), UserError)):
        error = RayTaskError("act", "its traceback", cause)
        monkeypatch.setattr(supervising.ray, "get", lambda reference, error=error: (_ for _ in ()).throw(error))
        with pytest.raises(raised) as caught:
            supervising.RayRuntime._result(runtime, group, Who("actor", 1), None)
        found = supervising.cause_of(caught.value, told.append) if raised is RayTaskError else caught.value
        assert type(found) is (NonFiniteError if raised is RayTaskError else UserError)
    assert all("its traceback" in text for text in told)
