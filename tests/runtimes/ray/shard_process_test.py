"""Runtime ray with a parameter server's shards in processes of their own: the same server, wherever its shards are."""

from __future__ import annotations

import json
import re
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import psutil
import pytest
import ray
import torch

from ddrl.api.launch import train
from ddrl.errors import Closed, UserError
from ddrl.learners.all_reduce import SingleLearner
from ddrl.runtimes.ray import shard_process
from ddrl.runtimes.ray.cluster import cluster
from ddrl.runtimes.ray.launch import shard_parts
from ddrl.runtimes.ray.learner_process import LearnerProcess
from ddrl.runtimes.ray.messages import Shard
from ddrl.runtimes.ray.shard_process import RemoteShards, ShardLinks, start_process
from ddrl.training.builder import Builder
from ddrl.training.config.run_config import RunConfig, parse_run_config
from ddrl.training.learner_node import LearnerNode
from ddrl.training.records import checkpoint
from ddrl.types import Begun, Gradients
from tests.runs import BASE, curves, merged, small
from tests.runtimes.ray import clusters, shards

pytestmark = pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")  # in processes of a run, too
APART = {"runtime": "ray", "num_actors": 2, "envs_per_actor": 2, "parameter_shards": 2}
QUIET = {"evaluation": {"period_frames": 800, "episodes": 2, "final_episodes": 4}, "recording": {"period_frames": 100}}


def chosen(**changes: Any) -> RunConfig:
    """A small run of GORILA whose two shards have processes of their own."""
    base = merged(BASE, QUIET | {"algorithm": "gorila", "topology": APART}) | {"hyperparameters": small("gorila")}
    return parse_run_config(merged(base, changes))


def saved(directory: Path) -> dict[str, Any]:
    """The newest checkpoint."""
    state, damaged = checkpoint.load_newest(directory / "checkpoints")
    assert state is not None and not damaged
    return state


# Whole runs -----------------------------------------------------------------------------------------------------------


@pytest.mark.system
def test_every_update_is_in_every_shard_and_in_every_count_also_of_a_run_that_is_continued(
    tmp_path: Path, holder: psutil.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[int] = set()

    def look() -> None:
        clusters.wait_until(lambda: clusters.lines(tmp_path / "run") > 3)
        seen.update(one.pid for one in clusters.workers(holder, "ShardProcess"))

    monkeypatch.setattr(shard_process, "ShardProcess", shards.counting(tmp_path))
    watcher, before = clusters.meanwhile(look), 0
    for frames in (1000, 1700):
        assert train(chosen(env_frames=frames), tmp_path / "run", quiet=True) == "budget_reached"
        state = saved(tmp_path / "run")
        env_frames, agent_steps, updates = state["learner"]["counters"]
        assert state["params"]["version"] == updates > before
        assert env_frames == agent_steps >= frames
        counts = [path.read_text().split() for path in sorted(tmp_path.glob("shard*"))]
        assert len(counts) == 2 and counts[0] == counts[1], "each checkpoint has the same gradients in both"
        assert len(counts[0]) >= 2
        assert int(counts[0][-1]) == updates - before
        before = updates
        for path in tmp_path.glob("shard*"):
            path.unlink()
    watcher.join()
    assert len(seen) == 2
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    table = pd.read_parquet(tmp_path / "run" / "curves.parquet")
    assert run["resumes"] == 1 and run["updates"] == before
    last = table.groupby("metric").value.last()
    assert last["episodes"] > 50 and 0 < table[table.metric == "policy_lag_mean"].value.median() < 3
    assert len(table[table.metric == "evaluation_return"]) >= 4
    for way in ("to", "from"):
        sent = last[f"wire_bytes_per_frame_{way}_learner"]
        assert sent == pytest.approx(4 * run["parameters"] / 10, rel=0.3), "once an unroll of 5 steps of 2 environments"
    clusters.wait_until(lambda: not clusters.workers(holder, "ShardProcess"))


@pytest.mark.system
def test_a_shard_that_is_killed_takes_the_run_back_to_its_checkpoint(
    tmp_path: Path, holder: psutil.Process, capfd: pytest.CaptureFixture[str]
) -> None:
    def kill() -> None:
        clusters.wait_until(lambda: len(list((tmp_path / "checkpoints").glob("*.sha256"))) >= 2)
        clusters.workers(holder, "ShardProcess")[0].send_signal(signal.SIGKILL)

    killer = clusters.meanwhile(kill)
    assert train(chosen(env_frames=2500), tmp_path) == "budget_reached"
    killer.join()
    run = json.loads((tmp_path / "run.json").read_text())
    assert run["resumes"] == 1 and run["history"][1]["env_frames"] >= 300
    table = curves(tmp_path)
    frames = table[table.metric == "episodes"].env_frames
    assert frames.is_monotonic_increasing and not frames.duplicated().any() and frames.iloc[-1] >= 2500
    shown = capfd.readouterr().err
    assert len(re.findall(r"the parameter shard died \(.*\): continuing from the newest checkpoint", shown)) == 1
    assert "the learner died" not in shown and "resumed at" in shown


@pytest.mark.system
def test_a_shard_that_dies_again_and_again_ends_the_run_with_one_line(
    tmp_path: Path, holder: psutil.Process, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shard_process, "ShardProcess", shards.VanishingShard)
    with pytest.raises(UserError, match=r"^the parameter shard died 3 times in a row without an update: .+$"):
        train(chosen(), tmp_path)
    assert "Traceback" not in capfd.readouterr().err


# The processes alone --------------------------------------------------------------------------------------------------


@pytest.fixture
def connected(holder: psutil.Process) -> Iterator[None]:
    """To the cluster."""
    with cluster(num_cpus=0, object_store_bytes=0):
        yield


class Server:
    """A learner and its shards, in processes of their own or not."""

    def __init__(self, config: RunConfig, *, apart: bool) -> None:
        builder = Builder(config, torch.device("cpu"))
        made = [Shard(part, start_process(config, part)) for part in shard_parts(builder)] if apart else []
        ray.get([shard.process.build.remote() for shard in made])
        self.places, self.links = made, ShardLinks(made)
        self.node = LearnerNode(builder, SingleLearner(), shards=RemoteShards(made) if made else None)
        self.network: Any = builder.network()

    def apply(self, gradients: Gradients) -> None:
        """As an actor does; `network` has the parameters afterwards."""
        params = self.node.params
        if not self.places:
            params.apply(gradients)
            params.pull(self.network, 0)
            return
        begun = params.begin()
        self.links.apply(gradients.tensors, begun.learning_rate, self.network)
        params.finish(replace(gradients, tensors=()), begun)

    def end(self) -> None:
        """Its processes."""
        for shard in self.places:
            ray.kill(shard.process)


def gradient(network: Any, seed: int) -> Gradients:
    """Of nothing; its steps differ from seed to seed."""
    generator = torch.Generator().manual_seed(seed)
    tensors = tuple(torch.randn(one.shape, generator=generator) for one in network.parameters())
    return Gradients(tensors, 1.0 + seed, 5 + seed, float(seed), max(0, seed - 1), {"loss": float(seed)}, 8)


def assert_same(one: Any, other: Any) -> None:
    """Bit by bit."""
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for name in one:
            assert_same(one[name], other[name])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    else:
        assert one == other


def test_shards_in_processes_of_their_own_equal_those_of_the_learner_bit_for_bit_also_when_continued(
    connected: None,
) -> None:
    optimizer = {"decay_frames": 100, "momentum": 0.5}  # each update has a node rate of its own
    config = chosen(hyperparameters={"optimizer": optimizer})
    apart, here = Server(config, apart=True), Server(config, apart=False)
    assert len(apart.places) == 2

    def both(*seeds: int) -> None:
        for seed in seeds:
            for server in (apart, here):
                server.apply(gradient(server.network, seed))
            assert_same(apart.network.state_dict(), here.network.state_dict())
            assert_same(apart.node.params.take(), here.node.params.take())

    both(1, 2, 3)
    size = 4 * sum(parameter.numel() for parameter in here.network.parameters())
    sent, received, cpu_seconds = apart.links.take_traffic()
    assert sent == received == 3 * size and cpu_seconds > 0 and apart.links.take_traffic() == (0, 0, 0.0)
    newest = apart.node.builder.network()
    assert apart.node.params.pull_newest(newest) == 3  # as an evaluation does
    assert_same(newest.state_dict(), here.network.state_dict())
    states = [server.node.state_dict() for server in (apart, here)]
    assert_same(*states)
    apart.end()
    apart = Server(config, apart=True)
    apart.node.load_state_dict(states[0])
    both(4, 5)
    assert_same(apart.node.state_dict(), here.node.state_dict())
    killed = psutil.Process(ray.get(apart.places[1].process.pid.remote()))
    killed.kill()
    killed.wait(60)  # until then it may still answer
    with pytest.raises(ConnectionError, match=r"^a parameter shard is gone: "):
        apart.node.state_dict()
    apart.end()


# Parts of it alone, without a cluster ---------------------------------------------------------------------------------


def learner_host() -> tuple[Any, LearnerNode]:
    """A learner's process without one, whose shards nobody asks."""
    node = LearnerNode(Builder(chosen(), torch.device("cpu")), SingleLearner(), shards=SimpleNamespace())  # type: ignore[arg-type]
    host: Any = LearnerProcess(0, 2, lambda *_: None)  # type: ignore[arg-type, return-value]
    run = SimpleNamespace(queue=node.queue, params=node.params, node=node, remote=None)
    host._learner = SimpleNamespace(run=run)
    host._ready.set()
    return host, node


NUMBERS = Gradients((), 1.0, 5, 0.0, 0, {"loss": 1.0}, 8)


def test_a_checkpoint_waits_for_the_updates_that_were_begun_and_lets_none_begin() -> None:
    host, node = learner_host()
    for actor in range(2):
        host.begin(actor, 0)
    assert host.begin_update(0, 0) == Begun(0, 0.00025)
    order: list[str] = []

    def save() -> None:
        with node.frozen():
            order.append(f"saved {node.counts.updates}")
            other.start()
            other.join(0.2)

    other = threading.Thread(target=lambda: order.append(f"begun {host.begin_update(1, 0)}"))
    saving = clusters.meanwhile(save)
    saving.join(0.2)
    assert saving.is_alive() and not order
    assert host.exchange(0, 0, NUMBERS, [], 0, 1, 0.0) == (1, None)
    saving.join(10)
    other.join(10)
    assert order == ["saved 1", f"begun {Begun(1, 0.00025)}"]
    node.close()
    assert host.begin_update(0, 0) is None
    assert host.exchange(1, 0, NUMBERS, [], 1, 1, 0.0) is None  # what was begun is counted, and the run is over
    assert node.counts.updates == 2


def test_what_a_dead_actor_had_begun_is_given_up_when_another_process_takes_its_place() -> None:
    host, node = learner_host()
    host.begin(0, 0)
    assert host.begin_update(0, 0) is not None
    host.begin(0, 1)
    with node.frozen():
        assert node.counts.updates == 0
    assert host.begin_update(0, 0) is None and host.exchange(0, 0, NUMBERS, [], 0, 1, 0.0) is None
    assert node.counts.updates == 0
    assert host.begin_update(0, 1) is not None and host.exchange(0, 1, NUMBERS, [], 0, 1, 0.0) == (1, None)
    assert node.counts.updates == 1
    node.close()
    with pytest.raises(Closed):
        node.params.begin()


@pytest.mark.parametrize(
    ("topology", "number"),
    [({}, 2), ({"parameter_shards": 1}, 0), ({"runtime": "threads"}, 0), ({"parameter_shards": 50}, 5)],
    ids=["ray", "one", "threads", "no tensor is divided"],
)
def test_shards_have_processes_under_ray_where_there_are_several(topology: dict[str, Any], number: int) -> None:
    parts = shard_parts(Builder(chosen(topology=topology), torch.device("cpu")))
    assert len(parts) == number
    tensors = list(Builder(chosen(), torch.device("cpu")).network().parameters())
    assert [id(one) for part in parts for one in tensors[part]] == [id(one) for one in tensors if number]
