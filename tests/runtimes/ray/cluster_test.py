"""Where a run's own cluster listens, what stays of it, and where on a cluster that it joins its processes are put."""

from __future__ import annotations

import ipaddress
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import psutil
import pytest

from ddrl.cli.commands import INTERRUPTED
from ddrl.errors import UserError
from ddrl.runtimes.ray import placement
from ddrl.runtimes.ray import process_group as crews
from ddrl.runtimes.ray.cluster import cluster
from ddrl.runtimes.ray.learner_process import sum_over
from tests.runs import BASE, merged
from tests.runtimes.ray import clusters
from tests.runtimes.ray.clusters import ROOT


def listening(family: list[psutil.Process]) -> list[str]:
    """Addresses at which `family` accepts connections."""
    found = []
    for process in family:
        for connection in process.net_connections("inet"):
            if connection.status == psutil.CONN_LISTEN:
                found.append(connection.laddr.ip)
    return found


def is_loopback(text: str) -> bool:
    address = ipaddress.ip_address(text)
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


@dataclass(frozen=True)
class OwnCluster:
    """What was seen of a run with two actors and two learners: while it learned, and when it was interrupted."""

    addresses: list[str]
    niceness: list[int]  # of the supervisor, then of each role
    family: list[psutil.Process]
    folders: set[Path]
    interrupted: tuple[int | None, str]  # exit code, and what it wrote
    left: list[psutil.Process]  # of the family, five seconds later
    others: tuple[set[psutil.Process], set[psutil.Process]]  # of a cluster that stays, before and after


@pytest.fixture(scope="module")
def own_cluster(tmp_path_factory: pytest.TempPathFactory, held: tuple[psutil.Process, dict[str, str]]) -> OwnCluster:
    directory = tmp_path_factory.mktemp("run")
    before = clusters.services(held[0])
    values = merged(
        BASE,
        {
            "env_frames": 100_000,
            "recording": {"period_frames": 100},
            "evaluation": {"period_frames": None},
            "topology": {"runtime": "ray", "num_actors": 2, "num_learners": 2},
        },
    )
    process = clusters.start(values, directory, RAY_ADDRESS="")
    try:
        clusters.wait_for_lines(process, directory, 3)
        parent = psutil.Process(process.pid)
        family = parent.children(recursive=True)
        folders = clusters.own_folders(family)
        addresses = listening([parent, *family])
        roles = clusters.workers(parent, "ActorProcess") + clusters.workers(parent, "LearnerProcess")
        niceness = [one.nice() for one in (parent, *roles)]
    finally:
        process.send_signal(signal.SIGTERM)
        error = process.ended(120)
    left = psutil.wait_procs(family, timeout=5)[1]
    return OwnCluster(
        addresses=addresses,
        niceness=niceness,
        family=family,
        folders=folders,
        interrupted=(process.returncode, error),
        left=left,
        others=(before, clusters.services(held[0])),
    )


@pytest.mark.system
def test_no_other_machine_can_reach_a_process_of_an_own_cluster(own_cluster: OwnCluster) -> None:
    addresses = own_cluster.addresses
    assert len(addresses) >= 8  # of this process, the head, the node, four roles, and where the learners meet
    assert [address for address in addresses if not is_loopback(address)] == []


@pytest.mark.system
def test_roles_have_the_priority_of_the_command_that_started_them(own_cluster: OwnCluster) -> None:
    assert len(own_cluster.niceness) == 1 + 2 + 2
    assert len(set(own_cluster.niceness)) == 1


@pytest.mark.system
def test_an_own_cluster_is_interrupted_and_gone_while_another_stays(own_cluster: OwnCluster) -> None:
    code, error = own_cluster.interrupted
    assert code == INTERRUPTED, error
    assert own_cluster.family and own_cluster.left == []
    assert own_cluster.folders and not any(folder.exists() for folder in own_cluster.folders)
    before, after = own_cluster.others
    assert before and before <= after


def test_an_address_of_all_interfaces_is_told_apart() -> None:
    local = {"127.0.0.1": True, "::ffff:127.0.0.1": True, "::1": True}
    assert {text: is_loopback(text) for text in [*local, "::", "0.0.0.0", "192.0.2.2"]} == local | {
        "::": False,
        "0.0.0.0": False,
        "192.0.2.2": False,
    }


def test_a_cluster_that_does_not_start_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(**keys: Any) -> None:
        raise Exception("The current node timed out during startup.")

    monkeypatch.setenv("RAY_ADDRESS", "")
    monkeypatch.setattr("ray.init", slow)
    line = r"^Ray did not start on this machine: The current node timed out"
    with pytest.raises(UserError, match=line), cluster(num_cpus=2, object_store_bytes=2**27):
        pass


def test_a_start_that_fails_is_tried_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = []

    def second_time_lucky(**keys: Any) -> None:
        attempts.append(keys)
        if len(attempts) == 1:
            raise Exception("The current node timed out during startup.")

    monkeypatch.setenv("RAY_ADDRESS", "")
    monkeypatch.setattr("ray.init", second_time_lucky)
    with cluster(num_cpus=2, object_store_bytes=2**27) as folder:
        assert folder is not None
    assert [keys["num_cpus"] for keys in attempts] == [2, 2]


AFTER = """
import os, signal, time
from ddrl.runtimes.ray.cluster import cluster
signal.signal(signal.SIGTERM, lambda *_: print("heard"))
with cluster(num_cpus=1, object_store_bytes=2**27):
    os.kill(os.getpid(), signal.SIGTERM)
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(0.1)
"""


def test_sigterm_is_heard_within_a_cluster_and_after_it() -> None:
    done = subprocess.run([sys.executable, "-c", AFTER], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "heard\nheard\n"), done.stderr


# A cluster of several nodes, without Ray ------------------------------------------------------------------------------


def group_on(monkeypatch: pytest.MonkeyPatch, *, folder: Path | None) -> tuple[Any, list[tuple[str, Any]]]:
    """Two learners and two actors; in order, each process that was asked for, with where it must be."""
    hired: list[tuple[str, Any]] = []

    def remote(**_: Any) -> Any:
        def wrap(host: type) -> Any:
            def options(scheduling_strategy: Any = None) -> Any:
                def ask(*_: Any) -> MagicMock:
                    hired.append((host.__name__, scheduling_strategy))
                    return MagicMock()

                return SimpleNamespace(remote=ask)

            return SimpleNamespace(options=options, remote=options().remote)

        return wrap

    fake = MagicMock()
    fake.remote = remote
    fake.wait = lambda waiting, **_: (hired.append(("waited", None)), (waiting, []))[1]
    context = MagicMock()
    context.get_node_id.return_value = "0" * 56
    monkeypatch.setattr(crews, "ray", fake)
    monkeypatch.setattr(placement.ray, "get_runtime_context", lambda: context)
    monkeypatch.setattr(placement.ray, "nodes", lambda: [{"NodeID": digit * 56, "Alive": True} for digit in "10"])
    plan = crews.Plan(2, 2, 1, "cpu", MagicMock(), MagicMock(), MagicMock(), MagicMock(), folder)
    return crews.ProcessGroup(plan, 0.0, MagicMock(), lambda: False), hired


def test_the_learner_that_writes_the_run_directory_is_bound_to_the_node_of_the_supervisor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, hired = group_on(monkeypatch, folder=Path("/tmp/of-it"))
    assert [name for name, _ in hired] == ["LearnerProcess", "LearnerProcess", "ActorProcess", "ActorProcess"]
    (_, leading), (_, following), *actors = hired
    assert leading.node_id == "0" * 56 and leading.soft is False
    assert following.node_id == "1" * 56 and following.soft is True
    assert all(where is None for _, where in actors)


def test_on_a_cluster_of_others_it_has_its_place_before_anyone_else_asks_for_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group, hired = group_on(monkeypatch, folder=None)
    group.build()
    names = [name for name, _ in hired]
    assert names[:5] == ["LearnerProcess", "waited", "LearnerProcess", "ActorProcess", "ActorProcess"]
    assert hired[0][1].soft is False


def nodes(monkeypatch: pytest.MonkeyPatch, *resources: dict[str, float]) -> None:
    """A cluster of these nodes; this process belongs to the first."""
    listed = [{"NodeID": str(index), "Resources": one} for index, one in enumerate(resources)]
    monkeypatch.setattr(placement.ray, "nodes", lambda: listed)
    monkeypatch.setattr(placement.ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "0"))
    total = {key: sum(one.get(key, 0) for one in resources) for one in resources for key in one}
    monkeypatch.setattr(placement.ray, "cluster_resources", lambda: total)


def gpus(
    num_actors: int, num_learners: int, threads: int, device: str, replays: int = 0, shards: int = 0, runs: int = 1
) -> float:
    """GPUs of each learner of so many runs that have so many roles each."""
    plan: Any = SimpleNamespace(
        num_actors=num_actors,
        num_learners=num_learners,
        learner_threads=threads,
        device=device,
        replay=MagicMock() if replays else None,
        shards=[MagicMock()] * shards,
        runs_at_once=runs,
    )
    return placement.gpus_per_learner(plan)


def test_gpus_of_all_nodes_are_shared_between_learners(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes(monkeypatch, {"CPU": 8, "GPU": 1}, {"CPU": 8, "GPU": 1})
    assert [gpus(4, learners, 1, "auto") for learners in (1, 2, 4)] == [1.0, 1.0, 0.5]
    assert gpus(4, 2, 1, "cpu") == 0.0
    with pytest.raises(UserError, match="a GPU for each of 4 learners"):
        gpus(4, 4, 1, "cuda")


@pytest.mark.parametrize(
    ("here", "device", "words"),
    [
        ({"CPU": 0.0, "GPU": 1.0}, "auto", r"has 0 CPUs and 1 GPUs; it needs 2 and 1: .*another node, or with device"),
        ({"CPU": 0.0}, "cpu", r"has 0 CPUs and 0 GPUs; it needs 2 and 0: start the run on another node$"),
        ({"CPU": 8.0}, "auto", r"has 8 CPUs and 0 GPUs; it needs 2 and 1: "),
    ],
)
def test_a_node_without_room_for_the_learner_that_leads_is_said_at_once(
    monkeypatch: pytest.MonkeyPatch, here: dict[str, float], device: str, words: str
) -> None:
    nodes(monkeypatch, here, {"CPU": 64.0, "GPU": 8.0})
    with pytest.raises(UserError, match=words):
        gpus(4, 1, 2, device)


def test_a_replay_of_its_own_needs_room_where_the_learner_is(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes(monkeypatch, {"CPU": 6.0})
    assert gpus(4, 1, 1, "cpu", 1) == 0.0
    with pytest.raises(UserError, match=r"6 CPUs; 5 actors .* and a replay need 7 .*learner_threads, replay\)"):
        gpus(5, 1, 1, "cpu", 1)
    nodes(monkeypatch, {"CPU": 1.0}, {"CPU": 8.0})
    with pytest.raises(UserError, match="has 1 CPUs and 0 GPUs; it needs 2 and 0"):
        gpus(4, 1, 1, "cpu", 1)


def test_parameter_shards_need_room_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes(monkeypatch, {"CPU": 1.0}, {"CPU": 6.0})
    assert gpus(4, 1, 1, "cpu", 0, 2) == 0.0
    with pytest.raises(UserError, match=r"7 CPUs; 5 actors .* and 2 parameter shards need 8 .*, parameter_shards\)"):
        gpus(5, 1, 1, "cpu", 0, 2)


def test_members_at_once_need_room_and_share_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes(monkeypatch, {"CPU": 12.0, "GPU": 2.0})
    assert [gpus(2, learners, 1, "auto", 0, 0, 2) for learners in (1, 2)] == [1.0, 0.5]
    with pytest.raises(UserError, match=r"12 CPUs; 4 members at once, each with 2 actors .* need 16 .*parallel\)"):
        gpus(2, 2, 1, "auto", 0, 0, 4)
    with pytest.raises(UserError, match="a GPU for each of 4 learners, and the Ray cluster has 2"):
        gpus(2, 2, 1, "cuda", 0, 0, 2)
    nodes(monkeypatch, {"CPU": 1.0, "GPU": 1.0}, {"CPU": 16.0, "GPU": 7.0})
    with pytest.raises(UserError, match=r"that lead 2 members run .* has 1 CPUs and 1 GPUs; they need 2 and 2: "):
        gpus(2, 4, 1, "auto", 0, 0, 2)


def test_learners_sum_over_the_interface_of_their_address_unless_the_environment_names_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    variables: dict[str, str] = {}
    monkeypatch.setattr(os, "environ", variables)
    sum_over("192.0.2.1")  # of no machine (RFC 5737)
    assert variables == {}
    variables["NCCL_SOCKET_IFNAME"] = "ib0"
    sum_over("127.0.0.1")
    assert variables["NCCL_SOCKET_IFNAME"] == "ib0"
    used = psutil.net_if_addrs()[variables["GLOO_SOCKET_IFNAME"]]
    assert "127.0.0.1" in [one.address for one in used]


def test_learners_that_follow_go_round_the_nodes_and_elsewhere_where_one_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own, dead, first, second = (letter * 56 for letter in "edab")
    nodes = [{"NodeID": node, "Alive": node != dead} for node in (second, own, dead, first)]
    monkeypatch.setattr(placement.ray, "nodes", lambda: nodes)
    monkeypatch.setattr(placement.ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: own))
    chosen = [placement.on_its_node(rank) for rank in range(5)]
    assert [one.node_id for one in chosen] == [own, first, second, own, first]
    assert all(one.soft and one._spill_on_unavailable for one in chosen)
